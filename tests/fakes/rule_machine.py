"""Runs the rule model on a packet, as nft would its text: one rule after the other."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_network

from felix_shim.policy_sets import Elements
from felix_shim.rules import (
    Chain,
    Goto,
    HasState,
    InNets,
    InSet,
    IsIcmp,
    IsProtocol,
    IsVersion,
    Jump,
    Log,
    Match,
    OnPort,
    Plain,
    SetKey,
    SetKind,
    Side,
)
from tests.fakes.packets import ICMP, ICMPV6, WITH_PORTS, Packet

DEPTH_MAX = 16
"""Of the kernel's jumps (NFT_JUMP_STACK_SIZE)."""


class RuleMachine:
    """`stops` are chains that stand for "allowed"; to lead nowhere is an error."""

    def __init__(
        self,
        chains: Mapping[str, Chain],
        sets: Mapping[SetKey, Elements],
        stops: frozenset[str] = frozenset({"allowed-to", "allowed-from"}),
    ) -> None:
        self._chains, self._sets, self._stops = chains, sets, stops
        self.logged: list[str] = []

    def allows(self, chain: str, packet: Packet) -> bool:
        """Whether a packet that goes to a chain is let through; every way must end in a verdict."""
        verdict = self._run(chain, packet, 0)
        assert verdict is not None, f"chain {chain} decides nothing about {packet}"
        return verdict

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
                case Log(prefix):
                    self.logged.append(prefix)
                case Goto(other):
                    decided = self._run(other, packet, depth)
                    assert decided is not None, f"{other} was gone to and decides nothing"
                    return decided
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
            case InNets() | InSet():
                return self._is_of(match, packet)
            case OnPort(side, ranges, negated):
                port = _port(packet, side)
                there = any(one.first <= port <= one.last for one in ranges)
                return packet.protocol in WITH_PORTS and there is not negated
            case IsIcmp(kind, code, negated):
                same = packet.icmp[0] == kind and code in (None, packet.icmp[1])
                return packet.protocol in (ICMP, ICMPV6) and same is not negated
            case HasState():
                return False  # packets are the first of their connections

    def _is_of(self, match: InNets | InSet, packet: Packet) -> bool:
        """Of another family than the match's, a packet is neither in nor out."""
        address = _address(packet, match.side)
        if isinstance(match, InSet):
            version, found = match.key.version, self._contains(match.key, packet, match.side)
        else:
            version, found = match.version, any(address in ip_network(one) for one in match.nets)
        return packet.version == version and found is not match.negated

    def _contains(self, key: SetKey, packet: Packet, side: Side) -> bool:
        elements = self._sets[key].texts
        address = _address(packet, side)
        if key.kind is SetKind.PORTS:
            return f"{address} . {packet.protocol} . {_port(packet, side)}" in elements
        return any(address in ip_network(text) for text in elements)


def _address(packet: Packet, side: Side) -> IPv4Address | IPv6Address:
    return packet.source if side is Side.SOURCE else packet.destination


def _port(packet: Packet, side: Side) -> int:
    return packet.source_port if side is Side.SOURCE else packet.destination_port
