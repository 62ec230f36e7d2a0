"""What the overlay shall be: devices, far ends, routes, and where addresses are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from felix_shim.overlay import (
    Device,
    Ground,
    Overlay,
    Vtep,
    Whereabouts,
    elsewhere,
    is_overlay,
    overlay,
    uplink_of,
)
from felix_shim.overlay_places import (
    Place,
    Placement,
    Pool,
    overlay_pools,
    place,
    placement,
    tunnel_mac,
)
from felix_shim.overlay_settings import TunnelSettings, stronger_tunnel
from felix_shim.routes import Priorities
from libtortie.linux.port import Route, RouteProto, RouteType
from libtortie.model.ipam import Attribute, Block, IPAddress
from libtortie.model.resources import FelixConfigurationSpec, IPPool, Node

POOL, METRIC = ip_network("10.65.0.0/16"), 896
BLOCKS = {node: ip_network(f"10.65.{node[1]}.0/26") for node in ("n1", "n2", "n3")}
VM = ip_address("10.65.1.5")


def ground(node: str = "n3", *, across: bool = False, **changes: object) -> Ground:
    places = {
        f"n{number}": Place(
            f"n{number}",
            ip_interface(f"172.31.{number}.2/24"),
            ip_address(f"10.65.{number}.1"),
            tunnel_mac(f"n{number}", 4),
        )
        for number in (1, 2, 3)
    }
    made = Ground(4, node, (Pool(POOL, across),), places, TunnelSettings(), METRIC, "eth0")
    return replace(made, **changes)  # type: ignore[arg-type]  # a test's shorthand


def where(vm_on: str = "n1", **changes: object) -> Whereabouts:
    """The VM's address is of n1's block; each block's first address is its node's tunnel's."""
    placements = tuple(
        Placement(
            cidr,
            node,
            {cidr.network_address + 1: node, **({VM: vm_on} if node == "n1" else {})},
        )
        for node, cidr in BLOCKS.items()
    )
    return replace(Whereabouts(placements), **changes)  # type: ignore[arg-type]  # the same


def hop(of: Overlay, address: IPAddress) -> str:
    """The gateway that a packet to an address takes: the longest prefix's."""
    fitting = [route for route in of.routes if address in route.dst]
    best = max(fitting, key=lambda route: route.dst.prefixlen, default=None)
    return "" if best is None else str(best.gateway or best.type)


def test_a_node_with_the_overlay() -> None:
    found = overlay(ground(), where())
    assert found.device == Device(
        "vxlan.calico",
        4096,
        4789,
        ip_address("172.31.3.2"),
        ip_address("10.65.3.1"),
        tunnel_mac("n3", 4),
    )
    assert found.vteps == {
        Vtep(ip_address(f"10.65.{n}.1"), tunnel_mac(f"n{n}", 4), ip_address(f"172.31.{n}.2"))
        for n in (1, 2)
    }
    tunnelled = {
        Route(
            BLOCKS[f"n{n}"],
            METRIC,
            "vxlan.calico",
            ip_address(f"10.65.{n}.1"),
            RouteProto.TORTIE,
            onlink=True,
        )
        for n in (1, 2)
    }
    own = Route(BLOCKS["n3"], METRIC, proto=RouteProto.TORTIE, type=RouteType.BLACKHOLE)
    assert found.routes == tunnelled | {own}
    assert found.problems == ()
    assert all(map(is_overlay, found.routes))


def test_the_address_of_a_vm_that_moved_leads_to_its_node_from_everywhere_else() -> None:
    for node, expected in (("n1", "10.65.2.1"), ("n3", "10.65.2.1"), ("n2", "10.65.1.1")):
        assert hop(overlay(ground(node), where("n2")), VM) == expected, node
    home = overlay(ground("n3"), where("n1"))
    assert hop(home, VM) == "10.65.1.1"
    assert ip_network(VM) not in {route.dst for route in home.routes}, "its block's route will do"


def test_its_own_node_has_no_way_away() -> None:
    """On n2 the local host route is better than the block's; there must be none beside it."""
    for local in ({VM: True}, {VM: False}):
        found = overlay(ground("n2"), where("n2", local=local))
        assert ip_network(VM) not in {route.dst for route in found.routes}


def test_a_source_that_the_vm_left_sends_on_even_to_the_blocks_own_node() -> None:
    """The VM came home to n1; n2, which still has its pod, gets a host route of its own."""
    found = overlay(ground("n2"), where("n1", local={VM: True}))
    assert [r.gateway for r in found.routes if r.dst == ip_network(VM)] == [ip_address("10.65.1.1")]


def test_old_news_does_not_lead_a_heard_vm_away() -> None:
    found = overlay(ground("n2"), where("n1", local={VM: False}))
    assert ip_network(VM) not in {route.dst for route in found.routes}
    heard = overlay(ground("n2"), where("n1", local={VM: False}, heard={VM: "n3"}))
    assert hop(heard, VM) == "10.65.3.1", "a node that heard it is no old news"


def test_a_nodes_word_is_newer_than_the_store() -> None:
    assert hop(overlay(ground("n3"), where("n1", heard={VM: "n2"})), VM) == "10.65.2.1"
    assert hop(overlay(ground("n1"), where("n1", heard={VM: "n2"})), VM) == "10.65.2.1"
    back = overlay(ground("n3"), where("n2", heard={VM: "n1"}))
    assert ip_network(VM) not in {route.dst for route in back.routes}, "home: its block's route"
    assert elsewhere(where("n1", heard={VM: "n2"}), "n2") == {}


def test_across_subnets_only() -> None:
    """n1 shares n3's subnet here, n2 does not."""
    made = ground(across=True)
    near = replace(made.places["n1"], underlay=ip_interface("172.31.3.9/24"))
    found = overlay(replace(made, places={**made.places, "n1": near}), where())
    by_dst = {route.dst: route for route in found.routes}
    direct = by_dst[BLOCKS["n1"]]
    assert (direct.ifname, direct.gateway) == ("eth0", ip_address("172.31.3.9"))
    assert by_dst[BLOCKS["n2"]].ifname == "vxlan.calico"
    assert is_overlay(direct)
    always = overlay(replace(ground(), places={**made.places, "n1": near}), where())
    assert {route.ifname for route in always.routes if route.gateway} == {"vxlan.calico"}


def test_addresses_outside_the_overlays_pools_are_not_its_business() -> None:
    found = overlay(ground(pools=(Pool(ip_network("10.66.0.0/16")),)), where("n2"))
    assert found.device is not None
    assert found.routes == frozenset()


@pytest.mark.parametrize("enabled", [None, True, False])
@pytest.mark.parametrize("pools", [(), (Pool(POOL),)])
def test_when_there_is_a_device(enabled: bool | None, pools: tuple[Pool, ...]) -> None:
    made = ground(pools=pools, settings=TunnelSettings(enabled))
    wanted = enabled is not False and bool(pools or enabled)
    assert (overlay(made, where()).device is not None) is wanted


def test_what_cannot_be_reached_is_named_and_the_rest_goes_on() -> None:
    made = ground()
    mute = replace(made.places["n1"], tunnel=None)
    places = {"n3": made.places["n3"], "n1": mute}
    found = overlay(replace(made, places=places), where())
    assert found.problems == (
        "Node n1 has no tunnel address of IPv4",
        "Node n2 has no address of IPv4",
    )
    assert {route.dst for route in found.routes} == {BLOCKS["n3"]}
    alone = overlay(replace(made, places={}), where())
    assert (alone.device, alone.routes) == (None, frozenset())
    assert alone.problems == ("Node n3 has not got an address of IPv4 yet",)


def test_the_metric_lies_between_birds_and_the_local_one() -> None:
    assert Priorities().overlay == METRIC
    for normal, elevated in ((1024, 512), (3, 1), (10, 8), (2147483646, 1)):
        found = Priorities(normal, elevated)
        assert found.elevated < found.bird <= found.overlay < found.normal


def test_placements_of_a_block() -> None:
    block = Block(
        cidr=BLOCKS["n1"],
        affinity="host:n1",
        allocations=(0, 1, 2, 3, None, *(None,) * 59),
        unallocated=(),
        attributes=(
            Attribute("vxlan-tunnel-addr-n1", {"node": "n1", "type": "vxlanTunnelAddress"}),
            Attribute("vm", {"node": "n2"}, {"node": "n3", "vmim-uid": "m1"}),
            Attribute("nobody"),
            Attribute("gone", {"node": "n2"}, released_at=datetime(2026, 1, 1, tzinfo=UTC)),
        ),
    )
    one = ip_address("10.65.1.1")
    assert placement(block) == Placement(
        BLOCKS["n1"],
        "n1",
        {one - 1: "n1", one: "n2", one + 1: "n1"},
        {one: ("n3", "m1")},
    )
    assert placement(block).strays == {one: "n2"}
    free = placement(replace(block, affinity=None))
    assert (free.node, free.strays) == ("", {one - 1: "n1", one: "n2"})


def test_the_ends_of_a_node() -> None:
    node = Node.model_validate(
        {
            "metadata": {"name": "n1"},
            "spec": {
                "bgp": {"ipv4Address": "172.31.1.2/24", "ipv6Address": "fd31::2/64"},
                "ipv4VXLANTunnelAddr": "10.65.1.1",
                "ipv6VXLANTunnelAddr": "fd65::1",
                "vxlanTunnelMACAddrV6": "66:AA:00:00:00:01",
            },
        }
    )
    four, six = place("n1", node, 4), place("n1", node, 6)
    assert four == Place(
        "n1", ip_interface("172.31.1.2/24"), ip_address("10.65.1.1"), tunnel_mac("n1", 4)
    )
    assert six == Place(
        "n1", ip_interface("fd31::2/64"), ip_address("fd65::1"), "66:aa:00:00:00:01"
    )
    for spec in ({}, {"bgp": {"ipv4Address": "nonsense"}}):
        bare = Node.model_validate({"metadata": {"name": "n1"}, "spec": spec})
        assert place("n1", bare, 4) is None
    wrong = node.spec.model_copy(update={"ipv4_vxlan_tunnel_addr": "fd65::1"})
    found = place("n1", node.model_copy(update={"spec": wrong}), 4)
    assert found is not None
    assert found.tunnel is None


def test_derived_macs_are_calicos() -> None:
    """`f`, then the first five bytes of the SHA-1 of the name; with `-v6` behind for IPv6."""
    assert tunnel_mac("node-1", 4) == "66:b3:68:28:39:8e"
    assert tunnel_mac("node-1", 6) == tunnel_mac("node-1-v6", 4) == "66:24:ac:63:df:6c"


def test_pools_of_the_overlay() -> None:
    def pool(name: str, **spec: object) -> IPPool:
        return IPPool.model_validate({"metadata": {"name": name}, "spec": spec})

    pools = (
        pool("a", cidr="10.66.0.0/16", vxlanMode="CrossSubnet", disabled=True),
        pool("b", cidr="10.65.0.0/16", vxlanMode="Always"),
        pool("c", cidr="10.64.0.0/16"),
        pool("d", cidr="fd65::/48", vxlanMode="Always"),
        pool("e", cidr="10.63.0.0/16", ipipMode="Always"),
    )
    assert overlay_pools(pools, 4) == (Pool(POOL), Pool(ip_network("10.66.0.0/16"), across=True))
    assert overlay_pools(pools, 6) == (Pool(ip_network("fd65::/48")),)


def test_the_uplink_is_the_link_with_our_address() -> None:
    links = {"eth1": frozenset({ip_address("172.31.3.2")}), "eth0": frozenset({VM})}
    assert uplink_of(ip_interface("172.31.3.2/24"), links) == "eth1"
    assert uplink_of(ip_interface("172.31.3.3/24"), links) == ""


def test_settings() -> None:
    told: list[str] = []

    def read(known: TunnelSettings | None = None, **spec: object) -> TunnelSettings:
        parsed = FelixConfigurationSpec.model_validate(spec)
        return stronger_tunnel(TunnelSettings(), parsed, known, told.append)

    every = read(vxlanEnabled=True, vxlanMTU=1400, vxlanMTUV6=1380, vxlanPort=8472, vxlanVNI=7)
    assert every == TunnelSettings(True, 1400, 1380, 8472, 7)
    assert (every.mtu_of(4, 1500), every.mtu_of(6, 1500)) == (1400, 1380)
    assert read(vxlanMTU=0, vxlanPort=0) == TunnelSettings()
    assert (read().mtu_of(4, 1500), read().mtu_of(6, 1500)) == (1450, 1430)
    assert told == []
    wrong = read(every, vxlanMTU=20, vxlanPort=70000, vxlanVNI="x", vxlanMTUV6=True)
    assert wrong == replace(every, enabled=None)
    assert [text.partition(":")[0] for text in told] == [
        "vxlanMTU",
        "vxlanMTUV6",
        "vxlanPort",
        "vxlanVNI",
    ]
