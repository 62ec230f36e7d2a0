"""Cut-over, revert and return with real BIRDs: what each FIB says, and how soon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from felix_shim.drivers.bird import Bird
from libtortie.errors import InvalidInput, Unavailable
from libtortie.linux.netns import Netns
from libtortie.linux.port import Route
from tests.fakes.bird_lab import (
    RTM_DELROUTE,
    RTM_NEWROUTE,
    VM,
    BirdLab,
    Watch,
    eventually,
    inside,
    ip,
)

pytestmark = pytest.mark.root
NORMAL, ELEVATED = 1024, 512
QUICK = 0.1
"""Seconds; 1 to 4 ms on a quiet machine. A busy one delays some, not all."""


@pytest.fixture(scope="module", params=["l2", "l3"])
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BirdLab]:
    built = BirdLab(tmp_path_factory.mktemp(str(request.param)), str(request.param))
    try:
        built.up()
        print(f"sessions up after {eventually(built.established):.1f} s")
        yield built
    finally:
        built.down()


@pytest.fixture
def source(lab: BirdLab) -> Iterator[BirdLab]:
    """The VM on node 0, which owns its block; nothing on node 1."""
    lab.route(0, "replace", NORMAL)
    eventually(lambda: lab.at_tor() == 0)
    try:
        yield lab
    finally:
        for n in (0, 1):
            ip(lab.nodes[n], "route flush dev calivm")
        eventually(lambda: not lab.host_routes_at_tor())
        eventually(lambda: not any(bird.elevated_elsewhere([VM]) for bird in lab.birds))


def test_an_address_inside_an_own_block_is_announced_with_the_block_only(source: BirdLab) -> None:
    assert source.host_routes_at_tor() == ""
    assert "10.65.0.0/26" in ip(source.tor, "route show")
    assert "blackhole 10.65.0.0/26" in ip(source.nodes[0], "route show")
    eventually(lambda: source.at_node(1) == "remote")


def test_a_floating_address_is_announced_and_moves_with_its_vm(source: BirdLab) -> None:
    """It is in no block: the route to its pod's veth is all that there is of it."""
    floating = "192.0.2.7/32"

    def via(n: int) -> bool:
        there = f"via {source.addresses[n].ip} "
        return there in ip(source.tor, f"route show {floating}")

    ip(source.nodes[0], f"route add {floating} dev calivm metric {NORMAL}")
    eventually(lambda: via(0))
    ip(source.nodes[1], f"route add {floating} dev calivm metric {ELEVATED}")
    eventually(lambda: via(1))
    ip(source.nodes[0], f"route del {floating} dev calivm metric {NORMAL}")
    ip(source.nodes[1], f"route add {floating} dev calivm metric {NORMAL}")
    ip(source.nodes[1], f"route del {floating} dev calivm metric {ELEVATED}")
    eventually(lambda: via(1))
    ip(source.nodes[1], f"route del {floating} dev calivm metric {NORMAL}")
    eventually(lambda: not ip(source.tor, f"route show {floating}"))


def test_nothing_else_is_learned_or_announced(source: BirdLab) -> None:
    ip(source.nodes[0], "route add 203.0.113.0/24 dev calivm proto static")
    ip(source.nodes[0], f"route add 203.0.113.9/32 via {source.gateways[0]} proto static")
    try:
        source.route(0, "add", ELEVATED)  # the kernel tells BIRD in order
        eventually(lambda: bool(source.host_routes_at_tor()))
        at_tor = ip(source.tor, "route show")
        assert "203.0.113" not in at_tor
        assert "default" not in at_tor
    finally:
        ip(source.nodes[0], "route del 203.0.113.0/24")
        ip(source.nodes[0], "route del 203.0.113.9/32")


def test_a_raise_moves_everyone_while_the_source_still_announces(source: BirdLab) -> None:
    source.route(1, "add", ELEVATED)
    eventually(lambda: source.at_tor() == 1)
    eventually(lambda: source.at_node(0) == "remote")
    assert source.at_node(1) == "local"
    assert ip(source.nodes[0], f"route show {VM}").count(str(VM)) == 2, "768 beside 1024"
    eventually(lambda: bool(source.birds[0].elevated_elsewhere([VM])))
    assert source.birds[0].elevated_elsewhere([VM]) == {VM: str(source.addresses[1].ip)}
    assert source.birds[1].elevated_elsewhere([VM]) == {}
    assert [bird.raised_here(VM) for bird in source.birds[:2]] == [False, True]
    assert source.birds[0].announced_elsewhere([VM]) == {VM}


def test_a_revert_is_not_seen_by_the_router(source: BirdLab) -> None:
    source.route(1, "add", ELEVATED)
    eventually(lambda: source.at_tor() == 1)
    source.route(0, "del", NORMAL)
    eventually(lambda: source.at_node(0) == "remote")
    with Watch(source.tor, VM) as watch:
        source.route(1, "add", NORMAL)
        source.route(1, "del", ELEVATED)
        eventually(lambda: not source.birds[0].elevated_elsewhere([VM]))
        assert RTM_DELROUTE not in watch.drain(), "no moment without"
    assert source.at_tor() == 1
    assert source.at_node(0) == "remote"
    assert source.birds[0].announced_elsewhere([VM]) == {VM}


def test_a_lingering_source_route_does_not_win_while_raised_but_ties_after(
    source: BirdLab,
) -> None:
    """Why the source withdraws its route before the target reverts."""
    source.route(1, "add", ELEVATED)
    eventually(lambda: source.at_tor() == 1)
    source.route(0, "del", NORMAL)
    source.route(0, "add", NORMAL)
    eventually(lambda: source.at_node(0) == "remote")
    assert source.at_tor() == 1


def test_the_vm_comes_home_to_the_owner_of_its_block(source: BirdLab) -> None:
    source.route(1, "add", ELEVATED)
    eventually(lambda: source.at_tor() == 1)
    source.route(0, "del", NORMAL)
    source.route(1, "add", NORMAL)
    source.route(1, "del", ELEVATED)
    eventually(lambda: not source.birds[0].elevated_elsewhere([VM]))
    source.route(0, "add", ELEVATED)  # the second migration's raise, inside an own block
    eventually(lambda: source.at_tor() == 0)
    eventually(lambda: source.at_node(1) == "remote")
    source.route(1, "del", NORMAL)
    source.route(0, "add", NORMAL)
    source.route(0, "del", ELEVATED)
    eventually(lambda: source.host_routes_at_tor() == "")
    assert source.at_tor() == 0
    eventually(lambda: source.at_node(1) == "remote")


def test_how_soon_the_router_switches(source: BirdLab) -> None:
    path = f"/run/netns/{source.nodes[1]}"
    raised = Route(ip_network(VM), ELEVATED, "calivm", link_scope=True)
    kernel = Netns().open(path)
    spent: list[float] = []
    try:
        while len(spent) < 15 or (min(spent) >= QUICK and len(spent) < 300):
            with Watch(source.tor, VM) as tor:
                begin = time.perf_counter()
                kernel.ensure_route(raised)
                spent.append(tor.wait_for(RTM_NEWROUTE) - begin)
            assert source.at_tor() == 1
            kernel.delete_route(raised)
            eventually(lambda: source.at_tor() == 0)
            eventually(lambda: source.at_node(0) == "local")
    finally:
        kernel.close()
    ordered = [round(one * 1e3, 2) for one in sorted(spent)]
    print(f"{source.layout}: raising the route -> router's FIB, ms: {ordered}")
    assert min(spent) < QUICK


def test_a_route_through_the_vm_stays_installed_during_cutover(source: BirdLab) -> None:
    """BIRD resolves next hops in its own table: there the raised kernel route must be best."""
    source.route(1, "add", ELEVATED)
    eventually(lambda: source.at_tor() == 1)
    with_static = source.config(1) + (
        f"protocol static behind {{ ipv4; route 198.51.100.0/24 recursive {VM}; }}\n"
    )
    try:
        inside(source.nodes[1], lambda: source.birds[1].ensure(with_static))
        eventually(lambda: "calivm" in ip(source.nodes[1], "route show 198.51.100.0/24"))
    finally:
        inside(source.nodes[1], lambda: source.birds[1].ensure(source.config(1)))


def test_unchanged_text_touches_nothing(source: BirdLab) -> None:
    before = (source.workdir / "0.conf").stat().st_mtime_ns
    log = (source.workdir / "0.log").read_text()
    for _ in range(100):
        assert not inside(source.nodes[0], lambda: source.birds[0].ensure(source.config(0)))
    assert (source.workdir / "0.conf").stat().st_mtime_ns == before
    assert (source.workdir / "0.log").read_text() == log


def test_a_refused_text_leaves_file_and_daemon_alone(source: BirdLab) -> None:
    before = (source.workdir / "0.conf").read_text()
    with pytest.raises(InvalidInput, match="syntax error"):
        inside(source.nodes[0], lambda: source.birds[0].ensure("router id nonsense;\n"))
    assert (source.workdir / "0.conf").read_text() == before
    assert source.established()


def test_a_peer_can_go_and_come_without_a_restart(source: BirdLab) -> None:
    without = source.config(0).split("protocol bgp peer_")[0]
    try:
        assert inside(source.nodes[0], lambda: source.birds[0].ensure(without))
        eventually(lambda: sum(one.established for one in source.birds[0].sessions()) == 1)
    finally:
        assert inside(source.nodes[0], lambda: source.birds[0].ensure(source.config(0)))
    eventually(source.established)
    eventually(lambda: source.at_tor() == 0)


def test_a_bird_killed_twice_is_started_over_and_the_router_keeps_the_route(
    source: BirdLab,
) -> None:
    source.route(1, "add", ELEVATED)
    eventually(lambda: source.at_tor() == 1)
    ip(source.nodes[0], "route flush dev calivm")
    spent: list[float] = []

    def recovered() -> bool:
        """A second restart before the end of the first makes peers let go (RFC 4724, 4.2)."""
        return source.established() and not source.birds[1].recovering()

    with Watch(source.tor, VM) as watch:
        for _ in range(2):
            os.kill(int((source.workdir / "1.pid").read_text()), signal.SIGKILL)
            eventually(lambda: not source.birds[1].alive())
            with pytest.raises(Unavailable):
                source.birds[1].sessions()
            assert (source.workdir / "1.ctl").exists(), "a socket file proves nothing"
            assert inside(source.nodes[1], lambda: source.birds[1].ensure(source.config(1)))
            spent.append(eventually(recovered))
        eventually(lambda: source.at_tor() == 1)
        changes = watch.drain()
    print(f"{source.layout}: recovered after {[round(one, 2) for one in spent]} s: {changes}")
    assert RTM_DELROUTE not in changes


def test_bird_parses_both_families() -> None:
    golden = Path(__file__).parents[1] / "unit" / "felix_shim" / "golden_bird.conf"
    subprocess.run(["bird", "-p", "-c", str(golden)], check=True)


def test_a_socket_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "mute.ctl"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen(1)
        bird = Bird(tmp_path / "b.conf", path, tmp_path / "b.pid", deadline=0.2)
        with pytest.raises(Unavailable):
            bird.ensure("router id 1.1.1.1;\n")
    assert not (tmp_path / "b.conf").exists()
