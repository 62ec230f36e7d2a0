"""Where the overlay's addresses are, by what is stored: which node has a block, and which address
of it lives on another node. Pure.

As in Calico the IPAM record decides: an address is on the node of its active owner, which the
target of a migration becomes when its VM has been heard. So real Calico nodes and ours agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface, ip_network

from libtortie.linux.port import IPInterface, IPNetwork
from libtortie.model.ipam import Block, IPAddress
from libtortie.model.resources import IPPool, Node

NEVER, CROSS_SUBNET = "Never", "CrossSubnet"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool whose traffic between nodes is encapsulated: always, or only `across` subnets."""

    cidr: IPNetwork
    across: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """A block: the node it is affine to ("" for none), and the node of each address in use.

    `targets` are the nodes that addresses may be about to move to, and by which migration.
    `strays` are the addresses that are not where the block is.
    """

    cidr: IPNetwork
    node: str = ""
    nodes: Mapping[IPAddress, str] = field(default_factory=dict)
    targets: Mapping[IPAddress, tuple[str, str]] = field(default_factory=dict)
    strays: Mapping[IPAddress, str] = field(init=False)

    def __post_init__(self) -> None:
        strays = {address: node for address, node in self.nodes.items() if node != self.node}
        object.__setattr__(self, "strays", strays)

    @property
    def single(self) -> bool:
        """Whether the block is one address."""
        return self.cidr.prefixlen == self.cidr.max_prefixlen


@dataclass(frozen=True, slots=True)
class Place:
    """A node as the overlay reaches it: its own address with its subnet, and its tunnel's end."""

    node: str
    underlay: IPInterface
    tunnel: IPAddress | None = None
    mac: str = ""


def overlay_pools(pools: Iterable[IPPool], version: int) -> tuple[Pool, ...]:
    """The pools of a family that are in the overlay; a disabled one's addresses live on."""
    found = []
    for pool in pools:
        cidr = ip_network(pool.spec.cidr)
        if cidr.version == version and pool.spec.vxlan_mode != NEVER:
            found.append(Pool(cidr, pool.spec.vxlan_mode == CROSS_SUBNET))
    return tuple(sorted(found, key=lambda one: int(one.cidr.network_address)))


def placement(block: Block) -> Placement:
    """Where a block's addresses are. One whose owner names no node is where its block is."""
    nodes: dict[IPAddress, str] = {}
    targets: dict[IPAddress, tuple[str, str]] = {}
    for ordinal, index in enumerate(block.allocations):
        if index is None or block.attributes[index].released_at is not None:
            continue
        attribute, address = block.attributes[index], block.address(ordinal)
        if node := attribute.active.get("node", "") or block.node or "":
            nodes[address] = node
        if target := attribute.alternate.get("node", ""):
            targets[address] = (target, attribute.alternate.get("vmim-uid", ""))
    return Placement(block.cidr, block.node or "", nodes, targets)


def place(name: str, node: Node, version: int) -> Place | None:
    """A node's ends in a family; None while it has no address of its own there."""
    spec, bgp = node.spec, node.spec.bgp
    four = version == 4
    underlay = _interface((bgp.ipv4_address if four else bgp.ipv6_address) if bgp else "")
    if underlay is None or underlay.version != version:
        return None
    tunnel = _interface(spec.ipv4_vxlan_tunnel_addr if four else spec.ipv6_vxlan_tunnel_addr)
    mac = spec.vxlan_tunnel_mac_addr if four else spec.vxlan_tunnel_mac_addr_v6
    known = tunnel is not None and tunnel.version == version
    return Place(
        name,
        underlay,
        ip_address(tunnel.ip) if known and tunnel is not None else None,
        (mac or tunnel_mac(name, version)).lower(),
    )


def tunnel_mac(node: str, version: int) -> str:
    """The MAC of a node's tunnel where its Node names none: everybody derives the same one.

    Calico's rule: `f` and five bytes of the SHA-1 of the node's name, for IPv6 with `-v6` behind.
    """
    name = node if version == 4 else f"{node}-v6"
    return (b"f" + sha1(name.encode(), usedforsecurity=False).digest()[:5]).hex(":")


def _interface(text: str) -> IPv4Interface | IPv6Interface | None:
    try:
        return ip_interface(text) if text else None
    except ValueError:
        return None
