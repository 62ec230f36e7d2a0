"""Agents and controllers are replaced by another version's under running migrations, and no address
and no connection is lost. What it costs in probes `make soak-upgrade` counts: a target that begins
while its node's agent is about to stop still costs some, in about one of six upgrades."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.state import StateDir
from lab.upgrade_rows import stretch_from
from tests.fakes.running_lab import assert_gone, start_when_free, when_free

pytestmark = pytest.mark.root

RUNS = 2
SECONDS = 1500.0
"""A minute and a half on a quiet machine."""


def test_upgrades_under_running_migrations_lose_no_connection(tmp_path: Path) -> None:
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
    words = said.read_text() + errors
    assert out.exists(), words
    rows = {row["what"]: row for row in json.loads(out.read_text())["rows"]}
    stretches = [stretch_from(one) for one in json.loads(out.read_text())["runs"]["stretches"]]
    upgrades = [one for one in stretches if one.upgraded]
    assert len(upgrades) == RUNS
    versions = [{restart.version for restart in one.restarts} for one in upgrades]
    assert all(len(one) == 1 for one in versions)
    assert versions[0] != versions[1], "to another version, and back"
    assert all(len(one.restarts) == 3 for one in upgrades), "every node's"
    missed = [what for what, row in rows.items() if what.startswith("upgrades") and not row["met"]]
    assert not missed, words
