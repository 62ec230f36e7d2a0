"""The route driver's view of the kernel: late notices, old surveys, make before break."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from felix_shim.drivers.routetable import RouteTable
from libtortie.linux.port import Route, RouteProto
from tests.fakes.by_hand import Clock
from tests.fakes.kernel import FakeKernel

DST = ip_network("10.65.0.2/32")
NORMAL = Route(DST, 1024, ifname="cali1", link_scope=True)
RAISED = replace(NORMAL, priority=512)
LEARNED = Route(DST, 768, ifname="up0", gateway=ip_address("192.0.2.1"), proto=RouteProto.BIRD)


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    made.add_link("cali1")
    made.add_link("up0")
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(kernel: FakeKernel, clock: Clock) -> RouteTable:
    return RouteTable(kernel, clock)


def test_raise_adds_before_it_deletes(table: RouteTable, kernel: FakeKernel) -> None:
    table.apply({DST: frozenset({NORMAL})})
    kernel.namespaces.changes.clear()
    (outcome,) = table.apply({DST: frozenset({RAISED})})
    assert (outcome.added, outcome.deleted) == ((RAISED,), (NORMAL,))
    assert [name for name, _ in kernel.namespaces.changes] == ["ensure_route", "delete_route"]
    assert kernel.routes(dst=DST) == (RAISED,)


def test_applying_twice_changes_nothing(table: RouteTable, kernel: FakeKernel) -> None:
    table.apply({DST: frozenset({NORMAL})})
    kernel.namespaces.changes.clear()
    table.apply({DST: frozenset({NORMAL})})
    assert kernel.namespaces.changes == []


def test_a_failed_add_deletes_nothing(table: RouteTable, kernel: FakeKernel) -> None:
    table.apply({DST: frozenset({NORMAL})})
    kernel.delete_link("cali1")
    (outcome,) = table.apply({DST: frozenset({RAISED})})
    assert outcome.error
    assert outcome.deleted == ()


def test_our_own_notices_tell_nothing_new(table: RouteTable) -> None:
    table.apply({DST: frozenset({NORMAL})})
    assert not table.observe(NORMAL, present=True)
    table.apply({DST: frozenset()})
    assert not table.observe(NORMAL, present=False)


def test_a_foreign_deletion_is_noticed(table: RouteTable) -> None:
    table.apply({DST: frozenset({NORMAL})})
    assert table.observe(NORMAL, present=False)
    assert table.actual(DST) == ()


def test_the_notice_of_a_replaced_route_takes_nothing_away(table: RouteTable) -> None:
    table.apply({DST: frozenset({NORMAL})})
    assert not table.observe(replace(NORMAL, ifname="cali2"), present=False)
    assert table.actual(DST) == (NORMAL,)


def test_a_survey_older_than_a_change_does_not_undo_it(table: RouteTable, clock: Clock) -> None:
    began = clock.now
    clock.now += 1
    table.apply({DST: frozenset({RAISED})})
    table.survey((NORMAL,), began)
    assert RAISED in table.actual(DST)


def test_a_newer_survey_is_believed(table: RouteTable, clock: Clock) -> None:
    table.apply({DST: frozenset({RAISED})})
    clock.now += 1
    assert DST in table.survey((NORMAL,), clock.now)
    assert table.actual(DST) == (NORMAL,)


def test_learned_routes_are_seen_and_never_touched(table: RouteTable, kernel: FakeKernel) -> None:
    kernel.ensure_route(LEARNED)
    assert table.observe(LEARNED, present=True)
    assert table.learned(DST) == LEARNED
    table.apply({DST: frozenset()})
    assert kernel.routes(dst=DST) == (LEARNED,)
    assert table.observe(LEARNED, present=False)
    assert table.learned(DST) is None


def test_aggregates_and_other_tables_are_nobodys_business(table: RouteTable) -> None:
    assert not table.observe(replace(NORMAL, dst=ip_network("10.65.0.0/26")), present=True)
    assert not table.observe(replace(NORMAL, table=100), present=True)


def test_a_link_takes_its_routes_along(table: RouteTable) -> None:
    table.apply({DST: frozenset({NORMAL})})
    assert table.link_gone("cali2") == frozenset()
    assert table.link_gone("cali1") == {DST}
    assert table.actual(DST) == ()


def test_what_is_refused_to_one_address_keeps_no_other_from_changing(table: RouteTable) -> None:
    other = replace(RAISED, dst=ip_network("fd65::2/128"), link_scope=False)
    lost = replace(RAISED, ifname="cali-is-not-there")
    table.apply({DST: frozenset({NORMAL}), other.dst: frozenset()})
    outcomes = table.apply({DST: frozenset({lost}), other.dst: frozenset({other})})
    assert [(one.dst, one.added, bool(one.error)) for one in outcomes] == [
        (DST, (), True),
        (other.dst, (other,), False),
    ]
    assert (table.actual(DST), table.actual(other.dst)) == ((NORMAL,), (other,))
