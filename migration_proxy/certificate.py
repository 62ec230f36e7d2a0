"""What a peer's certificate says of it: common name, SANs, and until when it is valid; pure."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


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
