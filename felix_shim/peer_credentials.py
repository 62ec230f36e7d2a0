"""The agent's certificate: who it is to other agents, kept as fresh as its files are.

A node's certificate has exactly one DNS name in its subject alternative names: the node's. It is
good for both roles (extended key usage, if there is any, names server and client), and the
authority's only use should be this channel: whom it names is a node.

The files are looked at whenever a connection begins, so a rotation takes effect with the next one.
Files that don't fit together (one is replaced, the other not yet) leave the old certificate in
use. Before one is used it has to pass a handshake with itself, in memory: what any other agent
would refuse is refused here first, by name.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libtortie.complaint import Complaint
from libtortie.errors import Malformed, Unauthorized, Unavailable, first_line
from libtortie.files import Stamp, stamp
from libtortie.jsonlog import Log

EARLY_SECONDS = 7 * 86400.0
"""From how long before its end a certificate's expiry is told; a third of its life if shorter."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where authority, certificate and key are (PEM)."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate in use: contexts for both roles, and its life in seconds of the epoch."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    begins: float
    ends: float

    def expires_soon(self, now: float) -> bool:
        """Whether it is time to tell."""
        return self.ends - now < min(EARLY_SECONDS, (self.ends - self.begins) / 3)


@dataclass(slots=True)
class Credentials:
    """`wall` is in seconds of the epoch. Any thread may ask."""

    files: Files
    node: str
    log: Log
    wall: Callable[[], float]
    _identity: Identity | None = None
    _stamps: tuple[Stamp | None, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _trouble: Complaint = field(init=False)
    _expiry: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._trouble = Complaint(self.log, "peer_certificate_unusable")
        self._expiry = Complaint(self.log, "peer_certificate_expires")

    def identity(self) -> Identity:
        """The certificate of the files, or the last one that was usable. Raises `Unavailable`."""
        with self._lock:
            try:
                self._refresh()
            except (OSError, Malformed, Unauthorized) as error:
                self._trouble.about(first_line(error), cert=self.files.cert)
                if self._identity is None:
                    reason = f"no certificate for other agents: {first_line(error)}"
                    raise Unavailable(reason) from error
            if self._identity is None:
                raise Unavailable("no certificate for other agents")
            self._tell_expiry(self._identity)
            return self._identity

    def seconds_left(self) -> float:
        """How long the certificate in use is still good; 0 without one."""
        with self._lock:
            found = self._identity
        return 0.0 if found is None else max(0.0, found.ends - self.wall())

    def _refresh(self) -> None:
        files = self.files
        stamps = tuple(stamp(path) for path in (files.ca, files.cert, files.key))
        if self._identity is not None and stamps == self._stamps:
            return
        self._identity = load(files, self.node)
        self._stamps = stamps
        self._trouble.about("")
        ends = int(self._identity.ends)
        self.log.info("peer_certificate_loaded", cert=files.cert, node=self.node, expires=ends)

    def _tell_expiry(self, identity: Identity) -> None:
        """Once a day: the text changes as the days go by."""
        now = self.wall()
        days = max(0, int((identity.ends - now) // 86400))
        soon = identity.expires_soon(now)
        reason = f"in less than {days + 1} days: renew {self.files.cert}" if soon else ""
        self._expiry.about(reason)


def load(files: Files, node: str) -> Identity:
    """The identity in these files.

    Raises OSError (`ssl.SSLError` is one) for what cannot be read, `Unauthorized` for a certificate
    that other agents would not take for this node's.
    """
    server = _context(ssl.PROTOCOL_TLS_SERVER, files)
    client = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    try:
        own = _shake_hands(server, client)
    except ssl.SSLError as error:
        said = getattr(error, "verify_message", "") or first_line(error)
        raise Unauthorized(f"{files.cert} would not be accepted: {said}") from error
    name = peer_name(own)
    if name != node:
        raise Unauthorized(f"{files.cert} is for node {name}, this one is {node}")
    begins, ends = (ssl.cert_time_to_seconds(own[key]) for key in ("notBefore", "notAfter"))
    return Identity(server, client, begins, ends)


def peer_name(certificate: Mapping[str, Any] | None) -> str:
    """The node that a verified certificate names. Raises `Unauthorized`."""
    alternatives = (certificate or {}).get("subjectAltName", ())
    names = [value for kind, value in alternatives if kind == "DNS"]
    if len(names) != 1 or "*" in names[0]:
        shown = ", ".join(names) or "none"
        raise Unauthorized(f"a node's certificate has one DNS name, the node's, not {shown}")
    return str(names[0])


def _context(protocol: int, files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node's name is no address: `peer_name` compares it
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.cert, files.key, password="")
    except ssl.SSLError as error:
        what = f"{files.ca}, {files.cert} or {files.key}"
        said = getattr(error, "reason", None)  # which of Python's own have not
        raise Malformed(f"{what}: {said or first_line(error)}") from error
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a session is never resumed: each one is proved
    return context


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Talk to ourselves in memory; our certificate as the other side sees it."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(one, other), server.wrap_bio(other, one, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = ends[0].getpeercert()
    return dict(found or {})
