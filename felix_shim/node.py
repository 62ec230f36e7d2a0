"""This node's Node resource, and the files that tell the CNI plugin about the node.

An address belongs to one node. Who comes second is refused, and of two that come at once at most
one stays: each writes first and looks afterwards, so at least one of them sees the other. The one
whose name sorts first then waits for the other to give way; it cannot tell whether the other is
about to, or has been at work for long, so when the wait is over it gives way itself.

Never: write over what others keep in the resource, or take an address back from a node that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Any

from cni_plugin.durable import ensure_file
from felix_shim.ensure import ensure
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.files import read_text
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import Node, NodeBGP, NodeSpec, ObjectMeta, WorkloadEndpoint

PAUSES = 15
PAUSE_SECONDS = 0.2
"""How often, and for how long each time, the first of two simultaneous nodes waits."""


class AddressTakenError(InvalidInput):
    """Another node has the address; the text names it."""


class RenamedError(InvalidInput):
    """The node has another name than what runs on it; the text names both, and the ways out."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says about itself; it has at least one address.

    `as_number` None leaves the stored one, `kube_node` is its name in Kubernetes, if it has one.
    Without `address6` what is stored of IPv6 stays; without `address` no IPv4 address does, for
    others would look for the node there.
    """

    name: str
    address: IPv4Interface | None
    link: str = ""
    address6: IPv6Interface | None = None
    link6: str = ""
    as_number: int | None = None
    interfaces: tuple[tuple[str, tuple[str, ...]], ...] = ()
    kube_node: str = ""

    @property
    def addresses(self) -> tuple[tuple[IPv4Interface | IPv6Interface, str], ...]:
        """All of them, each with its link, IPv4 first."""
        ends = ((self.address, self.link), (self.address6, self.link6))
        return tuple((address, link) for address, link in ends if address is not None)

    @property
    def key(self) -> ResourceKey:
        """The key of its resource."""
        return ResourceKey(Kind.NODE, self.name)


def plan_node(stored: Node | None, facts: NodeFacts) -> Node:
    """The resource with this node's facts in it, and everything else as it was."""
    node = stored or Node(metadata=ObjectMeta(name=facts.name))
    own = str(facts.address or "")
    bgp = (node.spec.bgp or NodeBGP()).model_copy(update={"ipv4_address": own})
    if facts.address6 is not None:
        bgp = bgp.model_copy(update={"ipv6_address": str(facts.address6)})
    if facts.as_number is not None:
        bgp = bgp.model_copy(update={"as_number": facts.as_number})
    spec: dict[str, Any] = node.spec.to_wire() | {"bgp": bgp.to_wire()}
    if facts.kube_node:
        mine = {"nodeName": facts.kube_node, "orchestrator": "k8s"}
        others = [one for one in _references(spec) if one.get("orchestrator") != "k8s"]
        spec["orchRefs"] = [*others, mine]
    if facts.interfaces:
        spec["interfaces"] = [
            {"name": name, "addresses": list(addresses)} for name, addresses in facts.interfaces
        ]
    return node.model_copy(update={"spec": NodeSpec.model_validate(spec)})


def _references(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found = spec.get("orchRefs")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def without_addresses(stored: Node | None, facts: NodeFacts) -> Node | None:
    """The resource without this node's addresses; None when it does not have its first."""
    if stored is None or stored.spec.bgp is None:
        return None
    held = stored.spec.bgp
    fields = {4: ("ipv4_address", held.ipv4_address), 6: ("ipv6_address", held.ipv6_address)}
    mine = [fields[one.version][1] == str(one) for one, _ in facts.addresses]
    if not mine[0]:
        return None
    update = {
        fields[one.version][0]: ""
        for (one, _), ours in zip(facts.addresses, mine, strict=True)
        if ours
    }
    bgp = held.model_copy(update=update)
    spec = stored.spec.model_copy(update={"bgp": bgp if bgp.to_wire() else None})
    return stored.model_copy(update={"spec": spec})


def register(store: Datastore, facts: NodeFacts) -> bool:
    """See that the resource says what this node is; True when it had to be written.

    Raises `Conflict`, `Malformed`, `Unavailable` and other errors of the store.
    """
    return ensure(store, facts.key, Node, lambda stored: plan_node(stored, facts))


@dataclass(frozen=True, slots=True)
class Rivals:
    """Other nodes that have an address of this one."""

    address: IPAddress
    link: str
    names: tuple[str, ...]


def rivals_of(store: Datastore, facts: NodeFacts) -> Rivals | None:
    """Who has one of the node's addresses; a Node that cannot be read has none."""
    others = [
        record.value
        for record in store.list(Resources(Kind.NODE)).records
        if isinstance(record.value, Node) and record.value.metadata.name != facts.name
    ]
    for address, link in facts.addresses:
        names = tuple(one.metadata.name for one in others if address.ip in _addresses(one))
        if names:
            return Rivals(address.ip, link, names)
    return None


def _addresses(node: Node) -> set[object]:
    bgp = node.spec.bgp
    return set() if bgp is None else {_ip(bgp.ipv4_address), _ip(bgp.ipv6_address)}


def _ip(text: str) -> object:
    try:
        return ip_interface(text).ip
    except ValueError:
        return None


def claim(store: Datastore, facts: NodeFacts, pause: Callable[[float], object]) -> bool:
    """Register the node, unless another one has an address of it; True when that wrote anything.

    Raises `AddressTakenError`, before anything is written or after taking it back.
    """
    if rivals := rivals_of(store, facts):
        raise _taken(rivals)
    written = register(store, facts)
    for _ in range(PAUSES):
        rivals = rivals_of(store, facts)
        if rivals is None:
            return written
        if min(rivals.names) < facts.name:
            break
        pause(PAUSE_SECONDS)
    assert rivals is not None, "else it has returned"
    ensure(store, facts.key, Node, lambda stored: without_addresses(stored, facts))
    raise _taken(rivals)


def _taken(rivals: Rivals) -> AddressTakenError:
    where = f" (on {rivals.link})" if rivals.link else ""
    key = "ip" if rivals.address.version == 4 else "ip6"
    return AddressTakenError(
        f"{key}: this node's address {rivals.address}{where} is already that of node "
        f"{', '.join(rivals.names)}; "
        f"choose another, e.g. {key}: skip-interface={rivals.link or '<link>'} or cidr=<cidr>, "
        f"or delete Node {rivals.names[0]} if it is no more"
    )


def require_same_name(store: Datastore, nodename_file: Path, node: str) -> None:
    """Refuse a name under which the agent would not know what runs here: routes, policy and
    addresses are by the node's name, and it takes away what it does not know.

    Raises `RenamedError`, `Unavailable`, OSError.
    """
    try:
        before = read_text(nodename_file).strip()
    except FileNotFoundError:
        return
    if before in ("", node):
        return
    values = [one.value for one in store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records]
    theirs = [
        f"{value.metadata.namespace}/{value.spec.pod or value.spec.workload}"
        for value in values
        if isinstance(value, WorkloadEndpoint) and value.spec.node == before
    ]
    if theirs:
        more = f" and {len(theirs) - 3} more" if len(theirs) > 3 else ""
        raise RenamedError(
            f"this node is called {node} and was {before} ({nodename_file}), as which it has "
            f"workloads: {', '.join(sorted(theirs)[:3])}{more}; call it {before} again "
            f"(NODENAME, nodename), or end them first; if they are no more, delete Node {before}, "
            f"what is stored of them, and {nodename_file}; if this machine is a copy of another "
            f"that is {before} still, delete {nodename_file} alone"
        )


def write_files(nodename_file: Path, node: str, mtu_file: Path, mtu: int) -> None:
    """Tell the CNI plugin who this node is and what its uplinks carry. Raises OSError.

    A file that says so already is left alone: flushes of a busy disk would keep an agent that
    follows another from listening.
    """
    if mtu:
        ensure_file(mtu_file, str(mtu).encode(), 0o644)
    ensure_file(nodename_file, node.encode(), 0o644)
