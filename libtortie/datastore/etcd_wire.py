"""Protobuf's wire format, as far as transactions need it.

etcd3's generated classes run in pure Python, some 100 µs for each operation of a transaction,
both ways together; this is some 5 µs. A test holds it to those classes.
"""

from __future__ import annotations

from collections.abc import Iterator

from libtortie.errors import Malformed

_MASK = 2**64 - 1
_BYTES = tuple(bytes((value,)) for value in range(0x80))
"""Of the numbers that take one byte: most are such, and a look is quicker than making one."""
_HEADS = tuple(
    tuple(bytes((field << 3 | 2, length)) for length in range(0x80)) for field in range(16)
)
"""What stands before a short value, by field and length."""


def number(field: int, value: int) -> bytes:
    """A varint field (int64, bool, enum); also where the value is the default."""
    return _varint(field << 3) + _varint(value & _MASK)


def text(field: int, value: bytes) -> bytes:
    """A length-delimited field: bytes, or a message that is already encoded."""
    try:
        return _HEADS[field][len(value)] + value
    except IndexError:
        return _varint(field << 3 | 2) + _varint(len(value)) + value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order, numbers as unsigned. Raises `Malformed`."""
    at, end = 0, len(data)
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
        value, at = _read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, value
        elif kind == 2 and at + value <= end:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise Malformed(f"etcd's answer: field {tag >> 3} of wire type {kind}")


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _BYTES[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise Malformed("etcd's answer: a number without an end")
