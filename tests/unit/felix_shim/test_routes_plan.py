"""Which routes, and in what order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim.migration import State
from felix_shim.model import Endpoint, EndpointId
from felix_shim.routes import Priorities, desired_routes, is_ours, plan_routes, route_priority
from libtortie.linux.port import IPNetwork, Route, RouteProto, RouteType

DEFAULT = Priorities()


def endpoint(interface: str, *addresses: str) -> Endpoint:
    return Endpoint(
        id=EndpointId("default", interface),
        orchestrator="k8s",
        workload=f"default/{interface}",
        interface=interface,
        mac="02:00:00:00:00:01",
        addresses=tuple(map(ip_address, addresses)),
        container_id="c",
    )


def route(interface: str, metric: int, dst: str = "10.65.0.2/32") -> Route:
    return Route(dst=ip_network(dst), priority=metric, ifname=interface, link_scope=True)


@pytest.mark.parametrize(
    ("state", "metric"),
    [
        (State.BASE, 1024),
        (State.LIVE, 512),
        (State.TIME_WAIT, 512),
        (State.TARGET, None),
        (State.SUPPRESSED, None),
        (State.DEPARTED, None),
        (State.ENDED, None),
    ],
)
def test_priorities(state: State, metric: int | None) -> None:
    assert route_priority(state, DEFAULT) == metric


@pytest.mark.parametrize(("normal", "elevated"), [(512, 1024), (513, 512), (512, 512), (3, 0)])
def test_priorities_that_leave_no_metric_between_them_are_refused(
    normal: int, elevated: int
) -> None:
    with pytest.raises(ValueError, match="priorit"):
        Priorities(normal=normal, elevated=elevated)


@given(st.integers(1, 2147483644), st.integers(2, 1000))
def test_birds_metric_is_neither_of_ours(elevated: int, distance: int) -> None:
    normal = elevated + distance
    if normal <= 2147483646:
        assert elevated < Priorities(normal=normal, elevated=elevated).bird < normal


def test_desired_routes_of_both_families() -> None:
    routes = desired_routes(
        [(endpoint("cali1", "10.65.0.2", "fd00::2"), State.LIVE)],
        DEFAULT,
        ipv6=Priorities(normal=2000, elevated=1000),
    )
    assert {(str(one.dst), one.priority, one.link_scope) for one in routes} == {
        ("10.65.0.2/32", 512, True),
        ("fd00::2/128", 1000, False),
    }


def test_two_claims_on_one_key_are_decided_without_order() -> None:
    claims = [(endpoint(name, "10.65.0.2"), State.BASE) for name in ("cali2", "cali1", "cali3")]
    results = {desired_routes(order, DEFAULT) for order in itertools.permutations(claims)}
    assert results == {frozenset({route("cali1", 1024)})}


def test_a_raise_is_made_before_it_is_broken() -> None:
    adds, deletes = plan_routes({route("cali1", 512)}, [route("cali1", 1024)])
    assert (adds, deletes) == ([route("cali1", 512)], [route("cali1", 1024)])


def test_a_route_that_moves_to_another_interface_is_replaced_not_deleted() -> None:
    adds, deletes = plan_routes({route("cali2", 1024)}, [route("cali1", 1024)])
    assert (adds, deletes) == ([route("cali2", 1024)], [])


def test_only_host_routes_on_workload_veths_are_ours() -> None:
    ours = route("cali1", 1024)
    foreign = [
        replace(ours, ifname="eth0"),
        replace(ours, dst=ip_network("10.65.0.0/26")),
        replace(ours, table=100),
        replace(ours, proto=RouteProto.KERNEL),
        replace(ours, ifname="", type=RouteType.BLACKHOLE),
    ]
    assert is_ours(ours)
    assert is_ours(replace(ours, proto=RouteProto.STATIC, priority=7))
    assert not is_ours(replace(ours, proto=RouteProto.BIRD)), "learned from a workload"
    assert plan_routes(frozenset(), [ours, *foreign]) == ([], [ours])


routes = st.builds(
    route,
    st.sampled_from(["cali1", "cali2", "eth0"]),
    st.sampled_from([512, 768, 1024]),
    st.sampled_from(["10.65.0.2/32", "10.65.0.3/32", "10.65.0.0/26"]),
)


def apply(
    kernel: dict[tuple[IPNetwork, int], Route], adds: list[Route], deletes: list[Route]
) -> None:
    for one in adds:
        kernel[one.dst, one.priority] = one
    for one in deletes:
        if kernel.get((one.dst, one.priority)) == one:
            del kernel[one.dst, one.priority]


@given(st.lists(routes), st.lists(routes))
def test_the_plan_leads_there_never_leaves_a_gap_and_is_done_once(
    wanted: list[Route], present: list[Route]
) -> None:
    desired = frozenset({(one.dst, one.priority): one for one in wanted if is_ours(one)}.values())
    kernel = {(one.dst, one.priority): one for one in present}
    foreign = {key: one for key, one in kernel.items() if not is_ours(one)}
    kept = {one.dst for one in desired} & {one.dst for one in kernel.values()}
    adds, deletes = plan_routes(desired, list(kernel.values()))
    for count in range(len(adds) + len(deletes) + 1):
        partial = dict(kernel)
        apply(partial, adds[:count], deletes[: max(0, count - len(adds))])
        assert kept <= {one.dst for one in partial.values()}
    apply(kernel, adds, deletes)
    assert desired <= frozenset(kernel.values())
    assert {one for one in kernel.values() if is_ours(one)} == desired
    assert {key for key in foreign if key not in kernel} == set()
    assert plan_routes(desired, list(kernel.values())) == ([], [])
