"""Agents and controllers are replaced by another version's under running migrations, and it costs
no probe and no connection beside what the same migrations cost without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.state import StateDir
from lab.upgrade_rows import allowance, strays, stretch_from
from tests.fakes.running_lab import assert_gone, start_when_free, when_free

pytestmark = pytest.mark.root

RUNS = 2
SLOW_MS = 500.0
"""What a cut-over may take of the network on a machine that is very busy; an agent that is away at
that moment costs more than a second."""
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
    allowed = max(SLOW_MS, allowance([one for one in stretches if not one.upgraded]))
    assert [sum(strays(one, allowed).values()) for one in upgrades] == [0] * RUNS, words
    missed = [what for what, row in rows.items() if what.startswith("upgrades") and not row["met"]]
    assert not missed, words
