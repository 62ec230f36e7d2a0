"""Runs the rule model on a packet, as nft would its text: one rule after the other."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_network

from felix_shim.policy_sets import Elements
from felix_shim.rules import (
    Chain,
    ConnState,
    Goto,
    HasState,
    InNets,
    InSet,
    IsIcmp,
    IsProtocol,
    IsVersion,
    Jump,
    Log,
    Masquerade,
    Match,
    OnLink,
    OnPort,
    Plain,
    SetKey,
    SetKind,
    Side,
    Way,
)
from tests.fakes.packets import ICMP, ICMPV6, WITH_PORTS, Packet

DEPTH_MAX = 16
"""Of the kernel's jumps (NFT_JUMP_STACK_SIZE)."""


class RuleMachine:
    """`stops` are chains that stand for "allowed"; to lead nowhere is an error.

    A packet that `NOTRACK` met is in `untracked` afterwards, and is so for whoever asks later.
    """

    def __init__(
        self,
        chains: Mapping[str, Chain],
        sets: Mapping[SetKey, Elements],
        stops: frozenset[str] = frozenset({"allowed-to", "allowed-from"}),
    ) -> None:
        self._chains, self._sets, self._stops = chains, sets, stops
        self.logged: list[str] = []
        self.untracked: set[Packet] = set()

    def allows(self, chain: str, packet: Packet) -> bool:
        """Whether a packet that goes to a chain is let through; every way must end in a verdict."""
        verdict = self._run(chain, packet, 0)
        assert verdict is not None, f"chain {chain} decides nothing about {packet}"
        return verdict

    def passes(self, chain: str, packet: Packet) -> bool:
        """Whether a packet that a base chain sends there goes on: nobody drops it."""
        return self._run(chain, packet, 0) is not False

    def _run(self, chain: str, packet: Packet, depth: int) -> bool | None:
        assert depth < DEPTH_MAX
        if chain in self._stops:
            return True
        for rule in self._chains[chain]:
            if not all(self._holds(match, packet) for match in rule.matches):
                continue
            match rule.verdict:
                case Plain.ACCEPT:
                    return True
                case Plain.DROP:
                    return False
                case Plain.NOTRACK:
                    self.untracked.add(packet)
                case Log(prefix):
                    self.logged.append(prefix)
                case Masquerade():
                    raise AssertionError("the machine translates no addresses")
                case Goto(other):
                    return self._run(other, packet, depth)
                case Jump(other):
                    decided = self._run(other, packet, depth + 1)
                    if decided is not None:
                        return decided
        return None

    def _holds(self, match: Match, packet: Packet) -> bool:
        match match:
            case IsVersion(version):
                return packet.version == version
            case IsProtocol(number, negated):
                return (packet.protocol == number) is not negated
            case InNets() | InSet() | OnLink() | HasState():
                return self._is_of(match, packet)
            case OnPort(side, ranges, negated):
                if side is Side.ORIGINAL and packet in self.untracked:
                    return False
                port = _port(packet, side)
                there = any(one.first <= port <= one.last for one in ranges)
                return packet.protocol in WITH_PORTS and there is not negated
            case IsIcmp(kind, code, negated):
                same = packet.icmp[0] == kind and code in (None, packet.icmp[1])
                return packet.protocol in (ICMP, ICMPV6) and same is not negated

    def _is_of(self, match: InNets | InSet | OnLink | HasState, packet: Packet) -> bool:
        """Of another family than the match's, a packet is neither in nor out of networks and sets.

        Every packet is the first of its connection.
        """
        if isinstance(match, HasState):
            return ConnState.UNTRACKED in match.states and packet in self.untracked
        if isinstance(match, OnLink):
            return match.name == (packet.link_in if match.way is Way.IN else packet.link_out)
        if match.side is Side.ORIGINAL and packet in self.untracked:
            return False
        if isinstance(match, InSet) and match.key.kind is SetKind.PORT_RANGES:
            port = _port(packet, match.side)
            ranges = (text.split("-") for text in self._sets[match.key].texts)
            there = any(int(first) <= port <= int(last) for first, last in ranges)
            return packet.protocol in WITH_PORTS and there is not match.negated
        address = _address(packet, match.side)
        if isinstance(match, InSet):
            version, found = match.key.version, self._contains(match.key, packet, match.side)
        else:
            version, found = match.version, any(address in ip_network(one) for one in match.nets)
        return packet.version == version and found is not match.negated

    def _contains(self, key: SetKey, packet: Packet, side: Side) -> bool:
        elements = self._sets[key].texts
        address = _address(packet, side)
        if key.has_ports:
            return f"{address} . {packet.protocol} . {_port(packet, side)}" in elements
        return any(address in ip_network(text) for text in elements)


def _address(packet: Packet, side: Side) -> IPv4Address | IPv6Address:
    if side is Side.ORIGINAL and packet.original is not None:
        return packet.original[0]
    return packet.source if side is Side.SOURCE else packet.destination


def _port(packet: Packet, side: Side) -> int:
    if side is Side.ORIGINAL and packet.original is not None:
        return packet.original[1]
    return packet.source_port if side is Side.SOURCE else packet.destination_port
