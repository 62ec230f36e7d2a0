"""The TLS handshake, under a deadline, and what its failures mean.

It is over before anything local is dialled. Encryption works on memory (`ssl.MemoryBIO`), so that
records are read and written many at a time, and one side may end before the other.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from libtortie.errors import TortieError
from migration_proxy.certificate import Peer, peer_of, refusal
from migration_proxy.tls_files import TlsFiles

READ_BYTES = 65536
MOST_HANDSHAKE_BYTES = 1 << 20
HANDSHAKE_RECORD, ALERT_RECORD = 0x16, 0x15
PLAIN_PEER = "the peer speaks plain here, where TLS is on: set disable_tls alike on both nodes"
TLS_PEER = "the peer speaks TLS here, where disable_tls is on: set disable_tls alike on both nodes"
UNHEARD_PEER = "disable_tls is on here and must be alike on both nodes"
SILENT_PEER = "does it have disable_tls? It must be alike on both nodes"
MODE_ALERT = bytes((ALERT_RECORD, 3, 1, 0, 2, 2, 70))
"""A fatal alert `protocol_version`, as each side can read it (RFC 8446 §6)."""


class HandshakeFailed(TortieError):
    """The peer is not let in, or does not let us in; `kind` is a word for metrics."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class Tls:
    """An open TLS connection over memory: what came goes to `incoming`, what goes is `outgoing`."""

    object: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    peer: Peer

    @property
    def unopened(self) -> int:
        """Bytes that came and were not read: sealed ones, and those of a record read in part."""
        return self.incoming.pending + self.object.pending()


def await_verdict(sock: socket.socket, tls: Tls, seconds: float) -> None:
    """As a client: until the target is satisfied with us, as far as it says so.

    In TLS 1.3 a client is done before the server is (RFC 8446 §2); what tells the server's end are
    its session tickets. They stay to be read. A target that sends none is given `seconds`.
    """
    if tls.object.version() == "TLSv1.3":
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.poll(seconds * 1000)


def is_tls(first: bytes) -> bool:
    """Whether bytes begin a TLS handshake or alert, and no stream of libvirt, QEMU or NBD."""
    return len(first) >= 3 and first[0] in (HANDSHAKE_RECORD, ALERT_RECORD) and first[1] == 3


def shake(
    sock: socket.socket,
    files: TlsFiles,
    *,
    server: bool,
    expected: str,
    seconds: float,
    agreed: Callable[[], None],
) -> Tls:
    """Agree on TLS with a peer and check who it is. Raises `HandshakeFailed`, `InvalidInput`.

    `agreed` is called before the peer can know that we are satisfied with it.

    A socket whose handshake failed is of no more use; the caller closes it.
    """
    end = time.monotonic() + seconds
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = files.current().context.wrap_bio(incoming, outgoing, server_side=server)
    try:
        _converse(sock, tls, incoming, outgoing, end, server=server)
        peer = peer_of(tls.getpeercert() or {})
        if reason := refusal(peer, files.common_names, expected):
            raise HandshakeFailed("name", f"could not verify peer certificate: {reason}")
        agreed()
        _send(sock, outgoing, end)  # our last word: a target dials its local socket on it
    except ssl.SSLError as error:
        _tell(sock, outgoing.read())
        raise _failure(error, server=server) from error
    except TimeoutError:
        _tell(sock, MODE_ALERT)
        raise HandshakeFailed(
            "timeout", f"no TLS handshake within {seconds:g} s: {SILENT_PEER}"
        ) from None
    except OSError as error:
        raise HandshakeFailed(
            "closed", f"the peer broke off the TLS handshake: {error.strerror or error}"
        ) from error
    return Tls(tls, incoming, outgoing, peer)


def _converse(
    sock: socket.socket,
    tls: ssl.SSLObject,
    incoming: ssl.MemoryBIO,
    outgoing: ssl.MemoryBIO,
    end: float,
    *,
    server: bool,
) -> None:
    """Take and give until the handshake is done; what it has to say last is still to be sent."""
    taken = 0
    while True:
        try:
            tls.do_handshake()
            return
        except ssl.SSLWantReadError:
            _send(sock, outgoing, end)
        sock.settimeout(_left(end))
        data = sock.recv(READ_BYTES)
        if not data:
            raise HandshakeFailed("closed", _closed(server))
        if not taken and data[0] not in (HANDSHAKE_RECORD, ALERT_RECORD):
            _tell(sock, MODE_ALERT)
            raise HandshakeFailed("plain", PLAIN_PEER)
        taken += len(data)
        if taken > MOST_HANDSHAKE_BYTES:
            raise HandshakeFailed("garbage", "the peer's TLS handshake has no end")
        incoming.write(data)


def _closed(server: bool) -> str:
    if server:
        return "the peer closed the connection in the TLS handshake: it may not trust our CA"
    return (
        "the target closed the connection in the TLS handshake: does its disable_tls differ, "
        "or is its listener gone?"
    )


def _failure(error: ssl.SSLError, *, server: bool) -> HandshakeFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeFailed(
            "certificate", f"could not verify peer certificate: {_advice(error.verify_message)}"
        )
    reason = ssl_reason(error)
    if "alert" in reason:
        return HandshakeFailed("alert", alert_text(reason))
    if "certificate" in reason and server:
        return HandshakeFailed("certificate", f"could not verify peer certificate: {reason}")
    return HandshakeFailed("garbage", f"the peer's TLS handshake is not one: {reason}")


def ssl_reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason in lower-case words; some errors of `ssl` itself have none."""
    return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")


def alert_text(reason: str) -> str:
    """What an alert of the peer's means; `reason` is OpenSSL's, in lower-case words."""
    if "protocol version" in reason:
        return f"the peer refuses TLS as we speak it ({reason}): {SILENT_PEER}; else min_version"
    if "certificate" in reason or "unknown ca" in reason:
        return f"the peer refuses our certificate ({reason}): its CA bundle or our pair is old"
    return f"the peer refuses our TLS handshake ({reason})"


def _advice(message: str) -> str:
    low = message.lower()
    if "expired" in low or "not yet valid" in low:
        return f"{message}: renew it, or mend this node's clock"
    if "issuer" in low or "self-signed" in low or "self signed" in low:
        return f"{message}: not of the CA in tls.ca"
    if "purpose" in low:
        return f"{message}: its extended key usage is another"
    return message


def _send(sock: socket.socket, outgoing: ssl.MemoryBIO, end: float) -> None:
    if outgoing.pending:
        sock.settimeout(_left(end))
        sock.sendall(outgoing.read())


def _tell(sock: socket.socket, alert: bytes) -> None:
    """Say something as the last word; whether it is heard does not matter."""
    try:
        sock.setblocking(False)
        sock.send(alert)
    except OSError:
        return


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
