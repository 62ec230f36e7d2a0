"""What this node is: its address, the link that carries it, its Node resource, its files."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from felix_shim.config import AUTODETECT
from felix_shim.state import write_durably
from libtortie.datastore.port import Datastore
from libtortie.errors import AlreadyExists, InvalidInput, NotFound
from libtortie.linux.port import Kernel, Link
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.names import INTERFACE_PREFIX
from libtortie.model.resources import Node, NodeBGP, NodeSpec, ObjectMeta

_NOT_UPLINKS = ("lo", INTERFACE_PREFIX, "docker", "cni", "br-", "veth", "virbr", "flannel", "kube-")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The node's address and the link it is on; `link` is empty when no link has it."""

    address: IPv4Interface
    link: str
    mtu: int = 0


def find_address(kernel: Kernel, configured: str) -> NodeAddress:
    """The configured address, or one found: the default route's link first, then any uplink.

    Raises `InvalidInput` when there is none to be found.
    """
    links = [link for link in kernel.links() if link.up]
    if configured != AUTODETECT:
        wanted = IPv4Interface(configured)
        for link in links:
            if any(address.ip == wanted.ip for address in _ipv4(kernel, link)):
                return NodeAddress(wanted, link.name, link.mtu)
        return NodeAddress(wanted, "")
    default = {route.ifname for route in kernel.routes() if route.dst.prefixlen == 0}
    uplinks = [link for link in links if not link.name.startswith(_NOT_UPLINKS)]
    for link in sorted(uplinks, key=lambda one: (one.name not in default, one.ifindex)):
        for address in _ipv4(kernel, link):
            return NodeAddress(address, link.name, link.mtu)
    raise InvalidInput("ip: autodetect found no IPv4 address on an uplink; configure one")


def _ipv4(kernel: Kernel, link: Link) -> list[IPv4Interface]:
    try:
        found = kernel.addresses(link.name)
    except NotFound:
        return []
    return [one for one in found if isinstance(one, IPv4Interface) and not one.ip.is_link_local]


def write_files(nodename_file: Path, node: str, mtu_file: Path, mtu: int) -> None:
    """Tell the CNI plugin who this node is and what its uplink carries. Raises OSError."""
    write_durably(nodename_file, f"{node}\n".encode(), mode=0o644)
    if mtu:
        write_durably(mtu_file, f"{mtu}\n".encode(), mode=0o644)


def register(store: Datastore, name: str, address: IPv4Interface) -> None:
    """Make the Node resource carry the address; what else is in it stays.

    Raises `Conflict`, `Unavailable` and other errors of the store.
    """
    key = ResourceKey(Kind.NODE, name)
    text = str(address)
    try:
        record = store.get(key)
    except NotFound:
        bgp = NodeBGP.model_validate({"ipv4Address": text})
        node = Node(metadata=ObjectMeta(name=name), spec=NodeSpec(bgp=bgp))
        try:
            store.create(key, node)
            return
        except AlreadyExists:
            record = store.get(key)
    if not isinstance(record.value, Node):
        raise InvalidInput(f"stored Node {name} is of kind {type(record.value).__name__}")
    bgp = record.value.spec.bgp or NodeBGP()
    if bgp.ipv4_address == text:
        return
    spec = record.value.spec.model_copy(
        update={"bgp": bgp.model_copy(update={"ipv4_address": text})}
    )
    store.update(key, record.value.model_copy(update={"spec": spec}), record.revision)
