"""What a bench of cut-overs makes of its migrations, and whether a target is met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.bench import Numbers
from lab.bench_rows import (
    EXT,
    NEVER_MS,
    PLACES,
    SOURCE,
    THIRD,
    Figures,
    Sort,
    figures_of,
    p99,
    rows_of,
    switches,
)
from lab.results import BenchRow
from tests.unit.lab.test_lab_report import BOTH, OBSERVED, SEEN

ALIVE = dict.fromkeys(PLACES, True)
GOOD6 = Figures(
    sort=Sort.PACKET.value,
    blackout_ms=50.0,
    local_ms=1.0,
    fib_ms={"tor": 2.0, "node1": 8.0, "node3": 4.0},
    start_to_tor_ms=2.0,
    loss_ms={SOURCE: 1.0, THIRD: 2.0, EXT: 3.0},
    tcp_survived=ALIVE,
)
GOOD = replace(GOOD6, ipv6=GOOD6)
SILENT = replace(GOOD, sort=Sort.SILENT.value, start_to_tor_ms=900.0, loss_ms={EXT: 950.0})


def row(what: str, *found: Figures) -> BenchRow:
    """The one row of that name."""
    (one,) = [each for each in rows_of(found, 3) if each.what == what]
    return one


def test_a_migration_is_told_by_its_figures() -> None:
    survived = {(THIRD, 4): True, (THIRD, 6): False}
    found = figures_of(Sort.PACKET, BOTH, survived, "")
    assert (found.blackout_ms, found.local_ms, found.start_to_tor_ms) == (50, 1, 2)
    assert found.fib_ms == {"tor": 2, "node1": 8}
    assert found.loss_ms == {EXT: 3, THIRD: 5}
    assert found.tcp_survived == {THIRD: True, EXT: True}
    assert found.ipv6 is not None
    assert found.ipv6.fib_ms == {"tor": 3, "node1": 9}
    assert found.ipv6.tcp_survived == {THIRD: False, EXT: True}
    assert figures_of(Sort.PACKET, OBSERVED, {}, "").families() == {
        4: figures_of(Sort.PACKET, OBSERVED, {}, "")
    }
    assert switches(replace(OBSERVED, seen=SEEN[2:])) == {}  # no sign, nothing after it


def test_what_is_good_meets_every_target() -> None:
    rows = rows_of([GOOD] * 3, 3)
    assert len(rows) == 2 * (2 * 3 + 2 * len(PLACES) + len(PLACES))
    assert all(one.met for one in rows)


@pytest.mark.parametrize(
    ("what", "bad"),
    [
        ("packet guest, IPv4: sign → local route, p99", replace(GOOD, local_ms=10.1)),
        ("packet guest, IPv4: sign → local route, p99", replace(GOOD, local_ms=None)),
        (
            "packet guest, IPv4: sign → other nodes' FIB, p99",
            replace(GOOD, fib_ms={"tor": 2.0, "node1": 8.0}),
        ),
        (
            "packet guest, IPv4: sign → ToR FIB, p99",
            replace(GOOD, fib_ms={"node1": 2.0, "node3": 8.0}),
        ),
        (
            "packet guest, IPv4: loss beyond the guest's own blackout, from the ToR, p99",
            replace(GOOD, loss_ms={SOURCE: 1.0, THIRD: 2.0}),
        ),
        (
            "packet guest, IPv4: TCP connections surviving, from the third node",
            replace(GOOD, tcp_survived={**ALIVE, THIRD: False}),
        ),
    ],
)
def test_one_that_is_bad_or_unseen_misses_one_target(what: str, bad: Figures) -> None:
    missed = [one.what for one in rows_of([*[GOOD] * 50, bad], 3) if not one.met]
    assert missed == [what]


def test_what_is_bad_or_unseen_in_ipv6_misses_a_target_of_ipv6() -> None:
    for six in (replace(GOOD6, local_ms=11.0), replace(GOOD6, local_ms=None)):
        bad = replace(GOOD, ipv6=six)
        missed = [one.what for one in rows_of([*[GOOD] * 50, bad], 3) if not one.met]
        assert missed == ["packet guest, IPv6: sign → local route, p99"]
    without = [one.what for one in rows_of([*[GOOD] * 50, GOOD6], 3) if not one.met]
    assert without
    assert all(what.startswith("packet guest, IPv6: ") for what in without)


def test_the_peer_is_the_guest_without_a_sign() -> None:
    one = row("packet guest, IPv4: sign → ToR FIB, p50", GOOD, SILENT)
    assert (one.ours, one.peer, one.ratio) == (2, 900, 450)
    one = row(
        "packet guest, IPv4: loss beyond the guest's own blackout, from the ToR, p50", GOOD, SILENT
    )
    assert (one.ours, one.peer) == (3, 950)


def test_an_agents_death_costs_what_is_more_than_usual() -> None:
    killed = replace(GOOD, sort=Sort.KILLED.value, loss_ms={**GOOD.loss_ms, THIRD: 103.0})
    what = "agent killed at a random moment: extra loss, p50"
    assert row(what, GOOD, killed).ours == 100
    assert row(what, GOOD, killed).met
    worse = replace(killed, loss_ms={**GOOD.loss_ms, THIRD: 103.1})
    assert not row(what, GOOD, worse).met
    assert row(what, GOOD, replace(killed, loss_ms={})).ours == NEVER_MS - 3
    ended = replace(killed, sort=Sort.ENDED.value, loss_ms={**GOOD.loss_ms, THIRD: 2403.0})
    what = "agent and keeper killed at a random moment: extra loss, p99"
    assert row(what, GOOD, killed, ended).ours == 2400
    assert row(what, GOOD, killed, ended).met


def test_qemus_migrations_have_rows_of_their_own() -> None:
    rows = rows_of([replace(GOOD, sort=Sort.QEMU.value)], 3)
    assert rows
    assert all(one.what.startswith("QEMU, IPv") for one in rows)


def test_the_worst_of_99_in_100() -> None:
    assert p99(range(1, 101)) == 99
    assert p99([5.0, 1.0]) == 5
    assert p99(range(1, 201)) == 198


def test_sorts_take_turns() -> None:
    plan = Numbers(8, 3, 2, 5, ended=2).plan()
    assert [plan.count(sort) for sort in Sort] == [8, 0, 2, 2, 0]
    for sort in (Sort.KILLED, Sort.ENDED):
        assert sort in plan[:6]
        assert sort in plan[6:]
