"""What policies mean for the node itself, read off the resources: slow, plain, and no other code.

An incoming packet is asked about before conntrack, before DNAT, and then as what it is: to the node
or through it. The first that says something decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any

from tests.fakes.packets import ICMPV6, TCP, Packet
from tests.fakes.policy_meaning import NUMBERS, Address, Meaning, Pod, Written

UNTRACKED, PRE_DNAT, NORMAL, FORWARD = "untracked", "preDNAT", "normal", "forward"
_BOTH: tuple[dict[str, Any], ...] = tuple(
    {"protocol": "TCP", "port": port} for port in (179, 2379, 2380, 5473, 6443, 6666, 6667)
)
DEFAULT_IN: tuple[dict[str, Any], ...] = (
    *_BOTH,
    {"protocol": "TCP", "port": 22},
    {"protocol": "UDP", "port": 68},
)
DEFAULT_OUT: tuple[dict[str, Any], ...] = (
    *_BOTH,
    {"protocol": "UDP", "port": 53},
    {"protocol": "UDP", "port": 67},
)
NEEDED_TYPES = (130, 131, 132, 133, 134, 135, 136, 143)


@dataclass(frozen=True)
class Hep(Pod):
    """A host endpoint: an item that selectors select, in no namespace."""

    link: str = "*"
    allows_rest: bool = False
    """Whether it has the profile that allows what no policy is about."""

    @property
    def all_labels(self) -> dict[str, str]:
        """What a selector sees."""
        return dict(self.labels)


@dataclass(frozen=True)
class HostMeaning:
    """A cluster and one node of it. `between` are TCP ports that its `nodes` keep open."""

    meaning: Meaning
    heps: tuple[Hep, ...]
    failsafe_in: tuple[Mapping[str, Any], ...] = DEFAULT_IN
    failsafe_out: tuple[Mapping[str, Any], ...] = DEFAULT_OUT
    between: tuple[int, ...] = ()
    nodes: tuple[Address, ...] = ()

    @property
    def world(self) -> Meaning:
        """The cluster, in which host endpoints are things like others."""
        return replace(self.meaning, pods=(*self.meaning.pods, *self.heps))

    def hep_of(self, link: str) -> Hep | None:
        """Whose link it is."""
        named = [hep for hep in self.heps if hep.link == link]
        every = [hep for hep in self.heps if hep.link == "*"]
        found = sorted(named, key=lambda hep: hep.name) or sorted(every, key=lambda hep: hep.name)
        return found[0] if found else None

    def enters(self, link: str, packet: Packet, before: Packet | None = None) -> bool:
        """Whether a packet gets to the node itself; `before` is it before its translation."""
        hep = self.hep_of(link)
        if hep is None:
            return True
        early = self._early(hep, before or packet)
        if early is not None:
            return early
        if self._open(self.failsafe_in, packet, packet.source, packet.destination_port):
            return True
        decided = self._judged(hep, "ingress", NORMAL, packet)
        return hep.allows_rest if decided is None else decided

    def leaves(self, link: str, packet: Packet) -> bool:
        """Whether a packet of the node itself gets out."""
        hep = self.hep_of(link)
        if hep is None or self._open(
            self.failsafe_out, packet, packet.destination, packet.destination_port
        ):
            return True
        answers = self._open(self.failsafe_in, packet, packet.destination, packet.source_port)
        early = None if answers else self._judged(hep, "egress", UNTRACKED, packet)
        if early is not None:
            return early
        decided = self._judged(hep, "egress", NORMAL, packet)
        return hep.allows_rest if decided is None else decided

    def comes_through(self, link: str, packet: Packet, before: Packet | None = None) -> bool:
        """Whether a packet that is on its way to somebody else gets in."""
        hep = self.hep_of(link)
        if hep is None:
            return True
        early = self._early(hep, before or packet)
        if early is not None:
            return early
        return self._judged(hep, "ingress", FORWARD, packet) is not False

    def goes_through(self, link: str, packet: Packet) -> bool:
        """Whether a packet that is on its way to somebody else gets out."""
        hep = self.hep_of(link)
        return hep is None or self._judged(hep, "egress", FORWARD, packet) is not False

    def _early(self, hep: Hep, packet: Packet) -> bool | None:
        """What is said of a packet as it came, before conntrack and before DNAT."""
        asks = self._open(self.failsafe_in, packet, packet.source, packet.destination_port)
        answers = self._open(self.failsafe_out, packet, packet.source, packet.source_port)
        if not asks and not answers:
            decided = self._judged(hep, "ingress", UNTRACKED, packet)
            if decided is not None:
                return decided
        return None if asks else self._judged(hep, "ingress", PRE_DNAT, packet)

    def _open(
        self, ports: tuple[Mapping[str, Any], ...], packet: Packet, far: Address, port: int
    ) -> bool:
        """Whether a packet is one that no policy may stop."""
        if packet.protocol == ICMPV6:
            return packet.icmp[0] in NEEDED_TYPES
        if packet.protocol == TCP and far in self.nodes and port in self.between:
            return True
        for one in ports:
            if NUMBERS[one["protocol"]] != packet.protocol or one["port"] != port:
                continue
            net = ip_network(one["net"]) if one.get("net") else None
            if net is None or far in net:
                return True
        return False

    def _judged(self, hep: Hep, direction: str, when: str, packet: Packet) -> bool | None:
        world = self.world
        mine = [
            one
            for one in world.policies
            if _when(one, when) and self._applies(world, one, hep, direction)
        ]
        named = {one.spec.get("tier", "default") for one in mine}
        for tier in sorted(named, key=world._tier_rank):
            inside = [one for one in mine if one.spec.get("tier", "default") == tier]
            action = self._first(world, inside, direction, packet)
            if action in ("Allow", "Deny"):
                return action == "Allow"
            denies = world.tiers.get(tier, (None, "Deny"))[1] != "Pass"
            if action == "" and denies and when in (NORMAL, FORWARD):
                return False
        return None

    @staticmethod
    def _first(world: Meaning, policies: list[Written], direction: str, packet: Packet) -> str:
        for policy in sorted(policies, key=world._rank):
            for rule in policy.spec.get(direction) or ():
                if rule["action"] != "Log" and world._matches(rule, policy.namespace, packet):
                    return str(rule["action"])
        return ""

    @staticmethod
    def _applies(world: Meaning, policy: Written, hep: Hep, direction: str) -> bool:
        if policy.spec.get("namespaceSelector") == "all()":
            return False  # it is in none
        return world._applies(policy, hep, direction)


def _when(policy: Written, when: str) -> bool:
    spec = policy.spec
    if spec.get("doNotTrack"):
        return when == UNTRACKED
    if spec.get("preDNAT"):
        return when == PRE_DNAT
    return when == NORMAL or (when == FORWARD and bool(spec.get("applyOnForward")))
