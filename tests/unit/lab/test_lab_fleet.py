"""A VM's moves about a large cluster: what is made of what was seen, and when a row is met."""

from __future__ import annotations

import pytest

from lab.bench import Numbers
from lab.bench_rows import NEVER_MS
from lab.clock import NS_PER_MS
from lab.fleet import Move, fleet_rows, move_of
from lab.observers import FrameSeen, Holder, RouteSeen, Seen

TARGET = "172.31.0.13"
TARGET6 = "fd00:31::13"
SIGN_MS = 1000


def route(ms: float, where: str, gateway: str = TARGET, **known: object) -> RouteSeen:
    at = int((SIGN_MS + ms) * NS_PER_MS)
    fields = {"added": True, "metric": 768, "ifname": "", "proto": 12, **known}
    return RouteSeen(t_ns=at, where=where, gateway=gateway, **fields)  # type: ignore[arg-type]  # of a dict


SIGN = FrameSeen(SIGN_MS * NS_PER_MS, "node3", "rarp", "cali1")
SEEN: tuple[Seen, ...] = (
    route(-500, "node1"),  # of an earlier stay
    SIGN,
    FrameSeen(SIGN.t_ns + 5 * NS_PER_MS, "node3", "ip", "cali1"),
    route(2, "node3", gateway="", ifname="cali1", metric=512),
    route(9, "node1"),
    route(8, "node2", added=False),
    route(7, "node2", gateway="172.31.0.12"),
    route(12, "node2"),
    route(30, "node2"),
    route(4, "tor"),
)


def test_every_fib_counts_from_the_first_sign_to_the_first_route_to_the_target() -> None:
    move = move_of("node1", "node3", {4: TARGET}, SEEN)
    assert move == Move("node1", "node3", 2.0, {"node1": 9.0, "node2": 12.0, "tor": 4.0})
    assert move.last_ms(3) == 12
    assert move.told(3).endswith("last of 3 of 3 FIBs 12.0 ms, median 9.0 ms")


def test_a_fib_has_followed_when_it_has_in_every_family() -> None:
    other = {"gateway": TARGET6, "version": 6}
    six = (
        route(3, "node3", gateway="", ifname="cali1", metric=512, version=6),
        route(5, "node1", **other),  # type: ignore[arg-type]  # of a dict
        route(20, "tor", **other),  # type: ignore[arg-type]  # of a dict
    )
    move = move_of("node1", "node3", {4: TARGET, 6: TARGET6}, (*SEEN, *six))
    assert move == Move("node1", "node3", 3.0, {"node1": 9.0, "tor": 20.0})
    assert move_of("node1", "node3", {4: TARGET, 6: TARGET6}, SEEN) == Move("node1", "node3", None)


def test_without_a_sign_nothing_is_claimed() -> None:
    move = move_of("node1", "node3", {4: TARGET}, [one for one in SEEN if one.kind == "route"])
    assert move == Move("node1", "node3", None)
    assert move.last_ms(3) == NEVER_MS


def test_a_fib_that_does_not_follow_is_never() -> None:
    lagging = [one for one in SEEN if one.where != "node2"]
    move = move_of("node1", "node3", {4: TARGET}, lagging)
    assert move.last_ms(3) == NEVER_MS
    (p50, p99) = fleet_rows([move], 3)
    assert not p50.met
    assert not p99.met


@pytest.mark.parametrize(
    ("last", "met"),
    [
        ([49.0, 50.0, 150.0], [True, True]),
        ([50.1, 51, 49], [False, True]),
        ([9, 9, 151], [True, False]),
    ],
)
def test_the_rows_are_of_the_last_fib_of_each_move(last: list[float], met: list[bool]) -> None:
    moves = [Move("node1", "node2", 1.0, {"node1": 1.0, "node3": ms, "tor": 2.0}) for ms in last]
    rows = fleet_rows(moves, 3)
    assert [row.met for row in rows] == met
    assert rows[0].what == "3 nodes by 2 route reflectors: sign → every FIB, p50"
    assert fleet_rows([], 0) == []


def test_a_bench_of_the_fleet_alone_starts_no_small_lab() -> None:
    assert not Numbers(0, 0, 0, 0, 30, 100).small
    assert Numbers(0, 0, 0, 1).small
    assert Numbers(0, 0, 0, 0, ended=1).small


def test_who_watches_tells_later_and_loses_nothing() -> None:
    told: list[Seen] = []
    now = [10.0]
    holder = Holder(told.append, 0.3, lambda: now[0])
    assert holder.patience() is None
    holder.take(SEEN[0])
    holder.release()
    now[0] += 0.2
    holder.take(SIGN)
    assert holder.patience() == pytest.approx(0.1)
    holder.release()
    assert told == []
    now[0] += 0.11
    holder.release()
    assert told == [SEEN[0], SIGN]
    assert holder.patience() is None
    holder.take(SEEN[2])
    holder.release(whatever=True)
    assert told == [SEEN[0], SIGN, SEEN[2]]


def test_without_a_delay_it_tells_at_once() -> None:
    told: list[Seen] = []
    holder = Holder(told.append, 0.0)
    holder.take(SIGN)
    assert told == [SIGN]
    assert holder.patience() is None
