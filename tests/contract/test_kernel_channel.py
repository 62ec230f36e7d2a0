"""The request socket against a kernel that is slow, silent, late or inconsistent."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from libtortie.errors import KernelError, Unavailable
from libtortie.linux.channel import (
    HEADER,
    Channel,
    Interrupted,
    Refused,
    messages,
    set_receive_deadline,
)

RTM_NEWROUTE, NLMSG_ERROR, NLMSG_DONE = 24, 2, 3
MULTI, INTERRUPTED, ACK_TLVS, CAPPED = 0x2, 0x10, 0x200, 0x100
Script = Callable[[int], list[bytes]]
"""From a request's sequence number to the datagrams that answer it."""


def message(kind: int, flags: int, sequence: int, body: bytes = b"") -> bytes:
    padded = body + bytes(-len(body) % 4)
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + padded


def acknowledged(sequence: int, code: int = 0, text: str = "") -> bytes:
    echoed = HEADER.pack(HEADER.size, RTM_NEWROUTE, 0, sequence, 0)
    value = text.encode() + b"\0"
    extra = struct.pack("=HH", 4 + len(value), 1) + value if text else b""
    flags = CAPPED | (ACK_TLVS if text else 0)
    return message(NLMSG_ERROR, flags, sequence, struct.pack("=i", -code) + echoed + extra)


def done(sequence: int, code: int = 0) -> bytes:
    return message(NLMSG_DONE, MULTI, sequence, struct.pack("=i", -code))


class Peer:
    """Plays the kernel: the request with number n is answered by script n, whoever serves it.

    A socket that its owner gave up may still have a request to be read.
    """

    def __init__(self, scripts: list[Script], patience: float = 60.0) -> None:
        self.scripts = scripts
        self.patience = patience
        self.opened: list[socket.socket] = []
        self.channel = Channel(self.open(), self.open)

    def open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        set_receive_deadline(ours, self.patience)
        self.opened.append(theirs)
        threading.Thread(target=self.serve, args=(theirs,), daemon=True).start()
        return ours

    def serve(self, sock: socket.socket) -> None:
        while True:
            request = sock.recv(1 << 16)
            if not request:
                sock.close()
                return
            sequence = HEADER.unpack_from(request)[3]
            for datagram in self.scripts[sequence - 1](sequence):
                with contextlib.suppress(BrokenPipeError):  # given up meanwhile
                    sock.send(datagram)


@pytest.fixture
def play() -> Iterator[Callable[..., Channel]]:
    channels: list[Channel] = []

    def start(*scripts: Script) -> Channel:
        channels.append(Peer(list(scripts)).channel)
        return channels[-1]

    yield start
    for channel in channels:
        channel.close()


def ask(channel: Channel) -> None:
    channel.request(RTM_NEWROUTE, 0, b"", "change something")


def read(channel: Channel, *wanted: bytes) -> list[bytes]:
    found = channel.dump(26, b"", "read something", wanted=wanted)
    return [bytes(body) for _, body in found]


def test_an_acknowledgement_is_success(play: Callable[..., Channel]) -> None:
    ask(play(lambda sequence: [acknowledged(sequence)]))


def test_a_refusal_carries_errno_and_the_kernels_text(play: Callable[..., Channel]) -> None:
    channel = play(
        lambda sequence: [acknowledged(sequence, errno.EINVAL, "Nexthop has invalid gateway")],
        lambda sequence: [acknowledged(sequence, errno.ESRCH)],
        lambda sequence: [acknowledged(sequence)],
    )
    with pytest.raises(Refused, match=r"change something: Invalid .*\(Nexthop has invalid gatew"):
        ask(channel)
    with pytest.raises(KernelError, match="No such process") as caught:
        ask(channel)
    assert isinstance(caught.value, Refused)
    assert caught.value.code == errno.ESRCH
    ask(channel)


def test_silence_ends_in_time_and_the_next_request_works() -> None:
    """On a new socket: the kernel refuses a dump on one whose last dump was not read to its end."""
    peer = Peer([lambda sequence: [], lambda sequence: [acknowledged(sequence)]], 0.3)
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="change something: no answer"):
        peer.patience = 60.0  # of the next socket
        ask(peer.channel)
    assert time.monotonic() - begun > 0.2
    ask(peer.channel)
    assert len(peer.opened) == 2
    peer.channel.close()


def test_an_answer_to_another_request_is_not_ours(play: Callable[..., Channel]) -> None:
    channel = play(
        lambda sequence: [acknowledged(sequence - 1, errno.EPERM), acknowledged(sequence)],
        lambda sequence: [
            message(RTM_NEWROUTE, MULTI, sequence + 7, b"alien123") + done(sequence + 7),
            message(RTM_NEWROUTE, MULTI, sequence, b"ours1234") + done(sequence),
        ],
    )
    ask(channel)
    assert read(channel) == [b"ours1234"]


def test_a_dump_that_stops_midway_is_an_error() -> None:
    scripts: list[Script] = [
        lambda sequence: [message(RTM_NEWROUTE, MULTI, sequence, b"half")],
        lambda sequence: [message(RTM_NEWROUTE, MULTI, sequence, b"half"), done(sequence, 105)],
        lambda sequence: [message(RTM_NEWROUTE, MULTI, sequence, b"full"), done(sequence)],
    ]
    peer = Peer(scripts, 0.3)
    with pytest.raises(Unavailable):
        peer.patience = 60.0  # of the next socket
        read(peer.channel)
    with pytest.raises(Refused):
        read(peer.channel)
    assert read(peer.channel) == [b"full"]
    peer.channel.close()


def test_an_inconsistent_dump_is_read_again(play: Callable[..., Channel]) -> None:
    torn = MULTI | INTERRUPTED
    channel = play(
        lambda sequence: [message(RTM_NEWROUTE, torn, sequence, b"torn"), done(sequence)],
        lambda sequence: [message(RTM_NEWROUTE, MULTI, sequence, b"good"), done(sequence)],
    )
    assert read(channel) == [b"good"]


def test_a_dump_that_is_never_consistent_is_given_up(play: Callable[..., Channel]) -> None:
    torn = MULTI | INTERRUPTED

    def answer(sequence: int) -> list[bytes]:
        return [message(RTM_NEWROUTE, torn, sequence, b"torn"), done(sequence)]

    with pytest.raises(Interrupted):
        read(play(*[answer] * 20))


def test_a_search_skips_what_it_need_not_read(play: Callable[..., Channel]) -> None:
    """The end is seen wherever it stands: alone, behind other routes, or with more to say."""

    def routes(sequence: int, *bodies: bytes) -> bytes:
        return b"".join(message(RTM_NEWROUTE, MULTI, sequence, body) for body in bodies)

    def verbose_end(sequence: int) -> bytes:
        body = struct.pack("=iHH", 0, 8, 1) + b"why\0"
        return message(NLMSG_DONE, MULTI | ACK_TLVS, sequence, body)

    channel = play(
        lambda s: [routes(s, b"aaaa", b"bbbb"), routes(s, b"cccc", b"dddd"), done(s)],
        lambda s: [routes(s, b"aaaa"), routes(s, b"bbbb") + done(s)],
        lambda s: [routes(s, b"aaaa"), verbose_end(s)],
        lambda s: [routes(s, b"aaaa"), acknowledged(s, errno.ENOBUFS)],
    )
    assert read(channel, b"cccc") == [b"cccc", b"dddd"]
    assert read(channel, b"zzzz") == [b"bbbb"]
    assert read(channel, b"zzzz") == []
    with pytest.raises(Refused):
        read(channel, b"zzzz")


def test_a_lost_socket_is_replaced(play: Callable[..., Channel]) -> None:
    peer = Peer([lambda sequence: [acknowledged(sequence)]] * 3)
    ask(peer.channel)
    peer.opened[0].shutdown(socket.SHUT_RDWR)
    with pytest.raises(Unavailable):
        ask(peer.channel)
    ask(peer.channel)
    peer.channel.close()
    with pytest.raises(KernelError, match="closed"):
        ask(peer.channel)


@pytest.mark.parametrize("cut", [0, 1, 15, 17, 19, 21, 35])
def test_a_broken_datagram_yields_what_is_whole(cut: int) -> None:
    data = message(RTM_NEWROUTE, 0, 1, b"1234") + message(RTM_NEWROUTE, 0, 1, b"5678")
    found = [bytes(body) for _, _, body in messages(data[:cut])]
    assert found == ([b"1234"] if cut >= 20 else [])
    endless = struct.pack("=IHHII", 0, RTM_NEWROUTE, 0, 1, 0)
    assert list(messages(endless)) == []
