"""nf_tables messages and expressions, packed by hand. Pure.

Layouts: linux/netfilter/nf_tables.h. Every number in an attribute is big-endian, except what goes
through registers: that is as the packet or the kernel has it. A message is (type, flags, body);
`nft_batch.py` numbers and sends them.

pyroute2's NFTSocket builds such messages from dictionaries, at some 30 µs for each attribute; a
set's element has four, and a transaction may have thousands of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from libtortie.linux.wire import attribute

NEWCHAIN, DELCHAIN, NEWRULE, DELRULE, NEWSET, DELSET, NEWELEM, DELELEM = 3, 5, 6, 8, 9, 11, 12, 14
NEWGEN, GETGEN = 15, 16
_CREATE, _APPEND = 0x400, 0x800
_NESTED = 0x8000
_LIST_ELEM = 1
_ELEMENTS_MAX = 32_000
"""Bytes of elements in one message; an attribute's length has 16 bits."""
ANONYMOUS, CONSTANT, INTERVAL, MAP = 0x1, 0x2, 0x4, 0x8
_VERDICT_DATA = 0xFFFFFF00
_NETWORK_ORDER = struct.pack("=BBI", 0, 4, 2)
"""A note of nft's to itself, kept by the kernel: it lists a set's keys in this byte order."""
_REGISTER_1 = 1
_SOURCE_NAT, _PORTS_SPECIFIED = 0, 2
_FAMILIES = {"inet": 1, "ip": 2, "arp": 3, "ip6": 10}


class Verdict(IntEnum):
    """Verdict codes."""

    DROP = 0
    ACCEPT = 1
    JUMP = -3
    GOTO = -4
    RETURN = -5


class Meta(IntEnum):
    """What `meta` loads."""

    IIFNAME = 6
    OIFNAME = 7
    NFPROTO = 15
    L4PROTO = 16


class Conntrack(IntEnum):
    """What `ct` loads that differs with a connection's direction."""

    PROTO_DST = 12
    DST_IP = 20
    DST_IP6 = 22


class Header(IntEnum):
    """Where `payload` counts from."""

    NETWORK = 1
    TRANSPORT = 2


class Compare(IntEnum):
    """How `cmp` and `range` compare."""

    EQUAL = 0
    DIFFERENT = 1
    AT_MOST = 3
    AT_LEAST = 5


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a transaction: type, flags and body behind the netlink header."""

    kind: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class SetShape:
    """A set's declaration: its type as nft numbers it, its key's length (bytes), its flags.

    `number` names an anonymous set inside its transaction; `size` is how many elements it gets.
    """

    key_type: int
    key_length: int
    flags: int = 0
    number: int = 0
    size: int = 0


# Objects


def chain_creation(family: str, table: str, chain: str) -> Message:
    """A chain that hangs on no hook; one that exists stays as it is."""
    return Message(NEWCHAIN, _CREATE, _head(family) + _text(1, table) + _text(3, chain))


def chain_deletion(family: str, table: str, chain: str) -> Message:
    """A chain that nothing leads to any more."""
    return Message(DELCHAIN, 0, _head(family) + _text(1, table) + _text(3, chain))


def rule_creation(family: str, table: str, chain: str, expressions: Iterable[bytes]) -> Message:
    """A rule behind the others of its chain."""
    body = _nest(4, b"".join(expressions))
    head = _head(family) + _text(1, table) + _text(2, chain)
    return Message(NEWRULE, _CREATE | _APPEND, head + body)


def chain_emptying(family: str, table: str, chain: str) -> Message:
    """All rules of a chain."""
    return Message(DELRULE, 0, _head(family) + _text(1, table) + _text(2, chain))


def set_creation(family: str, table: str, name: str, shape: SetShape) -> Message:
    """A set or verdict map."""
    body = _text(1, table) + _text(2, name) + _u32(3, shape.flags)
    body += _u32(4, shape.key_type) + _u32(5, shape.key_length)
    if shape.flags & MAP:
        body += _u32(6, _VERDICT_DATA) + _u32(7, 0)
    if shape.size:
        body += _nest(9, _u32(1, shape.size))
    body += _u32(10, shape.number) + attribute(13, _NETWORK_ORDER)
    return Message(NEWSET, _CREATE, _head(family) + body)


def set_deletion(family: str, table: str, name: str) -> Message:
    """A set that no rule looks into any more."""
    return Message(DELSET, 0, _head(family) + _text(1, table) + _text(2, name))


def element(key: bytes, *, ends: bool = False, jump: str = "") -> bytes:
    """One element; `ends`: an interval's first key behind it; `jump`: a verdict map's chain."""
    content = _nest(1, attribute(1, key))
    if jump:
        content += _nest(2, verdict_data(Verdict.JUMP, jump))
    if ends:
        content += _u32(3, 1)
    return _nest(_LIST_ELEM, content)


def elements_creation(
    family: str, table: str, name: str, elements: Iterable[bytes], number: int = 0
) -> Iterator[Message]:
    """Elements of a set come; `number` for one that is made in this transaction."""
    for some in _portions(elements):
        yield Message(NEWELEM, _CREATE, _elements(family, table, name, some, number))


def elements_deletion(
    family: str, table: str, name: str, elements: Iterable[bytes]
) -> Iterator[Message]:
    """Elements of a set go."""
    for some in _portions(elements):
        yield Message(DELELEM, 0, _elements(family, table, name, some, 0))


def _elements(family: str, table: str, name: str, some: bytes, number: int) -> bytes:
    body = _head(family) + _text(1, table) + _text(2, name) + _nest(3, some)
    return body + (_u32(4, number) if number else b"")


def _portions(elements: Iterable[bytes]) -> Iterator[bytes]:
    portion = bytearray()
    for one in elements:
        if len(portion) + len(one) > _ELEMENTS_MAX:
            yield bytes(portion)
            portion.clear()
        portion += one
    if portion:
        yield bytes(portion)


# Expressions


def load_meta(key: Meta, register: int = _REGISTER_1) -> bytes:
    """What the kernel knows of the packet → register."""
    return _expression("meta", _u32(2, key) + _u32(1, register))


def load_payload(base: Header, offset: int, length: int, register: int = _REGISTER_1) -> bytes:
    """Bytes of the packet → register."""
    where = _u32(2, base) + _u32(3, offset) + _u32(4, length)
    return _expression("payload", _u32(1, register) + where)


def load_state() -> bytes:
    """The connection's state as a bit set → register."""
    return _expression("ct", _u32(2, 0) + _u32(1, _REGISTER_1))


def load_original(key: Conntrack, register: int = _REGISTER_1) -> bytes:
    """What a connection's first packet had → register; the rule ends where there is none."""
    return _expression("ct", _u32(2, key) + attribute(3, b"\0") + _u32(1, register))


def load(value: bytes, register: int = _REGISTER_1) -> bytes:
    """Value → register."""
    return _expression("immediate", _u32(1, register) + _data(2, value))


def mask(value: bytes) -> bytes:
    """Register & value → register."""
    registers = _u32(1, _REGISTER_1) + _u32(2, _REGISTER_1) + _u32(3, len(value))
    return _expression("bitwise", registers + _data(4, value) + _data(5, bytes(len(value))))


def compare(how: Compare, value: bytes) -> bytes:
    """Go on with the rule only if the register compares so."""
    return _expression("cmp", _u32(1, _REGISTER_1) + _u32(2, how) + _data(3, value))


def outside(first: bytes, last: bytes) -> bytes:
    """Go on only if the register is not between these, both included."""
    ends = _data(3, first) + _data(4, last)
    return _expression("range", _u32(1, _REGISTER_1) + _u32(2, Compare.DIFFERENT) + ends)


def look_up(name: str, *, negated: bool = False, number: int = 0) -> bytes:
    """Go on only if the register is (not) in the set; `number` as in `SetShape`."""
    content = _text(1, name) + _u32(2, _REGISTER_1) + (_u32(4, number) if number else b"")
    return _expression("lookup", content + (_u32(5, 1) if negated else b""))


def count() -> bytes:
    """Count packets and bytes."""
    return _expression("counter", attribute(1, bytes(8)) + attribute(2, bytes(8)))


def log(prefix: str) -> bytes:
    """A line in the kernel's log."""
    return _expression("log", _text(2, prefix))


def notrack() -> bytes:
    """Keep the packet from conntrack."""
    return _expression("notrack", b"")


def masquerade(ports: tuple[int, int] | None = None) -> bytes:
    """Give the connection the outgoing link's address; `ports` are registers, first and last."""
    content = b""
    if ports is not None:
        content = _u32(1, _PORTS_SPECIFIED) + _u32(2, ports[0]) + _u32(3, ports[1])
    return _expression("masq", content)


def source_nat(address: int, ports: tuple[int, int] | None = None) -> bytes:
    """Give the connection the IPv4 address of a register; `ports` as in `masquerade`."""
    content = _u32(1, _SOURCE_NAT) + _u32(2, _FAMILIES["ip"]) + _u32(3, address)
    if ports is not None:
        content += _u32(5, ports[0]) + _u32(6, ports[1]) + _u32(7, _PORTS_SPECIFIED)
    return _expression("nat", content)


def decide(verdict: Verdict, chain: str = "") -> bytes:
    """What becomes of the packet."""
    return _expression("immediate", _u32(1, 0) + _nest(2, verdict_data(verdict, chain)))


def verdict_data(verdict: Verdict, chain: str = "") -> bytes:
    """A verdict as data."""
    code = attribute(1, struct.pack(">i", verdict))
    return _nest(2, code + (_text(2, chain) if chain else b""))


# Attributes


def generation_check(generation: int) -> bytes:
    """NFNL_BATCH_GENID: refuse the batch when the ruleset is of another generation."""
    return _u32(1, generation)


def _head(family: str) -> bytes:
    """`struct nfgenmsg`."""
    return struct.pack(">BBH", _FAMILIES[family], 0, 0)


def _expression(name: str, content: bytes) -> bytes:
    return _nest(_LIST_ELEM, _text(1, name) + _nest(2, content))


def _data(kind: int, value: bytes) -> bytes:
    return _nest(kind, attribute(1, value))


def _nest(kind: int, content: bytes) -> bytes:
    return attribute(kind | _NESTED, content)


def _u32(kind: int, value: int) -> bytes:
    return struct.pack("=HH", 8, kind) + struct.pack(">I", value)


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")
