"""What upgrades are charged with, and versions side by side."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lab.results import BenchRow
from lab.tools import LabError
from lab.upgrade_rows import (
    NETWORK_MS,
    Restart,
    Stretch,
    Window,
    allowance,
    rows_of,
    strays,
    stretch_from,
)
from lab.versions import PACKAGES, pack, version_of

MS = 1_000_000
WINDOW = Window(1000 * MS, 1050 * MS)
CUT = tuple(range(1000 * MS, 1054 * MS, MS))
"""What the guest's own blackout and the network's part of it lose."""
USUAL = Stretch((WINDOW,), {"ext": CUT, "pod": CUT}, {"ext": 3000, "pod": 3000}, {"ext": True})
GOOD = replace(USUAL, restarts=(Restart("node1", "v2", 900.0, 1500.0),), leaders=1)


def row(what: str, *found: Stretch) -> BenchRow:
    (one,) = [each for each in rows_of(found) if each.what.startswith(what)]
    return one


def test_a_migrations_own_loss_is_not_the_upgrades() -> None:
    assert all(one.met for one in rows_of([USUAL, GOOD]))
    assert strays(GOOD, NETWORK_MS) == {"ext": 0, "pod": 0}


@pytest.mark.parametrize("at", [900, 994, 1101, 1500, 5000])
def test_one_lost_probe_at_another_time_is(at: int) -> None:
    bad = replace(GOOD, lost_at={**GOOD.lost_at, "pod": (*CUT, at * MS)})
    found = row("extra lost probes", USUAL, bad)
    assert (found.ours, found.peer, found.met) == (1, 0, False)


def test_a_route_that_comes_late_is() -> None:
    late = tuple(range(1000 * MS, 2500 * MS, MS))
    found = row("extra lost probes", USUAL, replace(GOOD, lost_at={"ext": late, "pod": CUT}))
    assert found.ours == len([at for at in late if at > WINDOW.plugged_ns + NETWORK_MS * MS])
    assert not found.met


def test_on_a_slow_machine_both_may_be_slow() -> None:
    slow = tuple(range(1000 * MS, 1150 * MS, MS))
    usual = replace(USUAL, lost_at={"ext": slow, "pod": CUT})
    assert allowance([USUAL]) == NETWORK_MS
    assert allowance([usual]) == 2 * 99
    assert row("extra lost probes", usual, replace(GOOD, lost_at=usual.lost_at)).met
    assert not row("extra lost probes", USUAL, replace(GOOD, lost_at=usual.lost_at)).met


@pytest.mark.parametrize(
    ("what", "bad"),
    [
        ("upgrades that addresses", replace(GOOD, survived={"ext": False})),
        ("upgrades that addresses", replace(GOOD, address_kept=False)),
        ("upgrades with a new leader", replace(GOOD, leaders=0)),
        ("upgrades that BIRD", replace(GOOD, bird_lived=False)),
    ],
)
def test_what_else_an_upgrade_must_not_cost(what: str, bad: Stretch) -> None:
    missed = [one.what for one in rows_of([USUAL, GOOD, bad]) if not one.met]
    assert len(missed) == 1
    assert missed[0].startswith(what)


def test_a_stretch_survives_its_file() -> None:
    assert stretch_from(json.loads(json.dumps(asdict(GOOD)))) == GOOD


def test_without_an_upgrade_nothing_is_shown() -> None:
    assert not all(one.met for one in rows_of([USUAL]))


def test_a_version_runs_its_own_code_from_wherever_it_is(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for package in PACKAGES:
        (checkout / package).mkdir(parents=True)
        (checkout / package / "__init__.py").write_text("")
    with pytest.raises(LabError, match="is no checkout of ours: it has no ipam/"):
        (checkout / "ipam").rename(tmp_path / "ipam")
        pack(tmp_path / "none", "1", checkout)
    (tmp_path / "ipam").rename(checkout / "ipam")
    main = "import sys, os\ndef main():\n    print(__file__, *sys.argv[1:], os.getpid())\n"
    (checkout / "felix_shim" / "agent.py").write_text(main)
    bundle = pack(tmp_path / "bundle", "1", checkout)
    assert bundle.name.startswith("1-")
    link = tmp_path / "bin"
    (tmp_path / "bundle").rename(tmp_path / "moved")
    link.symlink_to("moved/bin")
    done = subprocess.run(
        [link / "tortie-node", "--config", "a b"], capture_output=True, text=True, check=True
    )
    file, *arguments = done.stdout.split()
    assert file == str(tmp_path / "moved" / "lib" / "felix_shim" / "agent.py")
    assert arguments[:3] == ["--config", "a", "b"]


def test_a_process_that_is_gone_is_of_no_version() -> None:
    assert version_of(1 << 22) == ""
