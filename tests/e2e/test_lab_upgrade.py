"""Agents and controllers are replaced by another version's under running migrations, and it costs
no probe and no connection beside what the same migrations cost without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.state import StateDir
from tests.fakes.running_lab import assert_gone, start_when_free, when_free

pytestmark = pytest.mark.root

RUNS = 2
SECONDS = 1500.0
"""A minute and a half on a quiet machine."""


def test_upgrades_under_running_migrations_lose_nothing(tmp_path: Path) -> None:
    state, out = StateDir(tmp_path / "state"), tmp_path / "upgrade.json"
    said = tmp_path / "said.txt"
    process = start_when_free(state, "upgrade", "--runs", str(RUNS), "--out", str(out), output=said)
    try:
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            when_free(state, "down")
    assert_gone(state)
    assert process.returncode == 0, said.read_text() + errors
    stretches = json.loads(out.read_text())["runs"]["stretches"]
    upgrades = [one for one in stretches if one["restarts"]]
    assert len(upgrades) == RUNS
    versions = [{restart["version"] for restart in one["restarts"]} for one in upgrades]
    assert all(len(one) == 1 for one in versions)
    assert versions[0] != versions[1], "to another version, and back"
    assert all(len(one["restarts"]) == 3 for one in upgrades), "every node's"
