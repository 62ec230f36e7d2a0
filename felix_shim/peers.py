"""The agents' own channel: mutually authenticated TLS 1.3, one request at a time.

Both sides prove by certificate which node they are (`peer_credentials`), and each compares: the
caller that it reached the node it wanted, the server who may have what (`hand_over`). Nothing is
resumed and nothing sent early, so nothing can be replayed.

Promises: a peer that is silent, slow, talks rubbish or claims another's name costs a thread for at
most the deadlines below, and others nothing; losing the channel costs speed, never correctness.
Never: wait for a peer on a thread on which anything else waits.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from felix_shim.peer_credentials import Credentials, peer_name
from felix_shim.peer_messages import (
    HEADER,
    End,
    Message,
    Moved,
    Refused,
    Request,
    Unknown,
    decode,
    encode,
    parse_header,
)
from libtortie.complaint import Complaint
from libtortie.errors import Malformed, TortieError, Unauthorized, Unavailable, first_line
from libtortie.jsonlog import Log
from libtortie.model.ipam import IPAddress

DEFAULT_PORT = 9199
REBIND_SECONDS = 5.0
_BACKLOG = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and how many connections at once: of all peers, and of one address.

    `step` bounds a handshake, and the reading or writing of one message that has begun; `idle`
    the wait for a request; `session` a connection's life, so that certificates are proved again.
    Of those refused at most one is `told` in so many seconds.
    """

    step: float = 5.0
    idle: float = 60.0
    session: float = 900.0
    told: float = 10.0
    connections: int = 64
    of_one_address: int = 8


class Link:
    """An established connection to another node; one thread uses it."""

    def __init__(self, sock: ssl.SSLSocket, node: str, limits: Limits) -> None:
        self._sock = sock
        self.node = node
        self._limits = limits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._sock.close()

    def send(self, message: Message) -> None:
        """Send a message whole. Raises `Unavailable`."""
        frame = memoryview(encode(message))
        end = time.monotonic() + self._limits.step
        try:
            while frame:
                self._sock.settimeout(_left(end))
                frame = frame[self._sock.send(frame) :]
        except OSError as error:
            raise Unavailable(f"node {self.node}: {_told(error)}") from error

    def receive(self, patience: float) -> Message | Unknown | None:
        """The next message, for whose beginning to wait so many seconds; None at the end.

        Raises `Unavailable`, `Malformed`.
        """
        try:
            header = self._read(HEADER.size, time.monotonic() + patience)
            if not header:
                return None
            length, kind = parse_header(header)
            body = self._read(length, time.monotonic() + self._limits.step)
        except OSError as error:
            raise Unavailable(f"node {self.node}: {_told(error)}") from error
        if len(body) < length:
            raise Unavailable(f"node {self.node}: gone in the middle of a message")
        return kind if isinstance(kind, Unknown) else decode(kind, body)

    def _read(self, size: int, end: float) -> bytes:
        """So many bytes; fewer only when the peer closed. Raises OSError."""
        found = bytearray()
        while len(found) < size:
            self._sock.settimeout(_left(end))
            more = self._sock.recv(size - len(found))
            if not more:
                if found:
                    raise ConnectionError("gone in the middle of a message")
                break
            found += more
        return bytes(found)


def dial(
    node: str, address: str, port: int, credentials: Credentials, limits: Limits = Limits()
) -> Link:
    """A connection to a node at an address. Raises `Unavailable`, `Unauthorized`."""
    identity = credentials.identity()
    try:
        raw = socket.create_connection((address, port), limits.step)
    except OSError as error:
        raise Unavailable(f"node {node} at {_end(address, port)}: {_told(error)}") from error
    try:
        sock = identity.client.wrap_socket(raw, do_handshake_on_connect=False)
    except OSError:
        raw.close()
        raise
    try:
        return Link(sock, _prove(sock, limits, node), limits)
    except BaseException:
        sock.close()
        raise


def _prove(sock: ssl.SSLSocket, limits: Limits, wanted: str = "") -> str:
    """Shake hands; the node that the other side is. Raises `Unavailable`, `Unauthorized`."""
    try:
        sock.settimeout(limits.step)
        sock.do_handshake()
        name = peer_name(sock.getpeercert())
    except OSError as error:
        raise Unavailable(f"node {wanted or 'unknown'}: {_told(error)}") from error
    if wanted and name != wanted:
        raise Unauthorized(f"node {name} answers where node {wanted} was expected")
    return name


Answer = Callable[[str, Request], Iterable[Message]]
"""The messages that answer a node's request."""
Notice = Callable[[str, str, tuple[IPAddress, ...]], None]
"""Takes a node's word that it has heard the VM of a migration, with these addresses; at once."""
Spawn = Callable[[str, Callable[[], None]], threading.Thread]


def _unheard(node: str, migration_uid: str, addresses: tuple[IPAddress, ...]) -> None:
    """Nobody wants to know."""


@dataclass(slots=True)
class PeerServer:
    """Answers other agents at an address, on a thread for each connection, made by `spawn`."""

    host: str
    port: int
    credentials: Credentials
    answer: Answer
    spawn: Spawn
    log: Log
    limits: Limits = Limits()
    notice: Notice = _unheard
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: dict[socket.socket, str] = field(default_factory=dict)
    _threads: set[threading.Thread] = field(default_factory=set)
    _wake: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)
    _trouble: Complaint = field(init=False)
    refused: int = 0
    _told_refused: float = float("-inf")

    def __post_init__(self) -> None:
        self._trouble = Complaint(self.log, "peers_not_served")

    def run(self) -> None:
        """A thread's body: listen, again if need be, until `stop`."""
        while not self._stop.is_set():
            try:
                self.credentials.identity()
                with self._listen() as listener:
                    self._trouble.about("")
                    self.port = listener.getsockname()[1]
                    self.log.info("peers_serving", address=self.host, port=self.port)
                    self._accept(listener)
            except (OSError, TortieError) as error:
                self._trouble.about(f"{_end(self.host, self.port)}: {_told(error)}")
                self._stop.wait(REBIND_SECONDS)
        self._hang_up()

    def stop(self) -> None:
        """Make `run` return, once those it talks to are cut off."""
        self._stop.set()
        with suppress(OSError):
            self._wake[1].send(b"\0")

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)

    def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        while not self._stop.is_set():
            poll.poll()
            try:
                raw, whence = listener.accept()
            except (BlockingIOError, ConnectionError):
                continue
            self._welcome(raw, whence[0])

    def _welcome(self, raw: socket.socket, address: str) -> None:
        """A thread for a connection, unless there are too many."""
        with self._lock:
            crowd = len(self._open) >= self.limits.connections
            of_one = Counter(self._open.values())[address] >= self.limits.of_one_address
            if crowd or of_one:
                raw.close()
            else:
                self._open[raw] = address
        if crowd or of_one:
            self._refuse("too many connections", address=address)
            return
        thread = self.spawn(f"peer-{address}", lambda: self._serve(raw, address))
        with self._lock:
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}

    def _serve(self, raw: socket.socket, address: str) -> None:
        """One connection, from the handshake to its end; nothing it does is anybody else's."""
        try:
            identity = self.credentials.identity()
            raw.settimeout(self.limits.step)
            # A duplicate: `wrap_socket` takes the one it is given out of our hands.
            with identity.server.wrap_socket(
                raw.dup(), server_side=True, do_handshake_on_connect=False
            ) as sock:
                self._talk(Link(sock, _prove(sock, self.limits), self.limits))
        except (OSError, TortieError) as error:
            if not self._stop.is_set():
                self._refuse(_told(error), address=address)
        except Exception as error:  # whatever a peer thought of, it must not end the agent
            self.log.error("peer_failed", address=address, reason=repr(error))
        finally:
            with self._lock:
                del self._open[raw]
            raw.close()

    def _talk(self, link: Link) -> None:
        """Requests and their answers. Raises what a peer that keeps no rule makes of it."""
        end = time.monotonic() + self.limits.session
        while time.monotonic() < end:
            request = link.receive(self.limits.idle)
            if request is None:
                return
            if isinstance(request, Moved):
                self.notice(link.node, request.migration_uid, request.addresses)
                link.send(End(0))
                continue
            if isinstance(request, Unknown):
                link.send(
                    Refused(f"a message of kind {request.kind}, which this agent is too old for")
                )
                continue
            if not isinstance(request, Request):
                raise Malformed(f"node {link.node} answers without being asked")
            if request.cut_over:
                self.notice(link.node, request.migration_uid, request.addresses)
            try:
                for message in self.answer(link.node, request):
                    link.send(message)
            except (Unauthorized, Unavailable) as error:
                link.send(Refused(first_line(error)))
                self._refuse(first_line(error), node=link.node)

    def _refuse(self, reason: str, **about: object) -> None:
        """Count a refusal, and tell of one now and then: who is refused decides how often."""
        now = time.monotonic()
        with self._lock:
            self.refused += 1
            if now - self._told_refused < self.limits.told:
                return
            self._told_refused = now
        self.log.warning("peer_refused", **about, reason=reason, refused=self.refused)

    def _hang_up(self) -> None:
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(self.limits.step)
        for end in self._wake:
            end.close()


def _end(host: str, port: int) -> str:
    """A socket address, for people."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _left(end: float) -> float:
    """Seconds until a moment. Raises TimeoutError when it has passed."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _told(error: BaseException) -> str:
    """What went wrong, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return first_line(error)
