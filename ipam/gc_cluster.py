"""What lives, by the API and by what nodes have stored: pods, nodes, tunnel addresses.

Asked after IPAM's own records were read (`gc_inventory`). An answer that fails, that the server
gave before it had read its store, that is empty where allocations say that it cannot be, or is
another cluster's (`gc_stranger`), is `Unknown`: nothing is ever condemned by it. Only `trust_empty`
believes the latter two. "Not found" is an answer only if it names the object (`ask`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from sys import intern
from typing import Any, TypeVar

from libtortie.errors import Compacted, NotFound, TortieError, first_line
from libtortie.kube.objects import KubeNode, KubeObject, Pod
from libtortie.kube.port import KubeReader, NotServed
from libtortie.model.ipam import IPAddress
from libtortie.model.names import ORCHESTRATOR_K8S
from libtortie.model.resources import Node

from .gc_endpoints import Endpoint
from .gc_inventory import NODES, Inventory
from .gc_pods import Names, PodFacts, PodName, pod_facts
from .gc_stranger import BELIEVED, nodes_of, pods_of, unknown_nodes, unknown_pods
from .gc_verdicts import Span, Unknown

T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")

NO_API = Unknown("no Kubernetes API is configured")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Who lives. `nodes` are names of those that exist; `tunnels` says whose each address is."""

    span: Span
    pods: Mapping[PodName, PodFacts] | Unknown
    nodes: frozenset[str] | Unknown
    stranger: Unknown | None = None
    """Why the API is taken for another cluster's."""
    tunnels: Mapping[IPAddress, frozenset[str]] = field(default_factory=dict)


def observe_cluster(
    kube: KubeReader | None,
    inventory: Inventory,
    monotonic: Callable[[], float],
    *,
    trust_empty: bool = False,
) -> Cluster:
    """Ask who lives; never raises for what the API answers.

    The observation began, for the grace, when the first question was asked.
    """
    began = monotonic()
    kube_nodes = listed(kube, KubeNode, trust_empty=trust_empty)
    names = names_in(inventory)
    pods = _pods(kube, names, trust_empty=trust_empty)
    stranger = None if trust_empty else _stranger(inventory, names, kube_nodes, pods)
    if stranger is not None:
        kube_nodes = pods = stranger
    return Cluster(
        span=Span(began, monotonic()),
        pods=pods,
        nodes=_living_nodes(inventory, kube_nodes, trust_empty=trust_empty),
        stranger=stranger,
        tunnels=tunnels(inventory.nodes.values()),
    )


def _stranger(
    inventory: Inventory,
    names: Names,
    kube_nodes: tuple[KubeNode, ...] | Unknown,
    pods: Mapping[PodName, PodFacts] | Unknown,
) -> Unknown | None:
    """Why the API is taken for another cluster's, if it is."""
    reason = ""
    if not isinstance(kube_nodes, Unknown):
        ours = nodes_of(inventory) | inventory.nodes.keys() | names.nodes.keys()
        reason = unknown_nodes(ours, {one.metadata.name for one in kube_nodes})
    if not (reason or isinstance(pods, Unknown)):
        theirs = {name: pod.uids for name, pod in pods.items()}
        reason = unknown_pods(pods_of(inventory), theirs)
    return Unknown(reason) if reason else None


def listed(kube: KubeReader | None, kind: type[T], *, trust_empty: bool) -> tuple[T, ...] | Unknown:
    """Every object of a kind, if the list is complete and may be believed."""
    if kube is None:
        return NO_API
    objects = complete(kube, kind)
    return _empty(kind) if objects == () and not trust_empty else objects


def _empty(kind: type[KubeObject]) -> Unknown:
    return Unknown(f"the API lists no {kind.api.plural} at all {BELIEVED}")


def _pods(
    kube: KubeReader | None, names: Names, *, trust_empty: bool
) -> Mapping[PodName, PodFacts] | Unknown:
    """What there is to know of every pod, if their list is complete and may be believed."""
    if kube is None:
        return NO_API

    def made(pod: Pod) -> tuple[PodName, PodFacts]:
        return (intern(pod.metadata.namespace), pod.metadata.name), pod_facts(pod, names)

    found = _each(kube, Pod, "", made)
    if isinstance(found, Unknown):
        return found
    return dict(found) if found or trust_empty else _empty(Pod)


def complete(kube: KubeReader, kind: type[T], namespace: str = "") -> tuple[T, ...] | Unknown:
    """Every object of a kind (in a namespace), if the list is complete."""
    found = _each(kube, kind, namespace, lambda one: one)
    return found if isinstance(found, Unknown) else tuple(found)


def _each(
    kube: KubeReader, kind: type[T], namespace: str, make: Callable[[T], V]
) -> list[V] | Unknown:
    """What is made of every object of a kind, never all of them in memory."""
    try:
        try:
            return _made(kube.pages(kind, namespace), make)
        except Compacted:  # the pages' state is gone meanwhile: all at once
            return _made([kube.list(kind, namespace)], make)
    except NotFound:
        return Unknown("the kind is not served")
    except TortieError as error:
        return Unknown(first_line(error))


def _made(pages: Iterable[tuple[tuple[T, ...], str]], make: Callable[[T], V]) -> list[V] | Unknown:
    found: list[V] = []
    for objects, version in pages:
        if version in ("", "0"):
            return Unknown("the list has no version: the server had not read its store")
        if not all(one.metadata.uid for one in objects):
            return Unknown("the list has an object without a UID")
        found += map(make, objects)
    return found


def ask(
    kube: KubeReader | None, kind: type[T], name: str, namespace: str = ""
) -> T | Unknown | None:
    """One object asked for by its name; None if the API knows the kind and has none of the name."""
    if kube is None:
        return NO_API
    try:
        found = kube.get(kind, name, namespace)
    except NotServed as error:
        return Unknown(f"the kind is not served: {first_line(error)}")
    except NotFound:
        return None
    except TortieError as error:
        return Unknown(first_line(error))
    if found.metadata.name != name or not found.metadata.uid:
        return Unknown(f"asked for {kind.api.kind} {name}, the API shows something else")
    return found


def without_witness(kube: KubeReader | None, node: str) -> Unknown | None:
    """Why an API is taken for another cluster's, if it has none of a node that is ours."""
    found = ask(kube, KubeNode, node)
    if isinstance(found, Unknown):
        return found
    return None if found else Unknown(f"the API has no node {node}: is it another cluster's?")


def names_in(inventory: Inventory) -> Names:
    """What the datastore says about pods and nodes of the API."""
    endpoints: dict[PodName, tuple[Endpoint, ...]] = {}
    for endpoint in inventory.endpoints:
        if endpoint.pod and endpoint.kubernetes:
            pod = endpoint.namespace, endpoint.pod
            endpoints[pod] = (*endpoints.get(pod, ()), endpoint)
    aliases: dict[str, set[str]] = defaultdict(set)
    for name, node in inventory.nodes.items():
        aliases[kube_name(node) or name].add(name)
    return Names(
        endpoints,
        {key: frozenset(found) for key, found in aliases.items()},
    )


def tunnels(nodes: Iterable[Node]) -> dict[IPAddress, frozenset[str]]:
    """Every tunnel address that a Node names, and which Nodes do."""
    found: dict[IPAddress, set[str]] = defaultdict(set)
    for node in nodes:
        for address in tunnel_addresses(node):
            found[address].add(node.metadata.name)
    return {address: frozenset(names) for address, names in found.items()}


def tunnel_addresses(node: Node) -> tuple[IPAddress, ...]:
    """The addresses of a node's own tunnels, of both families."""
    spec = node.spec.to_wire()
    bgp, wireguard = _part(spec, "bgp"), _part(spec, "wireguard")
    texts = [
        bgp.get("ipv4IPIPTunnelAddr"),
        spec.get("ipv4VXLANTunnelAddr"),
        spec.get("ipv6VXLANTunnelAddr"),
        wireguard.get("interfaceIPv4Address"),
        wireguard.get("interfaceIPv6Address"),
    ]
    found = []
    for text in texts:
        try:
            found.append(ip_address(str(text)))
        except ValueError:
            continue
    return tuple(found)


def _living_nodes(
    inventory: Inventory, kube_nodes: tuple[KubeNode, ...] | Unknown, *, trust_empty: bool
) -> frozenset[str] | Unknown:
    """A node exists if its Node is stored or the API has it.

    A stored Node that names its Kubernetes node (`orchRefs`) exists only with that one.
    """
    if NODES in inventory.blind:
        return Unknown("a Node cannot be read")
    if kube_nodes is NO_API:
        if not inventory.nodes and not trust_empty:
            return Unknown("no Node is stored, and no Kubernetes API is configured")
        return frozenset(inventory.nodes)
    if isinstance(kube_nodes, Unknown):
        return Unknown(f"nodes: {kube_nodes.reason}")
    living = {node.metadata.name for node in kube_nodes}
    for name, node in inventory.nodes.items():
        theirs = kube_name(node)
        if not theirs or theirs in living:
            living.add(name)
    return frozenset(living)


def kube_name(node: Node) -> str:
    """What Kubernetes calls a stored node; "" when it does not say."""
    references = node.spec.to_wire().get("orchRefs")
    for one in references if isinstance(references, list) else ():
        if isinstance(one, dict) and one.get("orchestrator") == ORCHESTRATOR_K8S:
            return str(one.get("nodeName") or "")
    return ""


def _part(spec: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = spec.get(key)
    return found if isinstance(found, Mapping) else {}
