"""Connections between a VM and somebody outside, that a policy allows in one direction each.

A *busy* flow carries numbered bytes or datagrams both ways at every `turn`. A *quiet* one says
nothing until the side that did not open it speaks first: then only its entry in a connection table
lets that packet pass.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field

PATIENCE = 90.0
"""Seconds for what must arrive."""
REPEAT = 0.1
CHUNK = 64
_PERIOD = bytes(range(251))
_NUMBER = struct.Struct("!Q")

Ends = tuple[socket.socket, socket.socket]
"""The end that opened the flow, and the other."""


def pattern(offset: int, length: int) -> bytes:
    """A stream's bytes from an offset on: one that is lost or doubled shows."""
    first = offset % len(_PERIOD)
    return (_PERIOD * (length // len(_PERIOD) + 2))[first : first + length]


def open_tcp(opener: socket.socket, listener: socket.socket, to: tuple[str, int]) -> Ends:
    """An established connection, used once in both directions."""
    with listener:
        listener.settimeout(PATIENCE)
        opener.settimeout(PATIENCE)
        opener.connect(to)
        other, _ = listener.accept()
    other.settimeout(PATIENCE)
    for one, peer in ((opener, other), (other, opener)):
        one.sendall(b"hello")
        assert peer.recv(64) == b"hello"
    return opener, other


def open_udp(opener: socket.socket, other: socket.socket, to: tuple[str, int]) -> Ends:
    """Two sockets that are connected to each other and have heard each other."""
    opener.connect(to)
    who = ("", 0)
    for sock in (opener, other):
        sock.settimeout(REPEAT)
    end = time.monotonic() + PATIENCE
    while not who[1]:
        assert time.monotonic() < end, "the other side hears nothing"
        opener.send(b"hello")
        try:
            _, who = other.recvfrom(64)
        except TimeoutError:
            continue
    other.connect(who)
    answer_first((opener, other), b"hello")
    return opener, other


def answer_first(ends: Ends, word: bytes) -> None:
    """The side that did not open the flow speaks, until the other has heard it; then back."""
    opener, other = ends
    for speaker, listener in ((other, opener), (opener, other)):
        tcp = speaker.type == socket.SOCK_STREAM
        if tcp:
            speaker.sendall(word)
        listener.settimeout(PATIENCE if tcp else REPEAT)
        end = time.monotonic() + PATIENCE
        while not _hears(listener, word):
            assert time.monotonic() < end, f"{word!r} does not arrive"
            if not tcp:
                with suppress(OSError):  # of an earlier one: no route as yet
                    speaker.send(word)


def _hears(listener: socket.socket, word: bytes) -> bool:
    """Whether this word is the next new thing; what was repeated before is passed over."""
    try:
        return listener.recv(len(word)) == word
    except TimeoutError:
        return False
    except OSError:
        if listener.type == socket.SOCK_STREAM:
            raise
        return False


@dataclass
class Stream:
    """A busy TCP connection."""

    ends: Ends
    sent: list[int] = field(default_factory=lambda: [0, 0])
    got: list[int] = field(default_factory=lambda: [0, 0])

    def __post_init__(self) -> None:
        for sock in self.ends:
            sock.setblocking(False)

    def turn(self) -> None:
        """Write and read what is possible at both ends. Raises when the connection is broken."""
        for number, sock in enumerate(self.ends):
            with suppress(BlockingIOError):
                self.sent[number] += sock.send(pattern(self.sent[number], CHUNK))
        self.read()

    def read(self) -> None:
        """Read what has come; it is what was sent."""
        for number, sock in enumerate(self.ends):
            try:
                data = sock.recv(1 << 16)
            except BlockingIOError:
                continue
            assert data, "the connection was closed"
            assert data == pattern(self.got[number], len(data)), "other bytes than were sent"
            self.got[number] += len(data)

    def mark(self) -> list[int]:
        """How much each end has sent until now."""
        return list(self.sent)

    def beyond(self, mark: list[int]) -> bool:
        """Whether all that had been sent by then has come, and more."""
        return self.got[0] > mark[1] and self.got[1] > mark[0]


@dataclass
class Datagrams:
    """A busy UDP flow: what is lost is lost, what comes later must come."""

    ends: Ends
    sent: int = 0
    got: list[int] = field(default_factory=lambda: [0, 0])

    def __post_init__(self) -> None:
        for sock in self.ends:
            sock.setblocking(False)

    def turn(self) -> None:
        """Send one each way, and read what has come."""
        self.sent += 1
        for number, sock in enumerate(self.ends):
            try:
                sock.send(_NUMBER.pack(self.sent))
                while True:
                    data = sock.recv(64)
                    if len(data) == _NUMBER.size:
                        self.got[number] = max(self.got[number], _NUMBER.unpack(data)[0])
            except OSError:  # nothing more, or an ICMP error of an earlier one
                continue

    def mark(self) -> list[int]:
        """The numbers sent until now."""
        return [self.sent, self.sent]

    def beyond(self, mark: list[int]) -> bool:
        """Whether both ends have heard something that was sent later."""
        return all(got > sent for got, sent in zip(self.got, mark, strict=True))
