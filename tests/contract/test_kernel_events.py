"""One suite for the kernel port, in memory and real (root): sysctls, events, namespaces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from libtortie.errors import InvalidInput, KernelError, NotFound
from libtortie.linux.port import (
    Kernel,
    LinkChanged,
    LinkGone,
    NetworkEvent,
    Route,
    RouteAdded,
    RouteGone,
)
from tests.contract.conftest import World
from tests.fakes.patience import PATIENCE
from tests.fakes.veth import HOST_MAC, VM6, pair_to, vm_route


def next_event(
    events: Iterator[NetworkEvent], wanted: Callable[[NetworkEvent], bool], kernel: Kernel
) -> tuple[NetworkEvent, list[NetworkEvent]]:
    """The first wanted event and those before it; a watchdog closes the kernel in the end."""
    watchdog = threading.Timer(PATIENCE, kernel.close)
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
    assert ended.wait(60)
    thread.join(60)
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
