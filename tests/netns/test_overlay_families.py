"""The overlay in both families, over two subnets, by another port: three agents, real tunnels."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind
from tests.fakes import frames
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, until
from tests.fakes.overlay_site import (
    DEVICE,
    DEVICE6,
    SOURCE,
    TARGET,
    OverlayNode,
    OverlaySite,
    Shape,
)

pytestmark = pytest.mark.root
BACK = "virt-launcher-db-2"
DUAL = Shape((4, 6))
SIX = Shape((6,))
ACROSS = Shape((4, 6), "CrossSubnet", subnets=(1, 1, 2))


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[Shape], OverlaySite]]:
    with ExitStack() as stack:

        def make(shape: Shape) -> OverlaySite:
            site = OverlaySite(tmp_path, fresh_name("of"), shape)
            stack.callback(site.close)
            site.start()
            assert len(site.addresses) == len(shape.versions)
            return site

        yield make


def metrics(site: OverlaySite, number: int, pod: str, wanted: list[int]) -> None:
    """The routes to each of the VM's addresses on a pod's veth have these metrics."""
    node = site.nodes[number]
    for address in site.addresses:
        until(
            f"{address}: {wanted} on {node.node}",
            partial(lambda one: node.metrics_to(pod, one) == wanted, address),
        )


def speaks(site: OverlaySite, number: int, pod: str) -> None:
    """QEMU's announcement; where the VM has no IPv4, its own of an address."""
    node = site.nodes[number]
    if 4 in site.shape.versions:
        node.announce(pod)
    else:
        (address,) = site.addresses
        node.send(pod, frames.neighbour_advertisement(node.mac(pod), address, address))


def cuts_over(site: OverlaySite, source: tuple[int, str], target: tuple[int, str]) -> None:
    site.leave(*source)
    speaks(site, *target)


@pytest.mark.parametrize("shape", [DUAL, SIX], ids=["dual", "six"])
def test_a_vm_moves_by_all_its_addresses(
    build: Callable[[Shape], OverlaySite], shape: Shape
) -> None:
    site = build(shape)
    site.await_ways(["here", "n0", "n0"])
    site.migrate(1)
    site.await_ways(["here", "n0", "n0"])
    with site.full_store():
        cuts_over(site, (0, SOURCE), (1, TARGET))
        site.await_ways(["n1", "here", "n0"])  # by way of the source, which has heard of it
    site.await_ways(["n1", "here", "n1"])
    metrics(site, 0, SOURCE, [])
    site.succeed(1)
    metrics(site, 1, TARGET, [1024])
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    site.await_ways(["n1", "here", "n1"])
    site.migrate(0, migration="m2", pod=BACK)
    cuts_over(site, (1, TARGET), (0, BACK))
    site.await_ways(["here", "n0", "n0"])
    assert [node.lines("apply_failed") for node in site.nodes] == [[]] * 3


def test_neither_family_is_without_a_way_for_a_moment(
    build: Callable[[Shape], OverlaySite],
) -> None:
    """The source, whose own the blocks are, has a blackhole below the VM's routes: by the kernel's
    own account each way to the target is there before the route to the pod goes."""
    site = build(DUAL)
    site.migrate(1)
    with site.full_store(), traced(site.nodes[0]) as lines:
        cuts_over(site, (0, SOURCE), (1, TARGET))
        metrics(site, 0, SOURCE, [])
        until("all is told", lambda: all(_went(lines(), one) for one in site.addresses))
    for address in site.addresses:
        way = next(n for n, line in enumerate(lines()) if _leads_away(line, address))
        assert way < _went(lines(), address)[0], lines()
    for node in site.nodes:
        for version, device in ((4, DEVICE), (6, DEVICE6)):
            name = f"net/ipv{version}/conf/{device}/accept_redirects"
            command = ["nsenter", f"--net=/run/netns/{node.name}", "sysctl", "-n", name]
            assert subprocess.run(command, capture_output=True, check=True).stdout == b"0\n"


@contextmanager
def traced(node: OverlayNode) -> Iterator[Callable[[], list[str]]]:
    """What a node's kernel tells of its routes meanwhile."""
    file = node.root / "routes.trace"
    with file.open("wb") as out:
        command = ["ip", "-n", node.name, "monitor", "route"]
        process = subprocess.Popen(command, stdout=out)
        try:
            until("it listens", lambda: _marked(node, file))
            yield lambda: file.read_text().splitlines()
        finally:
            process.terminate()
            process.wait()


def _marked(node: OverlayNode, file: Path) -> bool:
    """Whether the trace has one of our own changes by now. The kernel tells of no route that is
    replaced by its like."""
    for change in ("add", "del"):
        node.ip("route", change, "blackhole", "192.0.2.1")
    return "192.0.2.1" in file.read_text()


def _leads_away(line: str, address: str) -> bool:
    return line.startswith(f"{address} via ") and "dev vxlan" in line


def _went(lines: list[str], address: str) -> list[int]:
    """Where the trace has the end of the route to the pod."""
    gone = f"Deleted {address} dev cali"
    return [number for number, line in enumerate(lines) if line.startswith(gone)]


def test_only_what_crosses_subnets_goes_through_the_tunnel(
    build: Callable[[Shape], OverlaySite],
) -> None:
    """A VM leaves its block's subnet and comes back to it, to another node."""
    site = build(ACROSS)
    site.await_ways(["here", "n0 directly", "n0"])
    site.migrate(2)
    site.await_ways(["here", "n0 directly", "n0"])
    cuts_over(site, (0, SOURCE), (2, TARGET))
    site.await_ways(["n2", "n2", "here"])
    site.succeed(2)
    metrics(site, 2, TARGET, [1024])
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    site.migrate(1, migration="m2", pod=BACK)
    site.await_ways(["n2", "n2", "here"])
    with site.full_store():
        cuts_over(site, (2, TARGET), (1, BACK))
        site.await_ways(["n1 directly", "here", "n1"])  # the block's owner and the source were told
    site.await_ways(["n1 directly", "here", "n1"])
    metrics(site, 2, TARGET, [])
    assert [node.lines("apply_failed") for node in site.nodes] == [[]] * 3


def test_another_port_carries_the_overlay_and_is_closed_to_workloads(
    build: Callable[[Shape], OverlaySite],
) -> None:
    site = build(Shape())
    site.put(Kind.FELIX_CONFIGURATION, "default", vxlanPort=8472)
    for node in site.nodes:
        until(f"{node.node} has the port", partial(_listens, node, 8472))
    site.await_ways(["here", "n0", "n0"])
    node = site.nodes[1]
    until("the rules have it", lambda: _dropped(node) is not None)
    for port in (4789, 8472):
        before = _dropped(node) or 0
        until(f"port {port} is closed", partial(_is_closed, site, port, before))
    site.await_ways(["here", "n0", "n0"])


def _listens(node: OverlayNode, port: int) -> bool:
    links = {one["ifname"]: one for one in node.ip_json("-d", "link")}
    return DEVICE in links and links[DEVICE]["linkinfo"]["info_data"]["port"] == port


def _dropped(node: OverlayNode) -> int | None:
    """Packets that a workload would have sent to a tunnel; None: other ports are closed."""
    found = re.search(r"dport \{ 4789, 8472 \} counter packets (\d+)", node.rules())
    return int(found[1]) if found else None


def _is_closed(site: OverlaySite, port: int, before: int) -> bool:
    """Whether more was dropped after a datagram of a workload to the far end's port."""
    node = site.nodes[1]

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            opened.sendto(bytes(8), (site.address(0), port))

    Netns(deadline=DEADLINE).call(node.sandbox(f"client-{node.node}"), send)
    return (_dropped(node) or 0) > before
