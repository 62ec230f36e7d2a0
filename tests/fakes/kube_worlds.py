"""Small clusters with Kubernetes' policies for Hypothesis, a table of every kind of match, and the
book that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product
from typing import Any

from hypothesis import strategies as st

from felix_shim.events import InSync, Seen
from felix_shim.kube_desk import KubeDesk
from felix_shim.kube_entries import KINDS, PolicyObject
from felix_shim.policy_book import PolicyBook
from libtortie.kube.objects import Namespace, ServiceAccount
from libtortie.kube.policies import (
    AdminNetworkPolicy,
    BaselineAdminNetworkPolicy,
    ClusterNetworkPolicy,
    KubeNetworkPolicy,
    PeerNode,
)
from tests.fakes.kube_meaning import KubeMeaning, Object
from tests.fakes.policy_worlds import ACCOUNTS, NAMESPACES, NETSETS, PODS, key_of, netset_of
from tests.fakes.policy_worlds import item_of as endpoint_of

LABELS: Mapping[str, Mapping[str, str]] = {
    name: {**labels, "kubernetes.io/metadata.name": name} for name, labels in NAMESPACES.items()
}
_WEB = {"matchLabels": {"app": "web"}}
_DB = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "x"]}]}
_NOT_WEB = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}
_TIER = {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}
_DB_BARE = {
    "matchLabels": {"app": "db"},
    "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}],
}
_PROD = {"matchLabels": {"env": "prod"}}
_NOT_PROD = {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["prod"]}]}
_BLUE = {"matchLabels": {"kubernetes.io/metadata.name": "blue"}}

_POD_SELECTORS: tuple[dict[str, Any], ...] = ({}, _WEB, _DB, _NOT_WEB, _TIER, _DB_BARE)
_SPACE_SELECTORS: tuple[dict[str, Any], ...] = ({}, _PROD, _NOT_PROD, _BLUE)
_BLOCKS: tuple[dict[str, Any], ...] = (
    {"cidr": "10.65.0.0/29"},
    {"cidr": "10.65.0.0/29", "except": ["10.65.0.3/32", "10.65.0.4/31"]},
    {"cidr": "0.0.0.0/0", "except": ["10.65.0.0/30", "203.0.113.0/24"]},
    {"cidr": "fd00:65::/64", "except": ["fd00:65::4/128"]},
    {"cidr": "::/0"},
)
_NETWORKS = (["10.65.0.0/30"], ["0.0.0.0/0", "fd00:65::/64"], ["fd00:65::4/128", "198.51.100.0/24"])

NODES: Mapping[str, tuple[Mapping[str, str], IPv4Address | IPv6Address]] = {
    "n1": ({"role": "worker"}, ip_address("203.0.113.9")),
    "n2": ({"role": "worker", "zone": "a"}, ip_address("192.0.2.1")),
    "n3": ({"role": "control"}, ip_address("2001:db8::1")),
}
_NODES: tuple[dict[str, Any], ...] = (
    {"nodes": {}},
    {"nodes": {"matchLabels": {"zone": "a"}}},
    {"nodes": {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["worker"]}]}},
)
UNKNOWN: tuple[dict[str, Any], ...] = ({"domainNames": ["a.example"]}, {})
"""Peers that are not known here."""
PROTOCOLS: tuple[dict[str, Any], ...] = (
    {"tcp": {"destinationPort": {"number": 80}}},
    {"udp": {"destinationPort": {"range": {"start": 80, "end": 500}}}},
    {"sctp": {}},
    {"tcp": {"destinationPort": {"range": {"start": 443, "end": 443}}}},
    {"destinationNamedPort": "http"},
    {"destinationNamedPort": "dns"},
)
PEERS_OF_POLICIES: tuple[dict[str, Any], ...] = (
    *({"podSelector": one} for one in _POD_SELECTORS),
    *({"namespaceSelector": one} for one in _SPACE_SELECTORS),
    {"namespaceSelector": _PROD, "podSelector": _WEB},
    {"namespaceSelector": {}, "podSelector": _NOT_WEB},
    {"namespaceSelector": _NOT_PROD, "podSelector": {}},
    *({"ipBlock": one} for one in _BLOCKS),
)
PORTS: tuple[dict[str, Any], ...] = (
    {"port": 80},
    {"protocol": "UDP"},
    {"protocol": "SCTP", "port": 5000},
    {"protocol": "TCP", "port": 80, "endPort": 443},
    {"protocol": "TCP", "port": "http"},
    {"protocol": "UDP", "port": "dns"},
    {"protocol": "TCP"},
)
SUBJECTS: tuple[dict[str, Any], ...] = (
    *({"namespaces": one} for one in _SPACE_SELECTORS),
    *(
        {"pods": {"namespaceSelector": spaces, "podSelector": found}}
        for spaces, found in (({}, _WEB), (_PROD, _DB), (_NOT_PROD, {}), ({}, _NOT_WEB))
    ),
)
ADMIN_PORTS: tuple[dict[str, Any], ...] = (
    {"portNumber": {"protocol": "TCP", "port": 80}},
    {"portRange": {"protocol": "UDP", "start": 80, "end": 500}},
    {"portRange": {"start": 443, "end": 443}},
    {"namedPort": "http"},
    {"namedPort": "dns"},
)


def matrix() -> tuple[KubeMeaning, ...]:
    """Clusters, each about one kind of peer or port, of all pods of one namespace or of all."""
    both_types = ["Ingress", "Egress"]
    found = []
    for side, peer in product(("ingress", "egress"), PEERS_OF_POLICIES):
        spec = {"podSelector": {}, "policyTypes": [side.capitalize()]}
        end = "from" if side == "ingress" else "to"
        found.append(_with_policies({**spec, side: [{end: [peer]}]}))
    for side, port in product(("ingress", "egress"), PORTS):
        spec = {"podSelector": {}, "policyTypes": [side.capitalize()], side: [{"ports": [port]}]}
        found.append(_with_policies(spec))
    found += [
        _with_policies({"podSelector": one, "policyTypes": both_types, "ingress": [{}]})
        for one in _POD_SELECTORS
    ]
    found += [
        _with_policies({"podSelector": {}}),
        _with_policies({"podSelector": {}, "egress": []}),
    ]
    for action, subject in product(("Allow", "Deny", "Pass"), SUBJECTS):
        rules = [{"action": action, "from": [{"namespaces": {}}]}, *_deny_all("from")]
        found.append(_with_admin({"subject": subject, "ingress": rules}))
    for side, port in product(("ingress", "egress"), ADMIN_PORTS):
        end = "from" if side == "ingress" else "to"
        rule = {"action": "Deny", end: [{"namespaces": {}}], "ports": [port]}
        found.append(_with_admin({"subject": {"namespaces": {}}, side: [rule]}))
    for peer in ({"networks": one} for one in _NETWORKS):
        rule = {"action": "Deny", "to": [peer]}
        found.append(_with_admin({"subject": {"namespaces": {}}, "egress": [rule]}))
    for peer in _NODES[:2]:
        rule = {"action": "Deny", "to": [peer]}
        found.append(_with_admin({"subject": {"namespaces": {}}, "egress": [rule]}))
    return (*found, *_cluster_matrix())


def _cluster_matrix() -> Iterator[KubeMeaning]:
    everybody: dict[str, Any] = {"namespaces": {}}
    for tier, action, subject in product(
        ("Admin", "Baseline"), ("Accept", "Deny", "Pass"), SUBJECTS[1:5]
    ):
        rules = [{"action": action, "from": [everybody]}, *_deny_all("from")]
        yield _with_cluster({"tier": tier, "subject": subject, "ingress": rules})
    for side, one in product(("ingress", "egress"), PROTOCOLS):
        end = "from" if side == "ingress" else "to"
        rule = {"action": "Deny", end: [everybody], "protocols": [one]}
        yield _with_cluster({"tier": "Admin", "subject": everybody, side: [rule]})
    for peer, action in product((*_NODES[:2], UNKNOWN[0]), ("Deny", "Accept")):
        others = [{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}]
        rules = [{"action": action, "to": [peer]}, *others]
        yield _with_cluster({"tier": "Admin", "subject": everybody, "egress": rules})


def _with_cluster(spec: dict[str, Any]) -> KubeMeaning:
    closing = Object("closing", {"podSelector": _WEB}, "red")
    found = (Object("matrix", {"priority": 7, **spec}),)
    return KubeMeaning(PODS, LABELS, (closing,), cluster=found, nodes=NODES)


def _deny_all(end: str) -> list[dict[str, Any]]:
    return [{"action": "Deny", end: [{"namespaces": {}}]}]


def _with_policies(spec: dict[str, Any]) -> KubeMeaning:
    return KubeMeaning(PODS, LABELS, (Object("matrix", spec, "red"),))


def _with_admin(spec: dict[str, Any]) -> KubeMeaning:
    closing = Object("closing", {"podSelector": _WEB}, "red")
    return KubeMeaning(
        PODS, LABELS, (closing,), (Object("matrix", {"priority": 7, **spec}),), nodes=NODES
    )


@st.composite
def network_policies(draw: st.DrawFn, name: str) -> Object:
    """A NetworkPolicy that Kubernetes takes."""
    spec: dict[str, Any] = {"podSelector": draw(st.sampled_from(_POD_SELECTORS))}
    types = draw(st.sampled_from([(), ("Ingress",), ("Egress",), ("Ingress", "Egress")]))
    if types:
        spec["policyTypes"] = list(types)
    for side, end in (("ingress", "from"), ("egress", "to")):
        if draw(st.booleans()):
            spec[side] = draw(st.lists(_rules(end), max_size=3))
    return Object(name, spec, draw(st.sampled_from(["red", "blue"])))


@st.composite
def _rules(draw: st.DrawFn, end: str) -> dict[str, Any]:
    rule: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        rule[end] = draw(st.lists(st.sampled_from(PEERS_OF_POLICIES), max_size=2))
    if draw(st.booleans()):
        rule["ports"] = draw(st.lists(st.sampled_from(PORTS), max_size=3))
    return rule


@st.composite
def _admin_rules(draw: st.DrawFn, end: str, actions: tuple[str, ...]) -> dict[str, Any]:
    peers = list(SUBJECTS)
    if end == "to":
        peers += [*({"networks": networks} for networks in _NETWORKS), *_NODES]
    rule: dict[str, Any] = {
        "action": draw(st.sampled_from(actions)),
        end: draw(st.lists(st.sampled_from(peers), min_size=1, max_size=2)),
    }
    if draw(st.booleans()):
        rule["ports"] = draw(st.lists(st.sampled_from(ADMIN_PORTS), min_size=1, max_size=3))
    return rule


@st.composite
def _admin_specs(draw: st.DrawFn, *actions: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"subject": draw(st.sampled_from(SUBJECTS))}
    for side, end in (("ingress", "from"), ("egress", "to")):
        if draw(st.booleans()):
            spec[side] = draw(st.lists(_admin_rules(end, actions), max_size=3))
    return spec


@st.composite
def _cluster_rules(draw: st.DrawFn, end: str) -> dict[str, Any]:
    peers = [*SUBJECTS, *UNKNOWN]
    if end == "to":
        peers += [*({"networks": networks} for networks in _NETWORKS), *_NODES]
    rule: dict[str, Any] = {
        "action": draw(st.sampled_from(["Accept", "Deny", "Pass"])),
        end: draw(st.lists(st.sampled_from(peers), min_size=1, max_size=2)),
    }
    if draw(st.booleans()):
        rule["protocols"] = draw(st.lists(st.sampled_from(PROTOCOLS), min_size=1, max_size=3))
    return rule


@st.composite
def cluster_policies(draw: st.DrawFn, priority: int) -> Object:
    """A ClusterNetworkPolicy, whose peers may be of kinds that nobody knows."""
    spec: dict[str, Any] = {
        "tier": draw(st.sampled_from(["Admin", "Baseline"])),
        "priority": priority,
        "subject": draw(st.sampled_from(SUBJECTS)),
    }
    for side, end in (("ingress", "from"), ("egress", "to")):
        if draw(st.booleans()):
            spec[side] = draw(st.lists(_cluster_rules(end), max_size=3))
    return Object(f"c{priority}", spec)


@st.composite
def kube_worlds(draw: st.DrawFn) -> KubeMeaning:
    """A cluster with a few policies of each kind; no two administrators' have one priority."""
    policies = [draw(network_policies(f"p{n}")) for n in range(draw(st.integers(0, 3)))]
    priorities = draw(st.lists(st.integers(0, 1000), max_size=2, unique=True))
    admin = [
        Object(
            f"a{priority}", {**draw(_admin_specs("Allow", "Deny", "Pass")), "priority": priority}
        )
        for priority in priorities
    ]
    baseline = draw(st.one_of(st.just({}), _admin_specs("Allow", "Deny")))
    places = draw(st.lists(st.integers(0, 1000), max_size=2, unique=True))
    cluster = tuple(draw(cluster_policies(place)) for place in places)
    return KubeMeaning(PODS, LABELS, tuple(policies), tuple(admin), baseline, cluster, NODES)


def objects_of(world: KubeMeaning) -> tuple[PolicyObject, ...]:
    """All that the API says."""
    return (
        *(
            Namespace.model_validate({"metadata": {"name": name, "labels": dict(labels)}})
            for name, labels in world.namespaces.items()
        ),
        *(
            ServiceAccount.model_validate(
                {"metadata": {"name": name, "namespace": namespace, "labels": labels}}
            )
            for (namespace, name), labels in ACCOUNTS.items()
        ),
        *(_object(KubeNetworkPolicy, one) for one in world.policies),
        *(_object(AdminNetworkPolicy, one) for one in world.admin),
        *(_object(ClusterNetworkPolicy, one) for one in world.cluster),
        *(
            PeerNode.model_validate(
                {
                    "metadata": {"name": name, "labels": labels},
                    "status": {"addresses": [{"type": "InternalIP", "address": str(address)}]},
                }
            )
            for name, (labels, address) in world.nodes.items()
        ),
        *(
            (_object(BaselineAdminNetworkPolicy, Object("default", world.baseline)),)
            if world.baseline
            else ()
        ),
    )


def _object(model: type[PolicyObject], found: Object) -> PolicyObject:
    meta = {"name": found.name, "namespace": found.namespace}
    return model.model_validate({"metadata": meta, "spec": found.spec})


def kube_book_of(world: KubeMeaning) -> PolicyBook:
    """A book in which all of it is, beside networks of Calico's that Kubernetes knows not of."""
    book = PolicyBook()
    for pod in world.pods:
        book.put_item(key_of(pod), endpoint_of(pod))
        book.put_local(key_of(pod), endpoint_of(pod))
    for netset in NETSETS:
        book.put_item(*netset_of(netset))
    tell(KubeDesk(book, followed=True), world)
    return book


def tell(desk: KubeDesk, world: KubeMeaning) -> None:
    """All that the API says, as one list of each kind."""
    found = objects_of(world)
    for one in found:
        desk.take(Seen(one))
    for kind in KINDS:
        names = {(o.metadata.namespace, o.metadata.name) for o in found if type(o) is kind}
        desk.take(InSync(kind, frozenset(names)))
