"""One direction of a stream: bytes from a source socket to a sink socket, a bounded number between.

A flow is turned by the stream's one thread and never blocks. `fill` takes from the source, `drain`
gives to the sink, `finish` passes on the source's end once all is given. Plain bytes stay in the
kernel (splice over a pipe); TLS seals or opens them on the way, many records at a time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import ssl
import threading
from contextlib import suppress
from typing import Protocol

from libtortie.errors import TortieError
from migration_proxy.handshake import Tls, alert_text, ssl_reason

PIPE_BYTES = 1 << 20
CHUNK_BYTES = 128 << 10
"""Of a TLS flow: what is sealed at once, or received to be opened."""
_OPENED_BYTES = CHUNK_BYTES + (17 << 10)
"""What of it becomes plain at most: a record (RFC 8446 §5.2) may have come in part before."""
DISCARD_BYTES = 64 << 10
_SPLICE = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN)


class _Scratch(threading.local):
    """Where bytes are for the length of a call: a thread's, which stays in its core's cache."""

    def __init__(self) -> None:
        self.bytes = memoryview(bytearray(CHUNK_BYTES))


_scratch = _Scratch()


class SinkGone(TortieError):
    """Nobody takes what comes any more."""


class Flow(Protocol):
    """A direction. `held` bytes wait for the sink; `ended`: the source has no more.

    `readable` and `writable` are what is believed of source and sink: a fill or drain that came
    short takes the belief back, and whoever waits for the sockets gives it anew.
    """

    source: socket.socket
    sink: socket.socket
    moved: int
    ended: bool
    readable: bool
    writable: bool

    @property
    def held(self) -> int:
        """Bytes taken and not yet given."""

    def fill(self, most: int) -> int:
        """Take up to so many bytes; 0 when there are none now. Raises OSError, `SSLError`."""

    def drain(self) -> int:
        """Give what the sink takes now. Raises `SinkGone`, OSError."""

    def finish(self) -> bool:
        """Tell the sink that this was all; False when that has to wait. Raises `SinkGone`."""

    def discard(self) -> int:
        """Forget what came and comes, note the source's end; how many bytes were lost.

        Raises OSError, `SSLError`.
        """

    def close(self) -> None:
        """Give up what is between."""


class SpliceFlow:
    """Bytes as they are, by splice(2): pages move through a pipe and are not copied."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.moved = 0
        self.ended = False
        self.readable = self.writable = True
        self.held = 0
        self._from, self._to = source.fileno(), sink.fileno()
        self._pipe_out, self._pipe_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with suppress(OSError):  # beyond the user's share of pipe memory: the default will do
            fcntl.fcntl(self._pipe_in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def fill(self, most: int) -> int:
        """Take into the pipe."""
        try:
            count = os.splice(self._from, self._pipe_in, most, None, None, _SPLICE)
        except BlockingIOError:
            self.readable = bool(self.held)  # then it may be the pipe that is full
            return 0
        self.held += count
        self.moved += count
        self.ended = not count
        return count

    def drain(self) -> int:
        """Give from the pipe."""
        if not self.held:
            return 0
        try:
            count = os.splice(self._pipe_out, self._to, self.held, None, None, _SPLICE)
        except BlockingIOError:
            self.writable = False
            return 0
        except OSError as error:
            raise _sink_error(error) from error
        self.held -= count
        return count

    def finish(self) -> bool:
        """The sink reads an end of file."""
        _end(self.sink)
        return True

    def discard(self) -> int:
        """Read and forget."""
        return _forgotten(self)

    def close(self) -> None:
        """The pipe, with what is in it."""
        os.close(self._pipe_out)
        os.close(self._pipe_in)


def splice_both(one: socket.socket, other: socket.socket) -> tuple[SpliceFlow, SpliceFlow]:
    """Both directions, or none: a pipe outlives who forgets it. Raises OSError."""
    forth = SpliceFlow(one, other)
    try:
        return forth, SpliceFlow(other, one)
    except OSError:
        forth.close()
        raise


class SealFlow:
    """From a local socket, encrypted, to the peer."""

    def __init__(self, source: socket.socket, sink: socket.socket, tls: Tls) -> None:
        self.source, self.sink = source, sink
        self.moved = 0
        self.ended = False
        self.readable = self.writable = True
        self._tls = tls
        self._sealed = memoryview(b"")
        self._said_end = False

    @property
    def held(self) -> int:
        """Sealed bytes, with what TLS has to say for itself."""
        return len(self._sealed) + self._tls.outgoing.pending

    def fill(self, most: int) -> int:
        """Take some, unless enough is sealed already, and seal it."""
        if self.held >= CHUNK_BYTES:
            return 0
        view = _scratch.bytes[:most]
        try:
            count = self.source.recv_into(view)
        except BlockingIOError:
            self.readable = False
            return 0
        self.ended = not count
        self.readable = count == len(view)
        sealed, write = 0, self._tls.object.write
        while sealed < count:  # one record at a time: that is how `ssl` sets OpenSSL
            sealed += write(view[sealed:count])
        self.moved += count
        return count

    def drain(self) -> int:
        """Give sealed bytes."""
        if not self._sealed:
            self._sealed = memoryview(self._tls.outgoing.read())
        if not self._sealed:
            return 0
        try:
            count = self.sink.send(self._sealed)
        except BlockingIOError:
            self.writable = False
            return 0
        except OSError as error:
            raise _sink_error(error) from error
        self.writable = count == len(self._sealed)
        self._sealed = self._sealed[count:]
        return count

    def finish(self) -> bool:
        """A close_notify, then TCP's end, once both are given; the other direction stays open.

        It waits until what came has been opened: OpenSSL would lose that. `OpenFlow` opens all of
        it at once, so that nobody waits for the local program to read.
        """
        if not self._said_end:
            if self._tls.unopened:
                return False
            with suppress(ssl.SSLError):  # it would like to read the peer's, too
                self._tls.object.unwrap()
            self._said_end = True
        self.drain()
        if self.held:
            return False
        _end(self.sink)
        return True

    def discard(self) -> int:
        """Read and forget."""
        return _forgotten(self)

    def close(self) -> None:
        """Nothing outlives the object."""


class OpenFlow:
    """From the peer, decrypted, to a local socket."""

    def __init__(self, source: socket.socket, sink: socket.socket, tls: Tls) -> None:
        self.source, self.sink = source, sink
        self.moved = 0
        self.ended = False
        self.readable = self.writable = True
        self._tls = tls
        self._plain = memoryview(bytearray(_OPENED_BYTES))
        self._given = self._opened = 0
        self._cut_off = False

    @property
    def held(self) -> int:
        """Opened bytes."""
        return self._opened - self._given

    def fill(self, most: int) -> int:
        """Open what came; nothing while opened bytes wait."""
        if self.held:
            return 0
        self._given = self._opened = 0
        self._open()
        if not self._opened and not self.ended and self._receive():
            self._open()
        self.moved += self._opened
        return self._opened

    def drain(self) -> int:
        """Give opened bytes."""
        if not self.held:
            return 0
        try:
            count = self.sink.send(self._plain[self._given : self._opened])
            self.writable = count == self.held
        except BlockingIOError:
            self.writable = False
            return 0
        except OSError as error:
            raise _sink_error(error) from error
        self._given += count
        return count

    def finish(self) -> bool:
        """The local program reads an end of file."""
        _end(self.sink)
        return True

    def discard(self) -> int:
        """Open and forget."""
        self._given = self._opened = 0
        self._open()
        if not self.ended and self._receive():
            self._open()
        return self._opened

    def close(self) -> None:
        """Nothing outlives the object."""

    def _receive(self) -> bool:
        """Whether anything came; an end without a close_notify is one that was cut off."""
        try:
            count = self.source.recv_into(_scratch.bytes)
        except BlockingIOError:
            self.readable = False
            return False
        if count:
            self._tls.incoming.write(_scratch.bytes[:count])
        else:
            self._tls.incoming.write_eof()
            self._cut_off = True
        return True

    def _open(self) -> None:
        """Open records until there is no whole one. What is behind the peer's end is nothing."""
        came, tls, read = self._tls.incoming, self._tls.object, self._tls.object.read
        try:
            while (left := _OPENED_BYTES - self._opened) and (
                came.pending or tls.pending() or self._cut_off
            ):
                count = _count(read(left, self._plain[self._opened :]))
                if not count:
                    raise ssl.SSLZeroReturnError
                self._opened += count
        except ssl.SSLWantReadError:
            return
        except ssl.SSLZeroReturnError:
            self.ended = True
            self._tls.incoming.read()


def failure_text(error: BaseException) -> str:
    """What ended a stream, in words."""
    if isinstance(error, ssl.SSLEOFError):
        return "the peer's connection was cut off in the middle"
    if isinstance(error, ssl.SSLError):
        reason = ssl_reason(error)
        if "unexpected eof" in reason:
            return "the peer's connection was cut off in the middle"
        return alert_text(reason) if "alert" in reason else f"not the peer's TLS: {reason}"
    if isinstance(error, TimeoutError):
        return "the peer took nothing, or did not answer, for too long"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _count(read: object) -> int:
    """`SSLObject.read` into a buffer gives a number; its stub says bytes."""
    assert isinstance(read, int)
    return read


def _forgotten(flow: SpliceFlow | SealFlow) -> int:
    try:
        count = len(flow.source.recv(DISCARD_BYTES))
    except BlockingIOError:
        return 0
    flow.ended = not count
    return count


def _end(sink: socket.socket) -> None:
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError as error:
        raise _sink_error(error) from error


def _sink_error(error: OSError) -> Exception:
    if error.errno in _GONE:
        return SinkGone(error.strerror or str(error))
    return error
