"""Namespaces on the real kernel: threads that enter them, paths that are none, their names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from libtortie.errors import InvalidInput, NotFound, Unavailable
from libtortie.linux import netns, topology
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.linux.port import (
    LinkChanged,
    Route,
)
from tests.contract.conftest import RealWorld
from tests.fakes.fresh_names import fresh_name
from tests.fakes.patience import PATIENCE
from tests.fakes.veth import pair_to

pytestmark = pytest.mark.root

MISSING = "/run/netns/tt-there-is-none"


@pytest.fixture
def world() -> Iterator[RealWorld]:
    with closing(RealWorld()) as made:
        yield made


def own_inode() -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


# Threads and namespaces


def test_threads_in_namespaces_leave_ours_alone(paths: tuple[str, str]) -> None:
    ours = own_inode()
    names = Netns()
    wanted = {path: names.inode(path) for path in paths}
    seen: list[tuple[str, int]] = []

    def enter_often(path: str) -> None:
        for _ in range(50):
            seen.append((path, names.call(path, own_inode)))
            assert own_inode() == ours

    threads = [threading.Thread(target=enter_often, args=(path,)) for path in paths * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        assert own_inode() == ours
        thread.join(PATIENCE)
    assert len(seen) == 200
    assert all(inode == wanted[path] for path, inode in seen)
    assert own_inode() == ours
    assert Path("/proc/self/ns/net").stat().st_ino == ours


def test_a_kernel_keeps_its_namespace_in_any_thread(paths: tuple[str, str]) -> None:
    """Opened here, used from a thread in yet another namespace: links, sysctls, new sockets."""
    with pytest.raises(NotFound):
        NetlinkKernel(MISSING)
    ours, theirs = NetlinkKernel(), NetlinkKernel(paths[0])
    topology.ensure_bridge(paths[0], "br-a")
    topology.ensure_bridge(paths[1], "br-b")
    before = {link.name for link in ours.links()}
    try:

        def look() -> None:
            assert {link.name for link in theirs.links()} == {"lo", "br-a"}
            assert {link.name for link in ours.links()} == before
            assert theirs.read_sysctl("net/ipv4/conf/br-a/rp_filter")
            with pytest.raises(NotFound):
                ours.read_sysctl("net/ipv4/conf/br-b/rp_filter")
            events = theirs.events()
            topology.set_up(paths[0], "br-a", False)
            event = next(events)
            assert isinstance(event, LinkChanged)
            assert event.link.name == "br-a"

        Netns().call(paths[1], look)
    finally:
        ours.close()
        theirs.close()


def test_many_threads_share_one_kernel(host: NetlinkKernel, paths: tuple[str, str]) -> None:
    host.ensure_veth(pair_to(paths[1]))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(40):
                route = Route(IPv4Network((0x0A410000 + number, 32)), 1 + turn, "cali1")
                host.ensure_route(route)
                assert [each.priority for each in host.routes(dst=route.dst)] == [1 + turn]
                assert host.link("cali1") is not None
                assert host.delete_route(route)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    assert host.routes() == ()


def test_work_that_never_ends_is_given_up(paths: tuple[str, str]) -> None:
    release = threading.Event()
    try:
        with pytest.raises(Unavailable, match=r"0\.2 s"):
            Netns(deadline=0.2).call(paths[0], release.wait)
        assert Netns().call(paths[0], own_inode) == Netns().inode(paths[0])
    finally:
        release.set()


def test_enter_moves_a_process(paths: tuple[str, str]) -> None:
    code = (
        "import sys, socket; from libtortie.linux import netns; netns.enter(sys.argv[1]);"
        "import threading; found = [];"
        "t = threading.Thread(target=lambda: found.append(socket.if_nameindex()));"
        "t.start(); t.join(); print([name for _, name in found[0]])"
    )
    command = [sys.executable, "-c", code, paths[0]]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout.strip() == "['lo']"


# Paths that are no namespace


def test_nothing_is_made_by_asking(tmp_path: Path) -> None:
    """Missing, a file, a folder, a FIFO (which must not block), another kind of namespace."""
    file, fifo = tmp_path / "file", tmp_path / "fifo"
    file.touch()
    os.mkfifo(fifo)
    names = Netns()
    listing = sorted(Path("/run/netns").iterdir()) if Path("/run/netns").exists() else []
    bad = [MISSING, str(file), str(tmp_path), str(fifo), "/proc/self/ns/mnt", f"{file}/x"]
    bad += ["/proc/0/ns/net", "with\0nul", "relative-and-missing"]
    for path in bad:
        assert names.inode(path) is None
        for attempt in (names.open, NetlinkKernel, netns.enter):
            with pytest.raises(NotFound):
                attempt(path)
        with pytest.raises(NotFound):
            names.call(path, own_inode)
    assert not Path(MISSING).exists()
    after = sorted(Path("/run/netns").iterdir()) if Path("/run/netns").exists() else []
    assert [path for path in after if path not in listing and "there-is-none" in path.name] == []


def test_a_process_that_died_has_no_namespace(paths: tuple[str, str]) -> None:
    process = subprocess.Popen(["nsenter", f"--net={paths[0]}", "sleep", "60"])
    path = f"/proc/{process.pid}/ns/net"
    names = Netns()
    try:
        deadline = time.monotonic() + PATIENCE
        while names.inode(path) != names.inode(paths[0]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert names.inode(path) is None
    with pytest.raises(NotFound):
        names.open(path)


def test_the_hosts_own_namespace_is_recognisable() -> None:
    assert Netns().inode(f"/proc/{os.getpid()}/ns/net") == Netns().inode("")


def test_named_namespaces_come_and_go_as_with_ip_netns() -> None:
    name = fresh_name("named")
    assert netns.delete(name) is False
    try:
        path = netns.create(name)
        inode = Netns().inode(path)
        assert inode != own_inode()
        assert netns.create(path) == path
        assert Netns().inode(path) == inode
        listed = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
        assert name in listed.split()
    finally:
        assert netns.delete(path) is True
    assert not Path(path).exists()
    assert netns.delete(path) is False
    subprocess.run(["ip", "netns", "add", name], check=True)
    assert netns.delete(name) is True


def test_a_leftover_mount_point_is_used_again(tmp_path: Path) -> None:
    """A crash between making the file and mounting on it must not block the name."""
    path = tmp_path / "ns"
    path.touch()
    try:
        assert netns.create(str(path)) == str(path)
        assert Netns().inode(str(path)) is not None
    finally:
        assert netns.delete(str(path)) is True


def test_what_is_no_namespace_is_never_removed(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("content")
    link = tmp_path / "link"
    link.symlink_to("/proc/self/ns/net")
    for path in (file, link, tmp_path):
        with pytest.raises(InvalidInput):
            netns.delete(str(path))
    with pytest.raises(InvalidInput):
        netns.create(str(file))
    for name in ("", "..", "a\0b"):
        with pytest.raises(InvalidInput):
            netns.create(name)
    assert file.read_text() == "content"
    assert link.is_symlink()


def test_a_kernel_outlives_the_name(paths: tuple[str, str], host: NetlinkKernel) -> None:
    """Deleting the name of an opened namespace breaks nothing; afterwards the path is none."""
    host.ensure_veth(pair_to(paths[1]))
    netns.delete(paths[0])
    assert {link.name for link in host.links()} == {"lo", "cali1"}
    assert host.read_sysctl("net/ipv4/conf/cali1/rp_filter")
    with pytest.raises(NotFound):
        NetlinkKernel(paths[0])
