"""What policies mean, read off the resources as they are written: slow, plain, and no other code.

It shares with the product only the parser of selectors, which has tests of its own. Namespaces and
service accounts are looked up where they are, not as labels of their endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

from libtortie.model.selectors import parse
from tests.fakes.packets import Packet

Address = IPv4Address | IPv6Address
NUMBERS = {"ICMP": 1, "TCP": 6, "UDP": 17, "ICMPv6": 58, "SCTP": 132, "UDPLite": 136}
INFINITY = float("inf")


@dataclass(frozen=True)
class Pod:
    """An endpoint; `ports` are (name, protocol number, port)."""

    namespace: str
    name: str
    addresses: tuple[Address, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    account: str = "default"
    ports: tuple[tuple[str, int, int], ...] = ()

    @property
    def all_labels(self) -> dict[str, str]:
        """What a selector sees, apart from what namespace and account give."""
        return {
            **self.labels,
            "projectcalico.org/namespace": self.namespace,
            "projectcalico.org/orchestrator": "k8s",
            "projectcalico.org/serviceaccount": self.account,
        }


@dataclass(frozen=True)
class NetSet:
    """A NetworkSet, or with no namespace a GlobalNetworkSet."""

    namespace: str
    name: str
    nets: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_labels(self) -> dict[str, str]:
        """What a selector sees."""
        own = {"projectcalico.org/namespace": self.namespace} if self.namespace else {}
        return {**self.labels, **own}


@dataclass(frozen=True)
class Written:
    """A policy as it is written: `spec` in Calico's JSON; no namespace: a global one."""

    name: str
    spec: Mapping[str, Any]
    namespace: str = ""


@dataclass(frozen=True)
class Meaning:
    """A cluster, and what it lets through. `tiers` are name → (order, default action)."""

    pods: tuple[Pod, ...]
    policies: tuple[Written, ...] = ()
    netsets: tuple[NetSet, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    accounts: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    tiers: Mapping[str, tuple[float | None, str]] = field(
        default_factory=lambda: {"default": (1_000_000.0, "Deny")}
    )

    def allows(self, pod: Pod, direction: str, packet: Packet) -> bool:
        """Whether a pod may get (`ingress`) or send (`egress`) a new connection's first packet."""
        mine = [one for one in self.policies if self._applies(one, pod, direction)]
        named = {one.spec.get("tier", "default") for one in mine}
        for tier in sorted(named, key=self._tier_rank):
            decided = self._tier(tier, mine, direction, packet)
            if decided is not None:
                return decided
        return True  # the profile of its namespace

    def _tier(
        self, tier: str, mine: Iterable[Written], direction: str, packet: Packet
    ) -> bool | None:
        """True and False decide; None is for the next tier."""
        inside = [one for one in mine if one.spec.get("tier", "default") == tier]
        for policy in sorted(inside, key=self._rank):
            for rule in policy.spec.get(direction) or ():
                if not self._matches(rule, policy.namespace, packet):
                    continue
                if rule["action"] == "Allow":
                    return True
                if rule["action"] == "Deny":
                    return False
                if rule["action"] == "Pass":
                    return None
        return None if self.tiers.get(tier, (None, "Deny"))[1] == "Pass" else False

    @property
    def _things(self) -> tuple[Pod | NetSet, ...]:
        return (*self.pods, *self.netsets)

    def _tier_rank(self, tier: str) -> tuple[float, str]:
        order = self.tiers.get(tier, (None, ""))[0]
        return INFINITY if order is None else order, tier

    def _rank(self, policy: Written) -> tuple[float, str, str]:
        order = policy.spec.get("order")
        return INFINITY if order is None else order, policy.name, policy.namespace

    def _applies(self, policy: Written, pod: Pod, direction: str) -> bool:
        spec = policy.spec
        default = ["Ingress"] if spec.get("ingress") or not spec.get("egress") else []
        default += ["Egress"] if spec.get("egress") else []
        if direction.capitalize() not in (spec.get("types") or default):
            return False
        if policy.namespace and pod.namespace != policy.namespace:
            return False
        namespaces = spec.get("namespaceSelector")
        if namespaces and not parse(namespaces).matches(self._namespace(pod.namespace)):
            return False
        accounts = spec.get("serviceAccountSelector")
        if accounts and not parse(accounts).matches(self._account(pod)):
            return False
        return parse(spec.get("selector") or "all()").matches(pod.all_labels)

    def _namespace(self, name: str) -> dict[str, str]:
        return {**self.namespaces.get(name, {}), "projectcalico.org/name": name}

    def _account(self, pod: Pod) -> dict[str, str]:
        found = self.accounts.get((pod.namespace, pod.account))
        return {} if found is None else {**found, "projectcalico.org/name": pod.account}

    # -- rules -------------------------------------------------------------------------------

    def _matches(self, rule: Mapping[str, Any], namespace: str, packet: Packet) -> bool:
        if rule.get("ipVersion") not in (None, packet.version):
            return False
        if "protocol" in rule and _number(rule["protocol"]) != packet.protocol:
            return False
        if "notProtocol" in rule and _number(rule["notProtocol"]) == packet.protocol:
            return False
        if "icmp" in rule and not _icmp(rule["icmp"], packet):
            return False
        if "notICMP" in rule and _icmp(rule["notICMP"], packet):
            return False
        ends = (
            (rule.get("source") or {}, packet.source, packet.source_port),
            (rule.get("destination") or {}, packet.destination, packet.destination_port),
        )
        return all(
            self._end(end, namespace, address, port, packet.protocol) for end, address, port in ends
        )

    def _end(
        self, end: Mapping[str, Any], namespace: str, address: Address, port: int, protocol: int
    ) -> bool:
        nets = [ip_network(net) for net in end.get("nets") or ()]
        if nets and not any(address in net for net in nets):
            return False
        excluded = [ip_network(net) for net in end.get("notNets") or ()]
        # networks are of one family, and so are then the packets that the rule is about
        if excluded and (
            excluded[0].version != address.version or any(address in net for net in excluded)
        ):
            return False
        if self._selective(end, namespace) and not any(
            self._selected(end, namespace, thing) and _holds_address(thing, address)
            for thing in self._things
        ):
            return False
        unwanted = end.get("notSelector")
        if unwanted and any(
            parse(unwanted).matches(thing.all_labels) and _holds_address(thing, address)
            for thing in self._things
        ):
            return False
        at = (address, protocol, port)
        ports = end.get("ports") or ()
        if ports and not self._on(ports, end, namespace, at):
            return False
        return not self._on(end.get("notPorts") or (), end, namespace, at)

    @staticmethod
    def _selective(end: Mapping[str, Any], namespace: str) -> bool:
        """Whether only what is selected will do; in a namespace "not these" is of those in it."""
        chosen = any(end.get(key) for key in ("selector", "namespaceSelector", "serviceAccounts"))
        return chosen or bool(end.get("notSelector") and namespace)

    def _selected(self, end: Mapping[str, Any], namespace: str, thing: Pod | NetSet) -> bool:
        where = end.get("namespaceSelector") or ""
        accounts = end.get("serviceAccounts") or {}
        names = accounts.get("names")
        of = self._account(thing) if isinstance(thing, Pod) else {}
        return (
            self._in(where, namespace, thing)
            and (not names or getattr(thing, "account", None) in names)
            and parse(accounts.get("selector") or "all()").matches(of)
            and parse(end.get("selector") or "all()").matches(thing.all_labels)
        )

    def _in(self, where: str, namespace: str, thing: Pod | NetSet) -> bool:
        """Whether a thing's namespace will do for a rule of a policy in `namespace`."""
        if not where:
            return not namespace or thing.namespace == namespace
        if where == "global()":
            return not thing.namespace
        if where == "all()":
            return bool(thing.namespace)
        return parse(where).matches(self._namespace(thing.namespace) if thing.namespace else {})

    def _on(
        self,
        ports: Iterable[int | str],
        end: Mapping[str, Any],
        namespace: str,
        at: tuple[Address, int, int],
    ) -> bool:
        address, protocol, port = at
        selective = self._selective(end, namespace)
        holders = [pod for pod in self.pods if address in pod.addresses]
        for one in ports:
            first, _, last = str(one).partition(":")
            if first.isdecimal():
                if int(first) <= port <= int(last or first):
                    return True
            elif any(
                (one, protocol, port) in pod.ports
                and (not selective or self._selected(end, namespace, pod))
                for pod in holders
            ):
                return True
        return False


def _number(protocol: int | str) -> int:
    return protocol if isinstance(protocol, int) else NUMBERS[protocol]


def _icmp(wanted: Mapping[str, int], packet: Packet) -> bool:
    return packet.icmp[0] == wanted["type"] and wanted.get("code", packet.icmp[1]) == packet.icmp[1]


def _holds_address(thing: Pod | NetSet, address: Address) -> bool:
    if isinstance(thing, Pod):
        return address in thing.addresses
    return any(address in ip_network(net) for net in thing.nets)
