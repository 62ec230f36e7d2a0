"""A rule of the rule model as nf_tables expressions: those that `nft` makes of its text. Pure.

`tests/netns/test_nft_messages.py` has the kernel list both. What a rule has in braces is an
anonymous set, made in the same transaction just before the rule.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_network

from felix_shim.drivers.nftables_rules import Sets, set_name
from felix_shim.rules import (
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
    Rule,
    SetKind,
    Side,
    Verdict,
    Way,
)
from libtortie.errors import KernelError
from libtortie.linux import nft_wire as wire
from libtortie.linux.nft_wire import Compare, Conntrack, Header, Message, Meta, SetShape
from libtortie.model.policy import PortRange

ANONYMOUS = "__set%d"
KEY_TYPES = {
    "ipv4_addr": 7,
    "ipv6_addr": 8,
    "ether_addr": 9,
    "inet_proto": 12,
    "inet_service": 13,
    "ifname": 41,
}
"""nft's numbers of the types of keys."""
KEY_LENGTHS = {
    "ipv4_addr": 4,
    "ipv6_addr": 16,
    "ether_addr": 6,
    "inet_proto": 1,
    "inet_service": 2,
    "ifname": 16,
}
"""Bytes of a key."""
_FAMILIES = {4: b"\x02", 6: b"\x0a"}  # NFPROTO_IPV4, NFPROTO_IPV6
_STATES = {
    ConnState.INVALID: 1,
    ConnState.ESTABLISHED: 2,
    ConnState.RELATED: 4,
    ConnState.UNTRACKED: 64,
}
_LINKS = {Way.IN: Meta.IIFNAME, Way.OUT: Meta.OIFNAME}
_PORT_OFFSETS = {Side.SOURCE: 0, Side.DESTINATION: 2}
_ADDRESSES = {
    (4, Side.SOURCE): (12, 4),
    (4, Side.DESTINATION): (16, 4),
    (6, Side.SOURCE): (8, 16),
    (6, Side.DESTINATION): (24, 16),
}
"""Offset and length (bytes) in the IP header."""
_ORIGINALS = {4: Conntrack.DST_IP, 6: Conntrack.DST_IP6}
_REGISTER_1 = 1
_FIRST_WORD = 8  # NFT_REG32_00: registers of 4 bytes, over which those of 16 lie
Interval = tuple[int, int]
"""First and last of what a key may be."""


class NeedsNft(KernelError):
    """Something that only the `nft` program can say."""


@dataclass(slots=True)
class RuleWriter:
    """Rules as messages; the numbers of anonymous sets differ within a transaction."""

    table: str
    sets: Sets
    tag: str
    _number: int = 0

    def messages(self, chain: str, rule: Rule) -> Iterator[Message]:
        """The rule's anonymous sets, then the rule. Raises `NeedsNft`."""
        draft = _Draft(self.sets, self.tag, self._number)
        for match in rule.matches:
            draft.match(match)
        draft.decide(rule.verdict)
        self._number = draft.number
        for shape, elements in draft.anonymous:
            yield wire.set_creation("inet", self.table, ANONYMOUS, shape)
            yield from wire.elements_creation("inet", self.table, ANONYMOUS, elements, shape.number)
        yield wire.rule_creation("inet", self.table, chain, draft.expressions)


@dataclass(slots=True)
class _Draft:
    """One rule in the making. `version`: the IP version that it has asked for already."""

    sets: Sets
    tag: str
    number: int
    version: int = 0
    expressions: list[bytes] = field(default_factory=list)
    anonymous: list[tuple[SetShape, tuple[bytes, ...]]] = field(default_factory=list)

    def match(self, match: Match) -> None:
        match match:
            case IsVersion(version):
                self._is_version(version)
            case IsProtocol(number, negated):
                self._say(wire.load_meta(Meta.L4PROTO), _equal(bytes([number]), negated))
            case InNets(side, version, nets, negated):
                self._load_address(version, side)
                self._in(f"ipv{version}_addr", map(interval, nets), negated)
            case InSet():
                self._in_set(match)
            case OnPort(side, ranges, negated):
                self._say(_load_port(side))
                self._on_port(ranges, negated)
            case IsIcmp(kind, code, negated):  # type and code are the header's first two bytes
                value = bytes([kind]) if code is None else bytes([kind, code])
                load = wire.load_payload(Header.TRANSPORT, 0, len(value))
                self._say(load, _equal(value, negated))
            case HasState(states):
                wanted = struct.pack("=I", sum(_STATES[one] for one in states))
                differs = wire.compare(Compare.DIFFERENT, bytes(4))
                self._say(wire.load_state(), wire.mask(wanted), differs)
            case OnLink(way, name):
                self._say(wire.load_meta(_LINKS[way]), _equal(_link(name), False))
            case _:
                raise NeedsNft(f"no netlink expressions for {match!r}")

    def decide(self, verdict: Verdict) -> None:
        match verdict:
            case Plain.ACCEPT:
                self._say(wire.decide(wire.Verdict.ACCEPT))
            case Plain.DROP:
                self._say(wire.count(), wire.decide(wire.Verdict.DROP))
            case Plain.NOTRACK:
                self._say(wire.notrack())
            case Jump(chain):
                self._say(wire.decide(wire.Verdict.JUMP, chain))
            case Goto(chain):
                self._say(wire.decide(wire.Verdict.GOTO, chain))
            case Log(prefix):
                self._say(wire.log(prefix))
            case Masquerade(address, ports):
                self._masquerade(address, ports)
            case _:
                raise NeedsNft(f"no netlink expressions for {verdict!r}")

    def _say(self, *expressions: bytes) -> None:
        self.expressions += expressions

    def _is_version(self, version: int) -> None:
        if self.version != version:
            self.version = version
            self._say(wire.load_meta(Meta.NFPROTO), _equal(_FAMILIES[version], False))

    def _load_address(self, version: int, side: Side) -> None:
        if side is Side.ORIGINAL:  # of a connection of the other family there is none
            self._say(wire.load_original(_ORIGINALS[version]))
            return
        self._is_version(version)
        self._say(wire.load_payload(Header.NETWORK, *_ADDRESSES[version, side]))

    def _in_set(self, match: InSet) -> None:
        key = match.key
        if key.kind is SetKind.PORT_RANGES:
            self._say(_load_port(match.side))
        else:
            self._load_address(key.version, match.side)
        if key.has_ports:
            behind = _FIRST_WORD + (1 if key.version == 4 else 4)
            self._say(wire.load_meta(Meta.L4PROTO, behind), _load_port(match.side, behind + 1))
        self._say(wire.look_up(set_name(key, self.sets, self.tag), negated=match.negated))

    def _masquerade(self, address: str, ports: PortRange | None) -> None:
        values = [IPv4Address(address).packed] if address else []
        if ports is not None:
            values += [one.to_bytes(2, "big") for one in sorted({ports.first, ports.last})]
        for register, value in enumerate(values, _REGISTER_1):
            self._say(wire.load(value, register))
        first = _REGISTER_1 + bool(address)
        ends = (first, len(values)) if ports is not None else None
        self._say(wire.source_nat(_REGISTER_1, ends) if address else wire.masquerade(ends))

    def _on_port(self, ranges: tuple[PortRange, ...], negated: bool) -> None:
        if len(ranges) > 1:
            found = ((one.first, one.last) for one in ranges)
            self._in("inet_service", found, negated)
            return
        (only,) = ranges
        first, last = only.first.to_bytes(2, "big"), only.last.to_bytes(2, "big")
        if negated:
            self._say(wire.outside(first, last))
        elif first == last:
            self._say(_equal(first, False))
        else:
            self._say(wire.compare(Compare.AT_LEAST, first), wire.compare(Compare.AT_MOST, last))

    def _in(self, kind: str, wanted: Iterable[Interval], negated: bool) -> None:
        """The register is (not) in one of these intervals, which lie apart."""
        intervals = sorted(wanted)
        length = KEY_LENGTHS[kind]
        prefix = _common_bits(*intervals[0], length) if len(intervals) == 1 else None
        if prefix is not None:
            self._say(*prefix, _equal(intervals[0][0].to_bytes(length, "big"), negated))
            return
        ranged = any(first != last for first, last in intervals)
        elements = tuple(
            element
            for one in (merged(intervals) if ranged else intervals)
            for element in (interval_elements(one, length) if ranged else plain(one[0], length))
        )
        self.number += 1
        flags = wire.ANONYMOUS | wire.CONSTANT | (wire.INTERVAL if ranged else 0)
        shape = SetShape(KEY_TYPES[kind], length, flags, self.number, len(elements))
        self.anonymous.append((shape, elements))
        self._say(wire.look_up(ANONYMOUS, negated=negated, number=self.number))


def interval(text: str) -> Interval:
    """The first and last address of a network or host."""
    net = ip_network(text)
    return int(net.network_address), int(net.broadcast_address)


def interval_elements(one: Interval, length: int) -> Iterator[bytes]:
    """An interval as its first key and the one behind its last, unless there is none behind."""
    first, last = one
    yield wire.element(first.to_bytes(length, "big"))
    if last + 1 < 1 << 8 * length:
        yield wire.element((last + 1).to_bytes(length, "big"), ends=True)


def plain(key: int, length: int) -> Iterator[bytes]:
    """A key of a set without intervals."""
    yield wire.element(key.to_bytes(length, "big"))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, those that touch made one, as `nft` does for what is in braces."""
    found: list[Interval] = []
    for first, last in intervals:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _common_bits(first: int, last: int, length: int) -> list[bytes] | None:
    """The mask that makes all of an interval its first key; None if no mask does."""
    host = first ^ last
    if host & (host + 1) or first & host:
        return None
    if not host:
        return []
    return [wire.mask(((1 << 8 * length) - 1 ^ host).to_bytes(length, "big"))]


def _load_port(side: Side, register: int = _REGISTER_1) -> bytes:
    if side is Side.ORIGINAL:
        return wire.load_original(Conntrack.PROTO_DST, register)
    return wire.load_payload(Header.TRANSPORT, _PORT_OFFSETS[side], 2, register)


def _link(name: str) -> bytes:
    """A link's whole name; with a `*` at its end as much of it as is said."""
    known = name.removesuffix("*").encode()
    if not known or len(known) >= KEY_LENGTHS["ifname"]:
        raise ValueError(f"{name!r} is no link")
    return known if name.endswith("*") else known.ljust(KEY_LENGTHS["ifname"], b"\0")


def _equal(value: bytes, negated: bool) -> bytes:
    return wire.compare(Compare.DIFFERENT if negated else Compare.EQUAL, value)
