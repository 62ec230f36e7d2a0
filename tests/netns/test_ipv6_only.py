"""Nodes that have IPv6 addresses and no others: three agents, by BIRD and in the overlay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from libtortie.model.keys import Kind, ResourceKey
from tests.fakes import frames
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.overlay_site import SOURCE, TARGET, OverlayNode, OverlaySite, Shape

pytestmark = pytest.mark.root
BACK = "virt-launcher-db-2"


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[str], OverlaySite]]:
    with ExitStack() as stack:

        def make(mode: str) -> OverlaySite:
            site = OverlaySite(tmp_path, fresh_name("ov"), Shape((6,), mode, underlay=(6,)))
            stack.callback(site.close)
            site.start()
            return site

        yield make


def cuts_over(site: OverlaySite, source: tuple[int, str], target: tuple[int, str]) -> None:
    """The guest stops here and advertises its address there."""
    site.leave(*source)
    node, pod = site.nodes[target[0]], target[1]
    (address,) = site.addresses
    node.send(pod, frames.neighbour_advertisement(node.mac(pod), address, address))


def settled(site: OverlaySite, number: int, pod: str) -> None:
    """The route is an ordinary one again, and the record has the VM there."""
    node, (address,) = site.nodes[number], site.addresses
    until("the route is reverted", lambda: node.metrics_to(pod, address) == [1024])
    until("it is the owner", lambda: node.owners()[address][1] == pod)


def has_no_ipv4(node: OverlayNode) -> bool:
    """Whether neither the kernel nor the Node knows of any IPv4 address."""
    links = [one for one in node.ip_json("address") if one["ifname"] != "lo"]
    families = {info["family"] for link in links for info in link["addr_info"]}
    spec = node.stored(ResourceKey(Kind.NODE, node.node)).spec
    return families == {"inet6"} and not spec.bgp.ipv4_address and not spec.ipv4_vxlan_tunnel_addr


def router_id(node: OverlayNode) -> str:
    """What the node's BIRD calls itself."""
    found = re.search(r"^router id (\S+);", (node.root / "run" / "bird.conf").read_text(), re.M)
    assert found is not None
    return found[1]


def test_bgp_moves_a_vm_between_nodes_without_ipv4(build: Callable[[str], OverlaySite]) -> None:
    site = build("Never")
    assert all(map(has_no_ipv4, site.nodes))
    assert len({router_id(node) for node in site.nodes}) == 3
    site.await_ways(["here", "n0 directly", "n0 directly"])
    site.migrate(1)
    cuts_over(site, (0, SOURCE), (1, TARGET))
    site.await_ways(["n1 directly", "here", "n1 directly"])
    (address,) = site.addresses
    until("the source lets go", lambda: site.nodes[0].metrics_to(SOURCE, address) == [])
    site.succeed(1)
    settled(site, 1, TARGET)
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    site.migrate(2, migration="m2", pod=BACK)
    cuts_over(site, (1, TARGET), (2, BACK))
    site.await_ways(["n2 directly", "n2 directly", "here"])
    site.nodes[0].say_vm_runs_on("n2")
    site.nodes[0].say_migration("Succeeded", "m2")
    settled(site, 2, BACK)


def test_agents_tell_each_other_by_ipv6(build: Callable[[str], OverlaySite]) -> None:
    """The store is full meanwhile: what the source knows of the move it has from the target."""
    site = build("Always")
    for node in site.nodes:
        (serving,) = node.lines("peers_serving")
        assert serving["address"] == site.address(node.number, 6)
    site.await_ways(["here", "n0", "n0"])
    site.migrate(1)
    with site.full_store():
        cuts_over(site, (0, SOURCE), (1, TARGET))
        site.await_ways(["n1", "here", "n0"])
    site.await_ways(["n1", "here", "n1"])
    site.succeed(1)
    settled(site, 1, TARGET)
    site.nodes[0].done("DEL", SOURCE, SOURCE)
    site.migrate(2, migration="m2", pod=BACK)
    with site.full_store():
        cuts_over(site, (1, TARGET), (2, BACK))
        # The block's owner has heard of it, too, and others ask that one.
        site.await_ways(["n2", "n2", "here"])
    until("it was told", partial(_told, site))
    assert [node.lines("apply_failed") for node in site.nodes] == [[]] * 3


def _told(site: OverlaySite) -> bool:
    return any(one["node"] == "n0" for one in site.nodes[2].lines("cut_over_told"))
