"""What Kubernetes' policies mean, read off the objects: slow, plain, and no other code.

Nothing of Calico's form is in here: no selectors but Kubernetes' own, no tiers, no profiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

from tests.fakes.packets import Packet
from tests.fakes.policy_meaning import Pod

Address = IPv4Address | IPv6Address
Json = Mapping[str, Any]
_NUMBERS = {"TCP": 6, "UDP": 17, "SCTP": 132}


@dataclass(frozen=True)
class Object:
    """A policy object as it is written: NetworkPolicies have a namespace."""

    name: str
    spec: Json
    namespace: str = ""


@dataclass(frozen=True)
class KubeMeaning:
    """A cluster, and what it lets through. `namespaces` are name → labels."""

    pods: tuple[Pod, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    policies: tuple[Object, ...] = ()
    admin: tuple[Object, ...] = ()
    baseline: Json = field(default_factory=dict)
    cluster: tuple[Object, ...] = ()
    nodes: Mapping[str, tuple[Mapping[str, str], Address]] = field(default_factory=dict)
    """Name → labels and address."""

    def allows(self, pod: Pod, direction: str, packet: Packet) -> bool:
        """Whether a pod may get (`ingress`) or send (`egress`) a new connection's first packet."""
        ranked = sorted(self.admin, key=lambda one: (one.spec["priority"], one.name))
        decided = self._first((one.spec for one in ranked), pod, direction, packet)
        if decided in ("Allow", "Deny"):
            return decided == "Allow"
        decided = self._of_tier("Admin", pod, direction, packet)
        if decided in ("Accept", "Deny"):
            return decided == "Accept"
        isolating = [one for one in self.policies if self._isolates(one, pod, direction)]
        if isolating:
            return any(self._lets(one, direction, packet) for one in isolating)
        specs = (self.baseline,) if self.baseline else ()
        decided = self._first(specs, pod, direction, packet)
        if decided in ("Allow", "Deny"):
            return decided == "Allow"
        return self._of_tier("Baseline", pod, direction, packet) != "Deny"

    # -- network policies ------------------------------------------------------------------------

    @staticmethod
    def _isolates(policy: Object, pod: Pod, direction: str) -> bool:
        types = policy.spec.get("policyTypes")
        if not types:
            types = ["Ingress", "Egress"] if policy.spec.get("egress") else ["Ingress"]
        mine = policy.namespace == pod.namespace and has(policy.spec["podSelector"], pod.labels)
        return mine and direction.capitalize() in types

    def _lets(self, policy: Object, direction: str, packet: Packet) -> bool:
        side = "from" if direction == "ingress" else "to"
        other = packet.source if direction == "ingress" else packet.destination
        for rule in policy.spec.get(direction) or ():
            peers, ports = rule.get(side) or (), rule.get("ports") or ()
            if peers and not any(self._is(one, other, policy.namespace) for one in peers):
                continue
            if not ports or any(self._on(one, packet) for one in ports):
                return True
        return False

    def _is(self, peer: Json, address: Address, namespace: str) -> bool:
        if "ipBlock" in peer:
            block = peer["ipBlock"]
            inside = address in ip_network(block["cidr"])
            return inside and not any(
                address in ip_network(one) for one in block.get("except") or ()
            )
        for pod in self._at(address):
            if "namespaceSelector" in peer:
                if not has(peer["namespaceSelector"], self.namespaces[pod.namespace]):
                    continue
            elif pod.namespace != namespace:
                continue
            if has(peer.get("podSelector") or {}, pod.labels):
                return True
        return False

    def _on(self, port: Json, packet: Packet) -> bool:
        if _NUMBERS[port.get("protocol", "TCP")] != packet.protocol:
            return False
        wanted = port.get("port")
        if wanted is None:
            return True
        if isinstance(wanted, int):
            return wanted <= packet.destination_port <= int(port.get("endPort", wanted))
        return wanted in self._names(packet)

    # -- administrators' -------------------------------------------------------------------------

    def _first(self, specs: Iterable[Json], pod: Pod, direction: str, packet: Packet) -> str:
        """The action of the first rule that matches."""
        for spec in specs:
            if not self._among(spec["subject"], pod):
                continue
            for rule in spec.get(direction) or ():
                if self._admin_matches(rule, direction, packet):
                    return str(rule["action"])
        return ""

    def _admin_matches(self, rule: Json, direction: str, packet: Packet) -> bool:
        other = packet.source if direction == "ingress" else packet.destination
        peers = rule["from"] if direction == "ingress" else rule["to"]
        if not any(self._is_peer(one, other) for one in peers):
            return False
        ports = rule.get("ports")
        return not ports or any(self._on_admin(one, packet) for one in ports)

    def _is_peer(self, peer: Json, address: Address) -> bool:
        if "networks" in peer:
            return any(address in ip_network(net) for net in peer["networks"])
        if "nodes" in peer:
            return any(
                has(peer["nodes"], labels) and address == its for labels, its in self.nodes.values()
            )
        return any(self._among(peer, pod) for pod in self._at(address))

    def _among(self, subject: Json, pod: Pod) -> bool:
        labels = self.namespaces[pod.namespace]
        if "namespaces" in subject:
            return has(subject["namespaces"], labels)
        found = subject["pods"]
        return has(found["namespaceSelector"], labels) and has(found["podSelector"], pod.labels)

    def _on_admin(self, port: Json, packet: Packet) -> bool:
        if "namedPort" in port:
            return port["namedPort"] in self._names(packet)
        wanted = port.get("portNumber") or port["portRange"]
        if _NUMBERS[wanted.get("protocol", "TCP")] != packet.protocol:
            return False
        first, last = wanted.get("start", wanted.get("port")), wanted.get("end", wanted.get("port"))
        return bool(first <= packet.destination_port <= last)

    # -- cluster network policies ----------------------------------------------------------------

    def _of_tier(self, tier: str, pod: Pod, direction: str, packet: Packet) -> str:
        """The action of the first rule of a tier's policies that matches."""
        mine = [one.spec for one in self.cluster if one.spec["tier"] == tier]
        for spec in sorted(mine, key=lambda one: one["priority"]):
            if not self._among(spec["subject"], pod):
                continue
            for rule in spec.get(direction) or ():
                if action := self._cluster_action(rule, direction, packet):
                    return action
        return ""

    def _cluster_action(self, rule: Json, direction: str, packet: Packet) -> str:
        """A rule's action if it matches; one that is about what nobody knows fails closed."""
        other = packet.source if direction == "ingress" else packet.destination
        peers = rule["from"] if direction == "ingress" else rule["to"]
        known = {"namespaces", "pods"} | ({"nodes", "networks"} if direction == "egress" else set())
        if any(not known & one.keys() for one in peers):
            return "" if rule["action"] == "Accept" else "Deny"
        protocols = rule.get("protocols")
        matches = any(self._is_peer(one, other) for one in peers) and (
            not protocols or any(self._on_cluster(one, packet) for one in protocols)
        )
        return str(rule["action"]) if matches else ""

    def _on_cluster(self, one: Json, packet: Packet) -> bool:
        if "destinationNamedPort" in one:
            return one["destinationNamedPort"] in self._names(packet)
        ((name, found),) = one.items()
        if _NUMBERS[name.upper()] != packet.protocol:
            return False
        port = found.get("destinationPort")
        if port is None:
            return True
        if "number" in port:
            return bool(port["number"] == packet.destination_port)
        return bool(port["range"]["start"] <= packet.destination_port <= port["range"]["end"])

    # -- who is where ----------------------------------------------------------------------------

    def _at(self, address: Address) -> Iterator[Pod]:
        return (pod for pod in self.pods if address in pod.addresses)

    def _names(self, packet: Packet) -> set[str]:
        """What the packet's port is called by those it goes to."""
        at = (packet.protocol, packet.destination_port)
        found = self._at(packet.destination)
        return {name for pod in found for name, *port in pod.ports if tuple(port) == at}


def has(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether labels are what a Kubernetes label selector wants."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for one in selector.get("matchExpressions") or ():
        key, values = one["key"], one.get("values") or ()
        fits = {
            "In": key in labels and labels[key] in values,
            "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not fits[one["operator"]]:
            return False
    return True
