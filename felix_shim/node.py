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
from ipaddress import IPv4Address, IPv4Interface, ip_interface
from pathlib import Path
from typing import Any

from cni_plugin.durable import replace_file
from felix_shim.ensure import ensure
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import Node, NodeBGP, NodeSpec, ObjectMeta

PAUSES = 15
PAUSE_SECONDS = 0.2
"""How often, and for how long each time, the first of two simultaneous nodes waits."""


class AddressTakenError(InvalidInput):
    """Another node has the address; the text names it."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says about itself.

    `as_number` None leaves the stored one, `kube_node` is its name in Kubernetes, if it has one.
    """

    name: str
    address: IPv4Interface
    link: str = ""
    as_number: int | None = None
    interfaces: tuple[tuple[str, tuple[str, ...]], ...] = ()
    kube_node: str = ""

    @property
    def key(self) -> ResourceKey:
        """The key of its resource."""
        return ResourceKey(Kind.NODE, self.name)


def plan_node(stored: Node | None, facts: NodeFacts) -> Node:
    """The resource with this node's facts in it, and everything else as it was."""
    node = stored or Node(metadata=ObjectMeta(name=facts.name))
    bgp = (node.spec.bgp or NodeBGP()).model_copy(update={"ipv4_address": str(facts.address)})
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


def without_address(stored: Node | None, address: IPv4Interface) -> Node | None:
    """The resource without this address; None when it does not have it."""
    if stored is None or stored.spec.bgp is None:
        return None
    if stored.spec.bgp.ipv4_address != str(address):
        return None
    bgp = stored.spec.bgp.model_copy(update={"ipv4_address": ""})
    spec = stored.spec.model_copy(update={"bgp": bgp if bgp.to_wire() else None})
    return stored.model_copy(update={"spec": spec})


def register(store: Datastore, facts: NodeFacts) -> bool:
    """See that the resource says what this node is; True when it had to be written.

    Raises `Conflict`, `Malformed`, `Unavailable` and other errors of the store.
    """
    return ensure(store, facts.key, Node, lambda stored: plan_node(stored, facts))


def nodes_with(store: Datastore, address: IPv4Address, *, besides: str) -> tuple[str, ...]:
    """Names of other nodes that have an address; a Node that cannot be read has none."""
    found = []
    for record in store.list(Resources(Kind.NODE)).records:
        node = record.value
        if not isinstance(node, Node) or node.metadata.name == besides or node.spec.bgp is None:
            continue
        if _ip(node.spec.bgp.ipv4_address) == address:
            found.append(node.metadata.name)
    return tuple(found)


def _ip(text: str) -> object:
    try:
        return ip_interface(text).ip
    except ValueError:
        return None


def claim(store: Datastore, facts: NodeFacts, pause: Callable[[float], object]) -> bool:
    """Register the node, unless another one has its address; True when that wrote anything.

    Raises `AddressTakenError`, before anything is written or after taking it back.
    """
    if rivals := nodes_with(store, facts.address.ip, besides=facts.name):
        raise _taken(facts, rivals)
    written = register(store, facts)
    for _ in range(PAUSES):
        rivals = nodes_with(store, facts.address.ip, besides=facts.name)
        if not rivals:
            return written
        if min(rivals) < facts.name:
            break
        pause(PAUSE_SECONDS)
    ensure(store, facts.key, Node, lambda stored: without_address(stored, facts.address))
    raise _taken(facts, rivals)


def _taken(facts: NodeFacts, rivals: tuple[str, ...]) -> AddressTakenError:
    where = f" (on {facts.link})" if facts.link else ""
    names = ", ".join(rivals)
    return AddressTakenError(
        f"ip: this node's address {facts.address.ip}{where} is already that of node {names}; "
        f"choose another, e.g. ip: skip-interface={facts.link or '<link>'} or cidr=<cidr>, "
        f"or delete Node {rivals[0]} if it is no more"
    )


def write_files(nodename_file: Path, node: str, mtu_file: Path, mtu: int) -> None:
    """Tell the CNI plugin who this node is and what its uplinks carry. Raises OSError."""
    if mtu:
        replace_file(mtu_file, str(mtu).encode(), 0o644)
    replace_file(nodename_file, node.encode(), 0o644)
