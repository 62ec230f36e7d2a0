"""One suite for the kernel and namespace ports: in memory, and in real namespaces (root)."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_address
from typing import Protocol

import pytest

from libtortie.errors import InvalidInput, KernelError, NotFound
from libtortie.linux import netns, topology
from libtortie.linux.netns import Netns
from libtortie.linux.port import (
    Kernel,
    LinkChanged,
    LinkGone,
    Namespaces,
    NetworkEvent,
    Route,
    RouteAdded,
    RouteGone,
    RouteProto,
    RouteType,
    VethPair,
)
from tests.fakes.kernel import FakeKernel, FakeNamespaces

HOST_MAC = "ee:ee:ee:ee:ee:ee"
POD_MAC = "02:00:00:00:00:01"
VM = IPv4Network("10.65.0.2/32")
VM6 = IPv6Network("fd00:65::2/128")
_serial = itertools.count()


class World(Protocol):
    """A machine to test on."""

    namespaces: Namespaces

    def create(self, name: str) -> str: ...
    def alias(self, path: str) -> str: ...
    def bridge(self, path: str, name: str) -> None: ...
    def close(self) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        self.fake = FakeNamespaces()
        self.namespaces: Namespaces = self.fake

    def create(self, name: str) -> str:
        return self.fake.create(f"/fake/{name}")

    def alias(self, path: str) -> str:
        return self.fake.alias(f"{path}-alias", path)

    def bridge(self, path: str, name: str) -> None:
        FakeKernel(self.fake, path).add_link(name)

    def close(self) -> None:
        pass


class RealWorld:
    def __init__(self) -> None:
        self.namespaces: Namespaces = Netns()
        self._paths: list[str] = []
        self._held: list[int] = []

    def create(self, name: str) -> str:
        path = netns.create(f"tt-{os.getpid()}-{next(_serial)}-{name}")
        self._paths.append(path)
        topology.set_up(path, "lo")  # without any address the kernel has no local table
        return path

    def alias(self, path: str) -> str:
        self._held.append(os.open(path, os.O_RDONLY))
        return f"/proc/{os.getpid()}/fd/{self._held[-1]}"

    def bridge(self, path: str, name: str) -> None:
        topology.ensure_bridge(path, name)

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)
        for path in self._paths:
            netns.delete(path)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.root)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: World = FakeWorld() if request.param == "fake" else RealWorld()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def host_path(world: World) -> str:
    return world.create("host")


@pytest.fixture
def pod_path(world: World) -> str:
    return world.create("pod")


@pytest.fixture
def host(world: World, host_path: str) -> Iterator[Kernel]:
    kernel = world.namespaces.open(host_path)
    try:
        yield kernel
    finally:
        kernel.close()


@pytest.fixture
def pod(world: World, pod_path: str) -> Iterator[Kernel]:
    kernel = world.namespaces.open(pod_path)
    try:
        yield kernel
    finally:
        kernel.close()


def pair_to(path: str, host_name: str = "cali1", pod_name: str = "eth0") -> VethPair:
    return VethPair(host_name, HOST_MAC, pod_name, path, 1440, POD_MAC)


def names(kernel: Kernel) -> set[str]:
    return {link.name for link in kernel.links()}


def vm_route(priority: int, ifname: str = "cali1", proto: int = RouteProto.BOOT) -> Route:
    return Route(VM, priority, ifname, proto=proto, link_scope=True)


def next_event(
    events: Iterator[NetworkEvent], wanted: Callable[[NetworkEvent], bool], kernel: Kernel
) -> tuple[NetworkEvent, list[NetworkEvent]]:
    """The first wanted event and those before it; a watchdog closes the kernel after 10 s."""
    watchdog = threading.Timer(10, kernel.close)
    watchdog.start()
    seen: list[NetworkEvent] = []
    try:
        for event in events:
            if wanted(event):
                return event, seen
            seen.append(event)
        raise AssertionError(f"no such event among {seen}")
    finally:
        watchdog.cancel()


# Links


def test_a_fresh_namespace_has_loopback_only(host: Kernel) -> None:
    assert names(host) == {"lo"}
    lo = host.link("lo")
    assert lo is not None
    assert lo.ifindex == 1
    assert host.link("eth0") is None
    assert host.link("a-name-no-link-can-have") is None
    assert host.link("") is None


def test_veth_ends_are_born_where_they_belong(host: Kernel, pod: Kernel, pod_path: str) -> None:
    near, far = host.ensure_veth(pair_to(pod_path))
    assert (near.name, near.mac, near.mtu, near.up, near.kind) == (
        "cali1",
        HOST_MAC,
        1440,
        True,
        "veth",
    )
    assert (far.name, far.mac, far.mtu, far.up) == ("eth0", POD_MAC, 1440, True)
    assert (near.peer_ifindex, far.peer_ifindex) == (far.ifindex, near.ifindex)
    assert names(host) == {"lo", "cali1"}
    assert names(pod) == {"lo", "eth0"}
    assert host.link("cali1") == near
    assert pod.link("eth0") == far


def test_macs_are_lower_case_and_may_be_the_kernels_choice(host: Kernel, pod_path: str) -> None:
    pair = VethPair("cali1", "EE:EE:EE:EE:EE:EE", "eth0", pod_path, 1500)
    near, far = host.ensure_veth(pair)
    assert near.mac == HOST_MAC
    assert len(far.mac) == 17
    assert far.mac not in ("00:00:00:00:00:00", HOST_MAC)
    assert host.ensure_veth(pair) == (near, far)


def test_ensure_veth_again_finds_the_pair(host: Kernel, pod_path: str) -> None:
    first = host.ensure_veth(pair_to(pod_path))
    assert host.ensure_veth(pair_to(pod_path)) == first


def test_ensure_veth_corrects_the_pair_in_place(host: Kernel, pod: Kernel, pod_path: str) -> None:
    near, far = host.ensure_veth(pair_to(pod_path))
    host.set_link("cali1", up=False, mac="02:00:00:00:00:99")
    pod.set_link("eth0", mtu=1300, up=False)
    assert host.ensure_veth(pair_to(pod_path)) == (near, far)


def test_a_leftover_into_another_namespace_is_replaced(
    world: World, host: Kernel, pod: Kernel, pod_path: str
) -> None:
    old = world.create("old")
    host.ensure_veth(pair_to(old))
    host.ensure_veth(pair_to(pod_path))
    assert names(pod) == {"lo", "eth0"}
    old_kernel = world.namespaces.open(old)
    assert names(old_kernel) == {"lo"}
    old_kernel.close()


def test_a_pair_is_told_by_namespace_not_by_index(
    world: World, host: Kernel, pod: Kernel, pod_path: str
) -> None:
    """Two fresh pods' ends have equal indices; the second pod's link is none of ours."""
    other = world.create("other")
    host.ensure_veth(pair_to(other, "cali2"))
    before = host.link("cali2")
    _, far = host.ensure_veth(pair_to(pod_path, "cali1"))
    assert before is not None
    assert before.peer_ifindex == far.ifindex
    with pytest.raises(KernelError):
        host.ensure_veth(pair_to(other, "cali1"))
    assert host.link("cali2") == before
    other_kernel = world.namespaces.open(other)
    assert names(other_kernel) == {"lo", "eth0"}
    other_kernel.close()


def test_a_name_taken_by_another_kind_is_left_alone(
    world: World, host: Kernel, host_path: str, pod: Kernel, pod_path: str
) -> None:
    world.bridge(host_path, "cali1")
    bridge = host.link("cali1")
    with pytest.raises(KernelError, match=r"cali1.*bridge"):
        host.ensure_veth(pair_to(pod_path))
    assert host.link("cali1") == bridge
    assert names(pod) == {"lo"}


def test_a_pods_own_link_of_that_name_is_left_alone(
    world: World, host: Kernel, pod: Kernel, pod_path: str
) -> None:
    world.bridge(pod_path, "eth0")
    with pytest.raises(KernelError, match="eth0"):
        host.ensure_veth(pair_to(pod_path))
    assert names(host) == {"lo"}
    assert pod.link("eth0") is not None


def test_a_pair_in_use_under_another_name_is_left_alone(
    host: Kernel, pod: Kernel, pod_path: str
) -> None:
    """KubeVirt renames a VM pod's eth0; a late second ADD must not cut the VM off."""
    host.ensure_veth(pair_to(pod_path, pod_name="eth0-nic"))
    with pytest.raises(KernelError, match="eth0"):
        host.ensure_veth(pair_to(pod_path))
    assert names(pod) == {"lo", "eth0-nic"}


def test_no_veth_into_a_missing_namespace(host: Kernel) -> None:
    with pytest.raises(NotFound):
        host.ensure_veth(pair_to("/run/netns/tt-there-is-none"))
    assert names(host) == {"lo"}


def test_no_veth_into_the_hosts_own_namespace(world: World, host: Kernel, host_path: str) -> None:
    with pytest.raises(KernelError, match="own"):
        host.ensure_veth(pair_to(world.alias(host_path)))
    assert names(host) == {"lo"}


def test_a_link_name_too_long_is_refused(host: Kernel, pod: Kernel, pod_path: str) -> None:
    with pytest.raises(InvalidInput):
        host.ensure_veth(pair_to(pod_path, host_name="cali-sixteen-car"))
    assert names(host) == names(pod) == {"lo"}


def test_deleting_one_end_deletes_both(host: Kernel, pod: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    assert host.delete_link("cali1") is True
    assert host.delete_link("cali1") is False
    assert names(host) == names(pod) == {"lo"}


def test_what_cannot_be_deleted_says_so(host: Kernel) -> None:
    with pytest.raises(KernelError, match="lo"):
        host.delete_link("lo")


def test_set_link_changes_only_what_is_given(host: Kernel, pod_path: str) -> None:
    near, _ = host.ensure_veth(pair_to(pod_path))
    host.set_link("cali1", mtu=1300)
    host.set_link("cali1", mac="02:AA:00:00:00:01")
    changed = host.link("cali1")
    assert changed is not None
    assert (changed.mtu, changed.mac, changed.up) == (1300, "02:aa:00:00:00:01", True)
    host.set_link("cali1", up=False)
    down = host.link("cali1")
    assert down is not None
    assert (down.up, down.mtu, down.ifindex) == (False, 1300, near.ifindex)


def test_a_port_joins_and_leaves_a_bridge(
    world: World, host: Kernel, host_path: str, pod_path: str
) -> None:
    world.bridge(host_path, "br0")
    host.ensure_veth(pair_to(pod_path))
    bridge = host.link("br0")
    assert bridge is not None
    host.set_link("cali1", master="br0")
    port = host.link("cali1")
    assert port is not None
    assert port.master == bridge.ifindex
    host.set_link("cali1", master="")
    port = host.link("cali1")
    assert port is not None
    assert port.master == 0


def test_set_link_names_what_is_missing(host: Kernel, pod_path: str) -> None:
    with pytest.raises(NotFound, match="cali1"):
        host.set_link("cali1", up=True)
    host.ensure_veth(pair_to(pod_path))
    with pytest.raises(NotFound, match="br0"):
        host.set_link("cali1", master="br0")


# Addresses


def test_addresses_of_both_families(host: Kernel, pod: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    wanted = (IPv4Interface("10.65.0.2/32"), IPv6Interface("fd00:65::2/128"))
    for address in (*wanted, *wanted):
        pod.ensure_address("eth0", address)
    held = [address for address in pod.addresses("eth0") if not address.ip.is_link_local]
    assert sorted(map(str, held)) == sorted(map(str, wanted))
    assert not [each for each in host.addresses("cali1") if not each.ip.is_link_local]


def test_addresses_of_a_missing_link(host: Kernel) -> None:
    with pytest.raises(NotFound, match="eth9"):
        host.addresses("eth9")
    with pytest.raises(NotFound, match="eth9"):
        host.ensure_address("eth9", IPv4Interface("10.0.0.1/32"))


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


# Sysctls


def test_sysctls_belong_to_a_namespace(host: Kernel, pod: Kernel, pod_path: str) -> None:
    host.ensure_veth(pair_to(pod_path))
    name = "net/ipv4/conf/cali1/proxy_arp"
    assert host.read_sysctl(name) == "0"
    host.write_sysctl(name, "1")
    host.write_sysctl(name, "1")
    assert host.read_sysctl(name) == "1"
    with pytest.raises(NotFound, match="cali1"):
        pod.read_sysctl(name)
    pod.write_sysctl("net/ipv4/conf/all/rp_filter", "2")
    assert pod.read_sysctl("net/ipv4/conf/all/rp_filter") == "2"
    assert host.read_sysctl("net/ipv4/conf/all/rp_filter") != "2"


def test_sysctl_refusals(host: Kernel) -> None:
    with pytest.raises(NotFound, match="cali9"):
        host.write_sysctl("net/ipv4/conf/cali9/rp_filter", "0")
    for name in ("", "/net/ipv4/ip_forward", "net/../kernel/hostname", "net//ipv4", "net/./ipv4"):
        with pytest.raises(InvalidInput):
            host.read_sysctl(name)
    with pytest.raises(KernelError, match="ip_forward"):
        host.write_sysctl("net/ipv4/ip_forward", "perhaps")


# Events


def test_events_start_at_the_call(host: Kernel, pod_path: str) -> None:
    events = host.events()
    near, _ = host.ensure_veth(pair_to(pod_path))
    host.ensure_route(vm_route(1024))
    host.ensure_route(Route(VM6, 512, "cali1"))
    host.delete_route(vm_route(1024))
    up, _ = next_event(events, lambda e: isinstance(e, LinkChanged) and e.link.up, host)
    assert isinstance(up, LinkChanged)
    assert (up.link.name, up.link.ifindex, up.link.mac) == ("cali1", near.ifindex, HOST_MAC)
    next_event(events, lambda e: e == RouteAdded(vm_route(1024)), host)
    next_event(events, lambda e: e == RouteAdded(Route(VM6, 512, "cali1")), host)
    next_event(events, lambda e: e == RouteGone(vm_route(1024)), host)
    host.delete_link("cali1")
    next_event(events, lambda e: e == LinkGone("cali1", near.ifindex), host)


def test_ipv4_routes_go_silently_with_their_link(host: Kernel, pod_path: str) -> None:
    """What the kernel does not tell: the link's own change is the only notice."""
    near, _ = host.ensure_veth(pair_to(pod_path))
    host.ensure_route(vm_route(1024))
    events = host.events()
    host.set_link("cali1", up=False)
    host.delete_link("cali1")
    _, before = next_event(events, lambda e: e == LinkGone("cali1", near.ifindex), host)
    assert any(isinstance(event, LinkChanged) and not event.link.up for event in before)
    assert RouteGone(vm_route(1024)) not in before
    assert host.routes() == ()


def test_leaving_a_bridge_is_not_going_away(
    world: World, host: Kernel, host_path: str, pod_path: str
) -> None:
    world.bridge(host_path, "br0")
    near, _ = host.ensure_veth(pair_to(pod_path))
    host.set_link("cali1", master="br0")
    events = host.events()
    host.set_link("cali1", master="")
    host.set_link("cali1", mtu=1234)
    _, before = next_event(
        events, lambda e: isinstance(e, LinkChanged) and e.link.mtu == 1234, host
    )
    assert LinkGone("cali1", near.ifindex) not in before


def test_close_ends_events_at_once(world: World, host_path: str) -> None:
    kernel = world.namespaces.open(host_path)
    events = kernel.events()
    ended = threading.Event()

    def follow() -> None:
        for _ in events:
            pass
        ended.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert not ended.wait(0.05)
    kernel.close()
    assert ended.wait(2)
    thread.join(2)
    assert list(events) == []


def test_two_followers_see_the_same(host: Kernel, pod_path: str) -> None:
    first, second = host.events(), host.events()
    host.ensure_veth(pair_to(pod_path))
    for events in (first, second):
        next_event(events, lambda e: isinstance(e, LinkChanged) and e.link.up, host)


def test_a_closed_adapter_refuses(world: World, host_path: str) -> None:
    kernel = world.namespaces.open(host_path)
    kernel.close()
    kernel.close()
    for use in (kernel.links, lambda: kernel.link("lo"), kernel.events, kernel.routes):
        with pytest.raises(KernelError, match="closed"):
            use()


# Namespaces


def test_identity_of_namespaces(world: World, host_path: str, pod_path: str) -> None:
    """How a plugin sees that a recycled PID's namespace is the host's own."""
    inode = world.namespaces.inode
    assert inode(host_path) is not None
    assert inode(host_path) != inode(pod_path)
    assert inode(world.alias(pod_path)) == inode(pod_path)
    assert inode("") is not None
    assert inode("") not in (inode(host_path), inode(pod_path))
    assert inode("/run/netns/tt-there-is-none") is None


def test_work_inside_hands_back_result_or_exception(world: World, pod_path: str) -> None:
    assert world.namespaces.call(pod_path, lambda: 42) == 42

    def fail() -> None:
        raise ZeroDivisionError("as asked")

    with pytest.raises(ZeroDivisionError, match="as asked"):
        world.namespaces.call(pod_path, fail)


def test_a_missing_namespace_is_not_found(world: World) -> None:
    missing = "/run/netns/tt-there-is-none"
    done: list[int] = []
    with pytest.raises(NotFound, match="tt-there-is-none"):
        world.namespaces.open(missing)
    with pytest.raises(NotFound, match="tt-there-is-none"):
        world.namespaces.call(missing, lambda: done.append(1))
    assert not done
    assert world.namespaces.inode(missing) is None
