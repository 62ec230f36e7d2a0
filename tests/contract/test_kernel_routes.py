"""One suite for the kernel port, in memory and in real namespaces (root): routes."""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network, IPv6Network, ip_address

import pytest

from libtortie.errors import KernelError, NotFound
from libtortie.linux.port import (
    Kernel,
    Route,
    RouteProto,
    RouteType,
)
from tests.fakes.veth import VM, VM6, pair_to, vm_route

# Routes


def test_metric_is_part_of_the_key(host: Kernel, pod_path: str) -> None:
    """A raised route is a second route: replacing at 512 leaves the one at 1024."""
    host.ensure_veth(pair_to(pod_path))
    host.ensure_route(vm_route(1024))
    host.ensure_route(vm_route(512))
    host.ensure_route(vm_route(512))
    assert set(host.routes()) == {vm_route(512), vm_route(1024)}
    assert host.delete_route(vm_route(1024)) is True
    assert host.routes() == (vm_route(512),)
    assert host.delete_route(vm_route(1024)) is False
    assert host.routes() == (vm_route(512),)


def test_routes_of_both_families_are_made_together(host: Kernel, pod_path: str) -> None:
    """One that is refused keeps no other from being made, wherever it stands."""
    host.ensure_veth(pair_to(pod_path))
    four = vm_route(512)
    six = Route(dst=VM6, priority=512, ifname=four.ifname)
    lost = vm_route(1024, "cali9")
    found = host.ensure_routes((lost, four, lost, six))
    assert [type(one) for one in found] == [NotFound, type(None), NotFound, type(None)]
    assert host.routes() == (four,)
    assert [one.priority for one in host.routes(dst=six.dst)] == [512]
    down = pair_to(pod_path, "cali2", "eth1")
    host.ensure_veth(down)
    host.set_link("cali2", up=False)
    refused, made = host.ensure_routes((vm_route(100, "cali2"), vm_route(200)))
    assert isinstance(refused, KernelError)
    assert made is None
    assert host.ensure_routes(()) == ()


def test_a_route_with_the_same_key_is_replaced(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path, "cali1", "eth0"))
    host.ensure_veth(pair_to(pod_path, "cali2", "eth1"))
    host.ensure_route(vm_route(1024, "cali1"))
    host.ensure_route(vm_route(1024, "cali2", RouteProto.TORTIE))
    assert host.routes() == (vm_route(1024, "cali2", RouteProto.TORTIE),)


def test_a_deletion_with_a_link_spares_what_points_elsewhere(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path, "cali1", "eth0"))
    host.ensure_veth(pair_to(pod_path, "cali2", "eth1"))
    host.ensure_route(vm_route(1024, "cali2"))
    assert host.delete_route(vm_route(1024, "cali1")) is False
    assert host.delete_route(vm_route(1024, "cali9")) is False
    assert host.routes() == (vm_route(1024, "cali2"),)
    assert host.delete_route(vm_route(1024, "cali2")) is True
    host.ensure_route(vm_route(1024, "cali2"))
    assert host.delete_route(Route(VM, 1024)) is True
    assert host.routes() == ()


def test_a_deletion_looks_at_the_key_only(host: Kernel, pod_path: str) -> None:
    """Whoever wrote it, with whatever protocol, type and scope."""
    host.ensure_veth(pair_to(pod_path))
    host.ensure_route(vm_route(1024, proto=RouteProto.STATIC))
    assert host.delete_route(Route(VM, 1024, "cali1", proto=RouteProto.TORTIE)) is True
    host.ensure_route(Route(VM, 1024, type=RouteType.BLACKHOLE))
    assert host.delete_route(Route(VM, 1024)) is True
    assert host.routes() == ()


def test_metric_zero_means_zero(host: Kernel, pod_path: str) -> None:
    """To the kernel a deletion with metric 0 means any metric; not to us."""
    host.ensure_veth(pair_to(pod_path))
    host.ensure_route(vm_route(512))
    assert host.delete_route(vm_route(0)) is False
    host.ensure_route(vm_route(0))
    assert set(host.routes()) == {vm_route(0), vm_route(512)}
    assert host.delete_route(vm_route(0)) is True
    assert host.routes() == (vm_route(512),)


def test_ipv6_routes(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    host.ensure_route(Route(VM6, 1024, "cali1"))
    host.ensure_route(Route(VM6, 512, "cali1"))
    host.ensure_route(Route(VM6, 512, "cali1", proto=RouteProto.TORTIE))
    assert set(host.routes(version=6, dst=VM6)) == {
        Route(VM6, 1024, "cali1"),
        Route(VM6, 512, "cali1", proto=RouteProto.TORTIE),
    }
    assert host.delete_route(Route(VM6, 1024, "cali1")) is True
    assert host.delete_route(Route(VM6, 1024, "cali1")) is False
    assert [route.priority for route in host.routes(dst=VM6)] == [512]


def test_an_ipv6_metric_of_zero_is_1024(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    host.ensure_route(Route(VM6, 0, "cali1"))
    assert host.routes(dst=VM6) == (Route(VM6, 1024, "cali1"),)
    host.ensure_route(Route(VM6, 512, "cali1"))
    assert host.delete_route(Route(VM6, 0, "cali1")) is True
    assert host.routes(dst=VM6) == (Route(VM6, 512, "cali1"),)


def test_every_field_survives(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    host.ensure_address("cali1", IPv4Interface("10.99.0.1/24"))
    gateway = ip_address("10.99.0.7")
    far_gateway = ip_address("169.254.1.1")
    six_gateway = ip_address("fe80::1")
    wanted = {
        Route(IPv4Network("0.0.0.0/0"), 7, "cali1", far_gateway, RouteProto.STATIC, onlink=True),
        Route(IPv4Network("10.1.0.0/16"), 768, "cali1", gateway, RouteProto.BIRD),
        Route(IPv4Network("10.65.0.0/26"), 1024, proto=RouteProto.TORTIE, type=RouteType.BLACKHOLE),
        Route(IPv4Network("10.2.0.0/16"), 3, "cali1", proto=RouteProto.TORTIE),
        Route(IPv4Network("10.3.0.0/16"), 0, "cali1", link_scope=True),
    }
    for route in wanted:
        host.ensure_route(route)
    assert {each for each in host.routes() if each.proto != RouteProto.KERNEL} == wanted
    wanted6 = {
        Route(IPv6Network("::/0"), 5, "cali1", six_gateway, RouteProto.STATIC, onlink=True),
        Route(IPv6Network("fd00:65::/64"), 77, type=RouteType.BLACKHOLE),
    }
    for route in wanted6:
        host.ensure_route(route)
    assert {each for each in host.routes(version=6) if each.proto != RouteProto.KERNEL} == wanted6


def test_tables_are_apart(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    low = Route(VM, 10, "cali1", table=100)
    high = Route(VM, 10, "cali1", table=100_000)
    host.ensure_route(low)
    host.ensure_route(high)
    assert host.routes() == ()
    assert host.routes(table=100) == (low,)
    assert host.routes(table=100_000) == (high,)
    assert host.routes(table=101) == host.routes(table=101, version=6) == ()
    assert host.delete_route(Route(VM, 10, "cali1")) is False
    assert host.delete_route(Route(VM, 10, "cali1", table=101)) is False
    assert host.delete_route(high) is True
    assert host.routes(table=100) == (low,)


def test_routes_by_destination_and_by_link(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path, "cali1", "eth0"))
    host.ensure_veth(pair_to(pod_path, "cali2", "eth1"))
    default = Route(IPv4Network("0.0.0.0/0"), 9, "cali2", link_scope=True)
    wider = Route(IPv4Network("10.65.0.2/31"), 9, "cali1", link_scope=True)
    for route in (default, wider, vm_route(1024, "cali1"), vm_route(512, "cali2")):
        host.ensure_route(route)
    assert set(host.routes(dst=VM)) == {vm_route(1024, "cali1"), vm_route(512, "cali2")}
    assert host.routes(dst=wider.dst) == (wider,)
    assert host.routes(dst=default.dst) == (default,)
    assert host.routes(dst=IPv4Network("10.65.0.3/32")) == ()
    assert set(host.routes(ifname="cali2")) == {default, vm_route(512, "cali2")}
    assert host.routes(ifname="cali2", dst=VM) == (vm_route(512, "cali2"),)
    assert host.routes(ifname="cali9") == ()


def test_a_route_needs_its_link(host: Kernel, pod_path: str) -> None:
    with pytest.raises(NotFound, match="cali1"):
        host.ensure_route(vm_route(1024))
    host.ensure_veth(pair_to(pod_path))
    host.set_link("cali1", up=False)
    with pytest.raises(KernelError, match=r"10\.65\.0\.2/32"):
        host.ensure_route(vm_route(1024))
    assert host.routes() == ()


def test_routes_go_with_their_link(host: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    host.ensure_route(vm_route(1024))
    host.set_link("cali1", up=False)
    assert host.routes() == ()
    host.set_link("cali1", up=True)
    host.ensure_route(vm_route(512))
    host.delete_link("cali1")
    assert host.routes() == ()
