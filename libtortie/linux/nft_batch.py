"""One nf_tables transaction: all of its messages take effect in one step, or none does.

A transaction names the generation of the ruleset that it was made for. When anybody has committed
since, the kernel refuses it, so no change is ever made to rules that were not looked at.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence

from libtortie.errors import KernelError
from libtortie.linux.channel import (
    HEADER,
    NLM_F_ACK,
    NLM_F_REQUEST,
    Refused,
    messages,
    open_socket,
    raise_refusal,
)
from libtortie.linux.nft_wire import GETGEN, Message, generation_check
from libtortie.linux.wire import attributes

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
_BEGIN, _END = 0x10, 0x11
_NLMSG_ERROR = 2
_NFGEN_SIZE = 4
_GEN_ID = 1
_SO_SNDBUFFORCE = 32
_ERESTART = 85  # the kernel's own: `errno` has it, but says "should be restarted"
_BUFFER = 1 << 16
_BATCH = struct.pack(">BBH", 0, 0, _SUBSYSTEM)


class BatchRefused(KernelError):
    """The kernel refused a transaction; nothing of it was done.

    `index` is the message at fault, None when it is none of them; `code` the errno.
    """

    def __init__(self, code: int, index: int | None, detail: str = "") -> None:
        said = f"{os.strerror(code)}" + (f" ({detail})" if detail else "")
        super().__init__(f"nf_tables: {said}")
        self.code = code
        self.index = index


class GenerationMoved(KernelError):
    """Somebody else has committed since the generation that the transaction was made for."""


class FateUnknown(KernelError):
    """The kernel's answer was lost: the transaction is in the kernel, or nothing of it is."""


def next_generation(generation: int) -> int:
    """What the kernel counts after one commit; 0 is never used."""
    return (generation + 1) & 0xFFFFFFFF or 1


class NftSocket:
    """Transactions of the network namespace in which it is first used; one thread at a time.

    One socket for all of them: closing one waits until the kernel has destroyed what transactions
    have removed, 10 ms and more. After any failure the next one is new, so that no late answer is
    taken for another's.
    """

    def __init__(self, deadline: float = 2.0) -> None:
        self._deadline = deadline
        self._sock: socket.socket | None = None

    def generation(self) -> int:
        """The count of commits. Raises `KernelError`."""
        kind = _SUBSYSTEM << 8 | GETGEN
        try:
            sock = self._opened()
            sock.send(HEADER.pack(HEADER.size + 4, kind, NLM_F_REQUEST, 1, 0) + bytes(4))
            reply = sock.recv(_BUFFER)
        except OSError as error:
            self.close()
            raise KernelError(f"nftables generation: {error}") from error
        for _, _, body in messages(reply, 1):
            found = attributes(body, _NFGEN_SIZE).get(_GEN_ID)
            if found is not None and len(found) == 4:
                return int.from_bytes(found, "big")
        self.close()
        raise KernelError("nftables generation: the kernel's answer holds none")

    def commit(self, batch: Sequence[Message], generation: int) -> int:
        """Do all of it; the ruleset's generation afterwards.

        Raises `GenerationMoved`, `BatchRefused` (nothing was done), `FateUnknown`, `KernelError`
        (nothing was sent).
        """
        if not batch:
            return generation
        data = _packed(batch, generation)
        try:
            sock = self._opened()
        except OSError as error:
            raise KernelError(f"nf_tables: no socket: {error}") from error
        try:
            _send(sock, data)
            _await(sock, len(batch))
        except BaseException:
            self.close()
            raise
        return next_generation(generation)

    def close(self) -> None:
        """Release the socket."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _opened(self) -> socket.socket:
        if self._sock is None:
            self._sock = open_socket(self._deadline, _NETLINK_NETFILTER)
        return self._sock


def read_generation() -> int:
    """The count of nf_tables commits in this thread's network namespace. Raises `KernelError`."""
    sock = NftSocket()
    try:
        return sock.generation()
    finally:
        sock.close()


def _packed(batch: Sequence[Message], generation: int) -> bytes:
    """Messages with their place, from 1, as sequence numbers; the last one is acknowledged."""
    parts = [_framed(_BEGIN, 0, 0, _BATCH + generation_check(generation))]
    for place, one in enumerate(batch, 1):
        flags = one.flags | (NLM_F_ACK if place == len(batch) else 0)
        parts.append(_framed(_SUBSYSTEM << 8 | one.kind, flags, place, one.body))
    parts.append(_framed(_END, 0, len(batch) + 1, _BATCH))
    return b"".join(parts)


def _framed(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    header = HEADER.pack(HEADER.size + len(body), kind, flags | NLM_F_REQUEST, sequence, 0)
    return header + body + bytes(-len(body) % 4)


def _send(sock: socket.socket, data: bytes) -> None:
    """A batch is one datagram, however large. The kernel is done with it when this returns."""
    try:
        room = 2 * len(data) + 4096
        if room > sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, room)
        sock.send(data)
    except OSError as error:
        raise KernelError(f"nf_tables: cannot send {len(data)} bytes: {error}") from error


def _await(sock: socket.socket, count: int) -> None:
    """Read answers up to that to the last message, which comes whether all went well or not.

    All of them are there: the kernel is done. It tells of every message it refuses, in order; the
    first refusal says why, also when so many follow that some are lost.
    """
    refusal: BatchRefused | None = None
    ended = False
    while not ended:
        try:
            data = sock.recv(_BUFFER, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno == errno.ENOBUFS:  # answers were lost, not those before
                continue
            if refusal is None:
                raise FateUnknown(f"nf_tables: lost the kernel's answer: {error}") from error
            break
        for place, code, detail in _answers(data):
            ended = ended or place in (0, count)
            if code and place == 0 and code in (_ERESTART, errno.EINTR):
                raise GenerationMoved("nf_tables: somebody else has committed")
            if code and refusal is None:
                refusal = BatchRefused(code, place - 1 if place else None, detail)
    if refusal is not None:
        raise refusal


def _answers(data: bytes) -> list[tuple[int, int, str]]:
    """(place, errno, the kernel's words) of each answer in a datagram."""
    found = []
    for kind, flags, body in messages(data):
        if kind != _NLMSG_ERROR or len(body) < 4 + HEADER.size:
            continue
        place = HEADER.unpack_from(body, 4)[3]
        try:
            raise_refusal(flags, body, "")
        except Refused as error:
            found.append((place, error.code, error.detail))
        else:
            found.append((place, 0, ""))
    return found
