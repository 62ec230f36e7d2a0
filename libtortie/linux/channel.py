"""One NETLINK_ROUTE socket: requests in, acknowledgements, answers and dumps out.

Why not pyroute2's `IPRoute`: it keeps one socket *per thread*, so an object made inside a
namespace and used from another thread talks to that other thread's namespace; and it costs
0.6 ms for a route added and deleted where this costs 0.13. pyroute2's message classes still
build every request (`wire.py`).

Answers are matched by sequence number, so a late one is never taken for another's. A socket that
failed to answer in time is thrown away: the next request opens a new one.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from libtortie.errors import KernelError, Unavailable
from libtortie.linux.wire import attributes

HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence, port."""

ANSWER_DEADLINE = 5.0
"""Seconds to wait for the kernel's answer, which normally is there when `send` returns."""

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
_NLM_F_CAPPED = 0x100
_NLM_F_ACK_TLVS = 0x200
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_NLMSGERR_ATTR_MSG = 1
_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
_NETLINK_GET_STRICT_CHK = 12
_BUFFER = 1 << 16
_DUMP_ATTEMPTS = 10

IFNAME_MAX = 15
_SIOCGIFNAME = 0x8910
_SIOCGIFINDEX = 0x8933
_IFREQ = struct.Struct("=16si20x")


@dataclass(frozen=True, slots=True)
class Change:
    """A request to change something: message type, flags, body, and what it is in words."""

    kind: int
    flags: int
    body: bytes
    what: str


Message = tuple[int, memoryview]
"""A message's type and its body after the netlink header."""


class Refused(KernelError):
    """The kernel's negative answer; `code` is the errno, `detail` what it says beside."""

    def __init__(self, code: int, what: str, detail: str = "") -> None:
        super().__init__(f"{what}: {os.strerror(code)}" + (f" ({detail})" if detail else ""))
        self.code = code
        self.detail = detail


class Interrupted(KernelError):
    """The tables kept changing while they were being dumped."""


def open_socket(deadline: float = ANSWER_DEADLINE, protocol: int = 0) -> socket.socket:
    """A request socket in the calling thread's namespace; `protocol` 0 is NETLINK_ROUTE."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        sock.bind((0, 0))
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK):
            sock.setsockopt(_SOL_NETLINK, option, 1)
        set_receive_deadline(sock, deadline)
    except BaseException:
        sock.close()
        raise
    return sock


def set_receive_deadline(sock: socket.socket, seconds: float) -> None:
    """Let `recv` fail with EAGAIN after so long; cheaper than `settimeout`, which polls first."""
    whole = int(seconds)
    timeval = struct.pack("@ll", whole, int((seconds - whole) * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


class Channel:
    """A request socket, one request at a time; any thread may call.

    `reopen` makes a socket in the right namespace, wherever it is called; without `sock` the
    first request does. `buffer` is how much is received at once, which is also how much of a dump
    the kernel prepares at once.
    """

    def __init__(
        self,
        sock: socket.socket | None,
        reopen: Callable[[], socket.socket],
        *,
        buffer: int = _BUFFER,
    ) -> None:
        self._sock = sock
        self._reopen = reopen
        self._buffer = buffer
        self._closed = False
        self._lock = threading.Lock()
        self._sequence = itertools.count(1)

    def request(self, kind: int, flags: int, body: bytes, what: str) -> None:
        """Send a change and wait for its acknowledgement. Raises Refused, Unavailable."""
        with self._lock:
            sequence = self._send(kind, flags | NLM_F_ACK, body, what)
            for _ in self._answers(sequence, what):
                continue

    def together(self, changes: Sequence[Change]) -> list[Refused | None]:
        """Send changes in one datagram: the kernel makes them in this order, with nothing of ours
        in between; what it refused of each. Raises Unavailable."""
        with self._lock:
            sequences = self._send_all(changes)
            return [
                self._verdict(sequence, one.what)
                for sequence, one in zip(sequences, changes, strict=True)
            ]

    def _verdict(self, sequence: int, what: str) -> Refused | None:
        try:
            for _ in self._answers(sequence, what):
                continue
        except Refused as error:
            return error
        return None

    def get(self, kind: int, body: bytes, what: str) -> Message | None:
        """Ask for one object. Raises Refused, Unavailable."""
        with self._lock:
            sequence = self._send(kind, NLM_F_ACK, body, what)
            answer = None
            for answer_kind, _, content in self._answers(sequence, what):
                if answer_kind != _NLMSG_ERROR:
                    answer = (answer_kind, content)
            return answer

    def dump(
        self, kind: int, body: bytes, what: str, *, wanted: Sequence[bytes] = ()
    ) -> list[Message]:
        """All objects of a kind that the kernel selects by `body`, one consistent reading.

        With `wanted`, datagrams without any of these byte strings are dropped unread: a look-up of
        one among thousands costs a memory search. Raises Refused, Unavailable, Interrupted.
        """
        with self._lock:
            for _ in range(_DUMP_ATTEMPTS):
                sequence = self._send(kind, NLM_F_DUMP, body, what)
                found: list[Message] = []
                interrupted = False
                for answer_kind, flags, content in self._answers(sequence, what, wanted):
                    interrupted |= bool(flags & NLM_F_DUMP_INTR)
                    if answer_kind != _NLMSG_DONE:
                        found.append((answer_kind, content))
                if not interrupted:
                    return found
        raise Interrupted(f"{what}: changed {_DUMP_ATTEMPTS} times while being read")

    def ifindex(self, name: str) -> int:
        """The index of a link; 0 when there is none. An ioctl: a hundredth of a request."""
        if len(name.encode()) > IFNAME_MAX:
            return 0
        answer = self._ioctl(_SIOCGIFINDEX, _IFREQ.pack(name.encode(), 0))
        return 0 if answer is None else int(_IFREQ.unpack(answer)[1])

    def ifname(self, ifindex: int) -> str:
        """The name of a link; empty when there is none."""
        answer = self._ioctl(_SIOCGIFNAME, _IFREQ.pack(b"", ifindex))
        return "" if answer is None else _IFREQ.unpack(answer)[0].rstrip(b"\0").decode()

    def close(self) -> None:
        """Release the socket, after the request in progress."""
        with self._lock:
            self._closed = True
            self._drop()

    def _ioctl(self, operation: int, request: bytes) -> bytes | None:
        """Interface ioctls act on the namespace of the socket, not on the caller's."""
        with self._lock:
            try:
                return fcntl.ioctl(self._usable(), operation, request)
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENXIO):
                    return None
                raise KernelError(f"interface ioctl {operation:#x}: {error}") from error

    def _usable(self) -> socket.socket:
        if self._closed:
            raise KernelError("the kernel adapter is closed")
        if self._sock is None:
            self._sock = self._reopen()
        return self._sock

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, kind: int, flags: int, body: bytes, what: str) -> int:
        return self._send_all((Change(kind, flags, body, what),))[0]

    def _send_all(self, changes: Sequence[Change]) -> list[int]:
        """Their sequence numbers."""
        sock = self._usable()
        sequences, data = [], bytearray()
        for one in changes:
            sequences.append(next(self._sequence) & 0xFFFFFFFF)
            size, flags = HEADER.size + len(one.body), one.flags | NLM_F_REQUEST
            data += HEADER.pack(size, one.kind, flags, sequences[-1], 0) + one.body
            data += bytes(-size % 4)
        try:
            sock.send(data)
        except OSError as error:
            self._drop()
            what = ", ".join(one.what for one in changes)
            raise Unavailable(f"{what}: cannot ask the kernel: {error}") from error
        return sequences

    def _answers(
        self, sequence: int, what: str, wanted: Sequence[bytes] = ()
    ) -> Iterator[tuple[int, int, memoryview]]:
        """Type, flags and body of each message that answers `sequence`, up to the last one.

        When the kernel refused, or the reader stops early, nothing of this answer is left to
        confuse the next: the socket goes unless the end was read.
        """
        ended = False
        marks = (*wanted, *_end_marks(sequence)) if wanted else ()
        try:
            while not ended:
                data = self._receive(what)
                if marks and not any(mark in data for mark in marks):
                    continue
                for kind, flags, body in messages(data, sequence):
                    if kind == _NLMSG_ERROR:
                        ended = True
                        raise_refusal(flags, body, what)
                    elif kind == _NLMSG_DONE:
                        ended = True
                        raise_done(body, what)
                    yield kind, flags, body
        finally:
            if not ended:
                self._drop()

    def _receive(self, what: str) -> bytes:
        sock = self._usable()
        try:
            return sock.recv(self._buffer)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                raise Unavailable(f"{what}: no answer from the kernel in time") from error
            raise Unavailable(f"{what}: lost the kernel's answer: {error}") from error


def _end_marks(sequence: int) -> tuple[bytes, ...]:
    """How an end of dump, a refusal or an inconsistency shows in the headers of a datagram."""
    multi, filtered = 0x2, 0x20
    plain = (0, _NLM_F_CAPPED, _NLM_F_ACK_TLVS, _NLM_F_CAPPED | _NLM_F_ACK_TLVS)
    errors = [struct.pack("=HHI", _NLMSG_ERROR, flags, sequence) for flags in plain]
    dones = [
        struct.pack("=HHI", _NLMSG_DONE, multi | filter_flag | interrupted | tlvs, sequence)
        for filter_flag in (0, filtered)
        for interrupted in (0, NLM_F_DUMP_INTR)
        for tlvs in (0, _NLM_F_ACK_TLVS)
    ]
    return (*errors, *dones)


def messages(data: bytes, sequence: int | None = None) -> Iterator[tuple[int, int, memoryview]]:
    """Type, flags and body of the netlink messages in a datagram; broken tails are dropped."""
    view = memoryview(data)
    offset, end = 0, len(data)
    while offset + HEADER.size <= end:
        length, kind, flags, answered, _ = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > end:
            return
        if sequence is None or answered == sequence:
            yield kind, flags, view[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


def raise_refusal(flags: int, body: memoryview, what: str) -> None:
    """Raise what an NLMSG_ERROR says; errno 0 is an acknowledgement and raises nothing."""
    (code,) = struct.unpack_from("=i", body)
    if code == 0:
        return
    detail = ""
    if flags & _NLM_F_ACK_TLVS:
        request = 4 + HEADER.size
        if not flags & _NLM_F_CAPPED:
            (length,) = struct.unpack_from("=I", body, 4)
            request = 4 + ((length + 3) & ~3)
        text = attributes(body, request).get(_NLMSGERR_ATTR_MSG, b"")
        detail = bytes(text).rstrip(b"\0").decode(errors="replace")
    raise Refused(-code, what, detail)


def raise_done(body: memoryview, what: str) -> None:
    """A dump ends with its own result: negative is an errno."""
    if len(body) >= 4:
        (code,) = struct.unpack_from("=i", body)
        if code < 0:
            raise Refused(-code, what)
