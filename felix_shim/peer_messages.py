"""What agents say to each other, as values and as frames. Pure.

A frame is its body's length, the version and the kind (6 bytes), then a JSON body of at most
`BODY_MAX` bytes: small enough that reading one holds up nobody. A target asks, a source answers:
the entries in several frames, then how many there were, or why there are none. A target that has
heard its VM says so to the owner of the VM's block, too. What is read comes from another node:
anything else than this is `Malformed`, but for a kind that a newer agent knows: an upgrade changes
agents one by one, so kinds may be added, and the version stays until one of them changes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from felix_shim.flow_codec import decode_flow, encode_flow
from libtortie.errors import Malformed
from libtortie.linux.flows import Flow
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import plain_address

VERSION = 1
BODY_MAX = 1 << 16
HEADER = struct.Struct(">IBB")
FLOWS_IN_FRAME = 200
_NAME_MAX = 253
_ADDRESSES_MAX = 64
_REASON_MAX = 200


class Kind(IntEnum):
    """The kinds of frames."""

    WANTED = 1
    CUT_OVER = 2
    FLOWS = 3
    END = 4
    REFUSED = 5
    MOVED = 6


@dataclass(frozen=True, slots=True)
class Request:
    """A migration's target wants the connections of the VM.

    `cut_over`: the VM has been heard here. That is the notice; the answer is the last copy.
    """

    migration_uid: str
    vmi_uid: str
    addresses: tuple[IPAddress, ...]
    cut_over: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """The VM of a migration has been heard here: its addresses are on the sender's node.

    Nothing is asked for; the answer is `End(0)`, which says that it was heard.
    """

    migration_uid: str
    addresses: tuple[IPAddress, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of the connections."""

    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class End:
    """All connections were sent: so many."""

    count: int


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no answer; `reason` is for the other side's log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that a newer agent has to say. It is never sent; whoever asks is `Refused`, and
    what it says next is heard."""

    kind: int


Message = Request | Moved | Batch | End | Refused


def encode(message: Message) -> bytes:
    """The frame of a message. Raises `Malformed` for one that is too large."""
    kind, content = _content(message)
    body = json.dumps(content, separators=(",", ":")).encode()
    if len(body) > BODY_MAX:
        raise Malformed(f"a message of {len(body)} bytes; at most {BODY_MAX}")
    return HEADER.pack(len(body), VERSION, kind) + body


def batches(flows: Sequence[Flow]) -> Iterator[Message]:
    """The messages that carry these connections."""
    for start in range(0, len(flows), FLOWS_IN_FRAME):
        yield Batch(tuple(flows[start : start + FLOWS_IN_FRAME]))
    yield End(len(flows))


def parse_header(header: bytes) -> tuple[int, Kind | Unknown]:
    """The length and kind of the body that follows. Raises `Malformed`."""
    length, version, kind = HEADER.unpack(header)
    if version != VERSION:
        raise Malformed(f"a message of version {version}; this agent speaks {VERSION}")
    if length > BODY_MAX:
        raise Malformed(f"a message of {length} bytes; at most {BODY_MAX}")
    return length, Kind(kind) if kind in set(Kind) else Unknown(kind)


def decode(kind: Kind, body: bytes) -> Message:
    """The message of a frame's body. Raises `Malformed`."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed("a message that is no JSON") from error
    match kind:
        case Kind.WANTED | Kind.CUT_OVER:
            return _request(content, cut_over=kind is Kind.CUT_OVER)
        case Kind.MOVED:
            if not isinstance(content, list) or len(content) != 2:
                raise Malformed("a notice of another form")
            return Moved(_text(content[0], _NAME_MAX), _addresses(content[1]))
        case Kind.FLOWS:
            if not isinstance(content, list) or len(content) > FLOWS_IN_FRAME:
                raise Malformed("a message of connections of another form")
            return Batch(tuple(decode_flow(item) for item in content))
        case Kind.END:
            if not isinstance(content, int) or isinstance(content, bool) or content < 0:
                raise Malformed("an end without a number")
            return End(content)
        case Kind.REFUSED:
            return Refused(_text(content, _REASON_MAX))


def _content(message: Message) -> tuple[Kind, Any]:
    match message:
        case Request():
            kind = Kind.CUT_OVER if message.cut_over else Kind.WANTED
            addresses = [str(one) for one in message.addresses]
            return kind, [message.migration_uid, message.vmi_uid, addresses]
        case Moved(migration, moved):
            return Kind.MOVED, [migration, [str(one) for one in moved]]
        case Batch(flows):
            return Kind.FLOWS, [encode_flow(flow) for flow in flows]
        case End(count):
            return Kind.END, count
        case Refused(reason):
            return Kind.REFUSED, reason[:_REASON_MAX]


def _request(content: object, *, cut_over: bool) -> Request:
    if not isinstance(content, list) or len(content) != 3:
        raise Malformed("a request of another form")
    migration, vmi, addresses = content
    parsed = _addresses(addresses)
    return Request(_text(migration, _NAME_MAX), _text(vmi, _NAME_MAX), parsed, cut_over)


def _addresses(addresses: object) -> tuple[IPAddress, ...]:
    if not isinstance(addresses, list) or not 1 <= len(addresses) <= _ADDRESSES_MAX:
        raise Malformed("a request without addresses, or with too many")
    try:
        return tuple(plain_address(_text(one, _NAME_MAX)) for one in addresses)
    except ValueError as error:
        raise Malformed(f"a request's address: {error}") from error


def _text(content: object, most: int) -> str:
    if not isinstance(content, str) or len(content) > most:
        raise Malformed("a text that is none, or too long")
    return content
