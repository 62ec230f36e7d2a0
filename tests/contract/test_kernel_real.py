"""What only the real kernel can show: threads, descriptors, large tables, lost notifications."""

from __future__ import annotations

import gc
import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network, ip_address
from pathlib import Path

import pytest

from libtortie.errors import KernelError, NotFound, Unavailable
from libtortie.linux import netns, space, topology
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.linux.port import (
    LinkChanged,
    Overrun,
    Route,
    RouteAdded,
    RouteProto,
    RouteType,
)
from tests.contract.conftest import RealWorld
from tests.fakes.patience import PATIENCE
from tests.fakes.veth import VM, pair_to

pytestmark = pytest.mark.root

MISSING = "/run/netns/tt-there-is-none"


@pytest.fixture
def world() -> Iterator[RealWorld]:
    with closing(RealWorld()) as made:
        yield made


def own_inode() -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


def blackhole(number: int, priority: int = 768) -> Route:
    dst = IPv4Network((int(ip_address("10.128.0.0")) + number, 32))
    return Route(dst, priority, proto=RouteProto.BIRD, type=RouteType.BLACKHOLE)


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def queues(path: str, ifname: str) -> tuple[int, int]:
    command = ["ip", "-n", Path(path).name, "-d", "link", "show", ifname]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return tuple(int(words[words.index(key) + 1]) for key in ("numtxqueues", "numrxqueues"))  # type: ignore[return-value]  # two keys, two numbers


# Resources


def test_no_descriptor_is_left(paths: tuple[str, str]) -> None:
    names = Netns()

    def once(turn: int) -> None:
        for path in (MISSING, "/proc/self/ns/mnt"):
            with pytest.raises(NotFound):
                names.open(path)
            with pytest.raises(NotFound):
                names.call(path, own_inode)
            assert names.inode(path) is None
        kernel = names.open(paths[0])
        kernel.ensure_veth(pair_to(paths[1]))
        with pytest.raises(NotFound):
            kernel.ensure_veth(pair_to(MISSING))
        with pytest.raises(KernelError):
            kernel.ensure_veth(pair_to(paths[0]))
        events = kernel.events()
        kernel.read_sysctl("net/ipv4/ip_forward")
        if turn % 2:
            events.close()
        kernel.close()

    once(0)
    before, threads = descriptors(), threading.active_count()
    for turn in range(200):
        once(turn)
    assert descriptors() <= before, "fewer: what earlier tests left to their threads"
    assert threading.active_count() <= threads


def test_no_descriptor_is_inherited(paths: tuple[str, str], host: NetlinkKernel) -> None:
    events = host.events()
    command = ["ls", "-l", "/proc/self/fd"]
    listed = subprocess.run(command, check=False, close_fds=False, capture_output=True, text=True)
    assert "/proc/" in listed.stdout
    assert "net:[" not in listed.stdout
    events.close()


def test_a_closed_kernel_lets_its_namespace_go(paths: tuple[str, str]) -> None:
    """Its veth's other end vanishes with it, so an adapter left open would keep a dead pod up."""
    host, pod = NetlinkKernel(paths[0]), NetlinkKernel(paths[1])
    try:
        host.ensure_veth(pair_to(paths[1]))
        netns.delete(paths[1])
        assert host.link("cali1") is not None
        pod.close()
        deadline = time.monotonic() + PATIENCE
        while host.link("cali1") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        pod.close()
        host.close()


# Large tables, races, lost notifications


def test_one_among_thousands_of_routes(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    host.ensure_veth(pair_to(paths[1]))
    alien = [blackhole(number) for number in range(4000)]
    for route in alien:
        host.ensure_route(route)
    ours = Route(alien[1234].dst, 512, "cali1", link_scope=True)
    host.ensure_route(ours)
    assert host.routes(ifname="cali1") == (ours,)
    assert set(host.routes(dst=ours.dst)) == {ours, alien[1234]}
    assert host.routes(dst=IPv4Network("10.127.0.1/32")) == ()
    assert host.routes(dst=alien[-1].dst) == (alien[-1],)
    assert host.delete_route(Route(ours.dst, 1024, "cali1")) is False
    assert host.delete_route(ours) is True
    assert set(host.routes()) == set(alien)


def test_changing_a_route_reads_no_table(
    host: NetlinkKernel, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.ensure_veth(pair_to(paths[1]))

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a dump")

    monkeypatch.setattr("libtortie.linux.channel.Channel.dump", refuse)
    with pytest.raises(AssertionError):
        host.routes()
    route = Route(VM, 512, "cali1", link_scope=True)
    host.ensure_route(route)
    assert host.delete_route(route) is True
    assert host.delete_route(route) is False


def test_lost_notifications_are_told(paths: tuple[str, str]) -> None:
    writer = NetlinkKernel(paths[0])
    reader = NetlinkKernel(paths[0], event_buffer=16384)
    watchdog = threading.Timer(PATIENCE, reader.close)
    watchdog.start()
    try:
        events = reader.events()
        for number in range(500):
            writer.ensure_route(blackhole(number))
        assert any(isinstance(event, Overrun) for event in events)
        topology.ensure_bridge(paths[0], "br-late")
        late = (e.link.name for e in events if isinstance(e, LinkChanged))
        assert any(name == "br-late" for name in late)
    finally:
        watchdog.cancel()
        reader.close()
        writer.close()


def test_default_backlog_holds_a_full_table(host: NetlinkKernel) -> None:
    """BIRD writes thousands of routes in one go while the reader is busy."""
    events = host.events()
    for number in range(3000):
        host.ensure_route(blackhole(number))
    for _, event in zip(range(3000), events, strict=False):
        assert isinstance(event, RouteAdded)
    events.close()


def test_queues_are_given_to_both_ends(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    host.ensure_veth(replace(pair_to(paths[1]), queues=4))
    assert queues(paths[0], "cali1") == (4, 4)
    assert queues(paths[1], "eth0") == (4, 4)


def test_packets_pass(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    """The point of it all: link, addresses and routes carry a datagram."""
    host.ensure_veth(pair_to(paths[1]))
    pod = NetlinkKernel(paths[1])
    try:
        host.ensure_address("cali1", IPv4Interface("169.254.1.1/32"))
        host.ensure_route(Route(VM, 1024, "cali1", link_scope=True))
        pod.ensure_address("eth0", IPv4Interface("10.65.0.2/32"))
        gateway = IPv4Network("169.254.1.1/32")
        pod.ensure_route(Route(gateway, 0, "eth0", link_scope=True))
        pod.ensure_route(Route(IPv4Network("0.0.0.0/0"), 0, "eth0", gateway.network_address))

        def udp() -> socket.socket:
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        with Netns().call(paths[1], udp) as inner, Netns().call(paths[0], udp) as outer:
            inner.bind(("10.65.0.2", 9000))
            inner.settimeout(PATIENCE)
            outer.sendto(b"hello", ("10.65.0.2", 9000))
            assert inner.recv(10) == b"hello"
    finally:
        pod.close()


def test_links_that_come_and_go_under_our_hands(
    host: NetlinkKernel, paths: tuple[str, str]
) -> None:
    """Any outcome is a typed one, and the end state is what the last call asked for."""
    stop = threading.Event()
    surprises: list[BaseException] = []
    route = Route(VM, 1024, "cali1", link_scope=True)

    def disturb() -> None:
        while not stop.is_set():
            try:
                host.delete_link("cali1")
            except BaseException as error:
                surprises.append(error)

    def use() -> None:
        while not stop.is_set():
            for action in (
                lambda: host.ensure_route(route),
                lambda: host.set_link("cali1", mtu=1300),
                lambda: host.addresses("cali1"),
                lambda: host.ensure_address("cali1", IPv4Interface("10.0.0.1/32")),
                lambda: host.write_sysctl("net/ipv4/conf/cali1/proxy_arp", "1"),
                lambda: host.delete_route(route),
                lambda: host.routes(ifname="cali1"),
            ):
                try:
                    action()
                except (NotFound, KernelError):
                    pass
                except BaseException as error:
                    surprises.append(error)

    threads = [threading.Thread(target=each) for each in (disturb, use, use)]
    for thread in threads:
        thread.start()
    made = 0
    ends = time.monotonic() + PATIENCE
    attempts = itertools.count()
    try:
        while next(attempts) < 60 or (not made and time.monotonic() < ends):
            try:
                host.ensure_veth(pair_to(paths[1]))
                made += 1
            except KernelError as error:
                assert "keep appearing" in str(error) or "cali1" in str(error)
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not surprises
    assert made
    near, far = host.ensure_veth(pair_to(paths[1]))
    assert (near.up, far.up) == (True, True)


def test_two_attempts_at_one_pair_make_one_pair(
    host: NetlinkKernel, paths: tuple[str, str]
) -> None:
    results: list[object] = []

    def attempt() -> None:
        try:
            results.append(host.ensure_veth(pair_to(paths[1])))
        except BaseException as error:
            results.append(error)

    for _ in range(10):
        threads = [threading.Thread(target=attempt) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len({repr(result) for result in results}) == 1
        assert isinstance(results[0], tuple)
        results.clear()
        host.delete_link("cali1")


def test_a_foreign_pair_of_one_namespace_is_a_leftover(
    host: NetlinkKernel, paths: tuple[str, str]
) -> None:
    """Both ends still in the node's namespace: what a crashed plugin of the old way leaves."""
    topology.ensure_veth_between((paths[0], "cali1"), (paths[0], "tmp1"))
    near, _ = host.ensure_veth(pair_to(paths[1]))
    assert {link.name for link in host.links()} == {"lo", "cali1"}
    assert near.up


def test_the_kernels_own_words_are_kept(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    host.ensure_veth(pair_to(paths[1]))
    bad = Route(VM, 1, "cali1", gateway=ip_address("10.99.99.99"))
    with pytest.raises(KernelError, match=r"10\.65\.0\.2/32 via 10\.99\.99\.99 dev cali1.*gateway"):
        host.ensure_route(bad)
    with pytest.raises(KernelError, match="mtu=7"):
        host.set_link("cali1", mtu=7)


def test_several_next_hops_read_as_the_first(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    host.ensure_veth(pair_to(paths[1]))
    host.ensure_address("cali1", IPv4Interface("10.99.0.1/24"))
    hops = "nexthop via 10.99.0.7 dev cali1 nexthop via 10.99.0.8 dev cali1"
    name = Path(paths[0]).name
    command = f"ip -n {name} route add 10.5.0.0/16 proto bird metric 768 {hops}".split()
    subprocess.run(command, check=True)
    wanted = Route(
        IPv4Network("10.5.0.0/16"), 768, "cali1", ip_address("10.99.0.7"), RouteProto.BIRD
    )
    assert host.routes(dst=wanted.dst) == (wanted,)


def test_nothing_waits_behind_a_link(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    """Deleting a link takes the kernel 15 ms; a cut-over has 3."""
    host.ensure_veth(pair_to(paths[1]))
    route = Route(VM, 512, "cali1", link_scope=True)
    done: list[bool] = []

    def cut_over() -> None:
        host.ensure_route(route)
        done.append(host.delete_route(route))
        done.append(host.delete_link("cali1"))

    thread = threading.Thread(target=cut_over, daemon=True)
    with host._space.slow_channel() as busy, busy._lock:  # a deletion is under way
        thread.start()
        thread.join(PATIENCE)
        assert done == [True, True]


def test_a_deletion_is_over_when_nothing_of_the_link_is_left_to_be_seen(
    host: NetlinkKernel, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the kernel has let go of the last of it."""
    host.ensure_veth(pair_to(paths[1]))
    host.ensure_route(Route(VM, 512, "cali1", link_scope=True))
    release = threading.Event()
    delete = host._space._delete

    def slow(ifindex: int, what: str) -> None:
        delete(ifindex, what)
        release.wait(PATIENCE)

    monkeypatch.setattr(host._space, "_delete", slow)
    try:
        assert host.delete_link("cali1") is True
        assert not release.is_set()
        assert {link.name for link in host.links()} == {"lo"}
        assert host.routes(dst=VM) == ()
        with closing(NetlinkKernel(paths[1])) as pod:
            assert {link.name for link in pod.links()} == {"lo"}
        near, _ = host.ensure_veth(pair_to(paths[1]))
        assert near.up, "its name is free"
    finally:
        release.set()


def test_a_link_that_does_not_go_bounds_its_deletion(
    host: NetlinkKernel, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.ensure_veth(pair_to(paths[1]))
    release = threading.Event()
    monkeypatch.setattr(space, "DELETION_SECONDS", 0.05)
    monkeypatch.setattr(host._space, "_delete", lambda *_: release.wait(PATIENCE))
    try:
        with pytest.raises(Unavailable, match="cali1 takes longer"):
            host.delete_link("cali1")
    finally:
        release.set()


def test_a_link_is_deleted_where_no_threads_are_left(
    host: NetlinkKernel, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    host.ensure_veth(pair_to(paths[1]))
    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert host.delete_link("cali1") is True
    assert host.link("cali1") is None


def test_a_link_that_comes_and_goes_leaves_nothing(
    host: NetlinkKernel, paths: tuple[str, str]
) -> None:
    indices = set()
    for _ in range(10):
        near, _ = host.ensure_veth(pair_to(paths[1]))
        host.ensure_route(Route(VM, 512, "cali1", link_scope=True))
        assert host.delete_link("cali1") is True
        assert host.routes(dst=VM) == ()
        indices.add(near.ifindex)
    assert len(indices) == 10


def test_a_closed_adapter_deletes_nothing(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    host.ensure_veth(pair_to(paths[1]))
    with closing(NetlinkKernel(paths[0])) as other:
        pass
    with pytest.raises(KernelError, match="closed"):
        other.delete_link("cali1")
    assert host.link("cali1") is not None
