"""From when until when certificates are valid: read from PEM and DER (RFC 5280 §4.1); pure.

The standard library tells it of peers after a handshake, but of no certificate that one merely has.
Nothing else of a certificate is read, and nothing of it is verified.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from libtortie.errors import Malformed

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_FORMS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


@dataclass(frozen=True, slots=True)
class Validity:
    """A certificate's time."""

    not_before: datetime
    not_after: datetime

    @property
    def lifetime(self) -> timedelta:
        """All of it."""
        return self.not_after - self.not_before


def validity(pem: str) -> Validity:
    """Of the first certificate of a PEM text. Raises `Malformed`."""
    try:
        begin = pem.index(_BEGIN)  # there may be words before it
        first = pem[begin : pem.index(_END, begin)].strip()
        return _validity(ssl.PEM_cert_to_DER_cert(f"{first}\n{_END}"))
    except (ValueError, IndexError) as error:
        raise Malformed(f"not a PEM certificate: {error}") from error


def validities(pem: str) -> tuple[Validity, ...]:
    """Of every certificate of a PEM text; none of a text without. Raises `Malformed`."""
    parts = pem.split(_BEGIN)[1:]
    return tuple(validity(_BEGIN + part) for part in parts)


def not_after(pem: str) -> datetime:
    """Until when the first certificate of a PEM text is valid. Raises `Malformed`."""
    return validity(pem).not_after


def days_left(end: datetime, now: datetime) -> float:
    """Days until then; negative when it is past."""
    return round((end - now).total_seconds() / 86400, 1)


def _validity(der: bytes) -> Validity:
    (_, certificate), *_ = _elements(der)
    (_, to_be_signed), *_ = _elements(certificate)
    fields = [each for each in _elements(to_be_signed) if each[0] != _VERSION]
    tag, period = fields[3]  # after serial number, signature and issuer
    if tag != _SEQUENCE:
        raise ValueError("no validity where one should be")
    begin, end = _elements(period)
    return Validity(_time(*begin), _time(*end))


def _time(kind: int, text: bytes) -> datetime:
    if kind not in _FORMS:
        raise ValueError("its validity ends at no time")
    return datetime.strptime(text.decode("ascii"), _FORMS[kind]).replace(tzinfo=UTC)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (tag, content) of each DER element in some bytes. Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            width = size & 0x7F
            size, at = int.from_bytes(data[at : at + width], "big"), at + width
        if at + size > len(data):
            raise ValueError("an element is longer than what holds it")
        yield tag, data[at : at + size]
        at += size
