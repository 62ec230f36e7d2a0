"""What a certificate says of itself: common name, SANs, and until when it is valid; pure.

The standard library tells a peer's names, but nothing of our own certificate: its validity is read
from the DER (RFC 5280 §4.1), and no more than that.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from libtortie.errors import Malformed

_END = "-----END CERTIFICATE-----"
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


@dataclass(frozen=True, slots=True)
class Peer:
    """Who the other node proved to be."""

    common_name: str
    names: tuple[str, ...]
    not_after: datetime


def peer_of(certificate: Mapping[str, Any]) -> Peer:
    """A peer, from `getpeercert()` after a handshake that verified it."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    common = [value for name, value in subject if name == "commonName"]
    names = tuple(value for _, value in certificate.get("subjectAltName", ()))
    end = ssl.cert_time_to_seconds(certificate["notAfter"])
    return Peer(common[0] if common else "", names, datetime.fromtimestamp(end, UTC))


def refusal(peer: Peer, common_names: Sequence[str], expected: str) -> str:
    """Why a peer is refused; empty if not. No `common_names`: any will do."""
    if common_names and peer.common_name not in common_names:
        return (
            f"common name is invalid, got {peer.common_name or 'none'}, "
            f"expected {' or '.join(common_names)}"
        )
    if expected and expected not in peer.names:
        return (
            f"the certificate is for {', '.join(peer.names) or 'no name'}, "
            f"this migration's peer is {expected}"
        )
    return ""


def not_after(pem: str) -> datetime:
    """Until when the first certificate of a PEM text is valid. Raises `Malformed`."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[: pem.index(_END)].strip() + "\n" + _END)
        return _validity_end(der)
    except (ValueError, IndexError) as error:
        raise Malformed(f"not a PEM certificate: {error}") from error


def days_left(end: datetime, now: datetime) -> float:
    """Days until then; negative when it is past."""
    return round((end - now).total_seconds() / 86400, 1)


def _validity_end(der: bytes) -> datetime:
    (_, certificate), *_ = _elements(der)
    (_, to_be_signed), *_ = _elements(certificate)
    fields = [each for each in _elements(to_be_signed) if each[0] != _VERSION]
    tag, validity = fields[3]  # after serial number, signature and issuer
    if tag != _SEQUENCE:
        raise ValueError("no validity where one should be")
    _, (kind, text) = _elements(validity)
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(kind)
    if form is None:
        raise ValueError("its validity ends at no time")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


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
