"""Listens on the veths of endpoints whose VM may arrive, and says when it made itself heard.

One thread, one AF_PACKET socket per watched endpoint, bound to the host end of its veth. The
kernel filters (`packet_filter`), `frames.classify` judges. Frames the host sends into the veth
never count. A socket that cannot be opened (the link is not there yet) or breaks is opened again
within a fraction of a second, for as long as the endpoint is watched.

The first sign is passed on at once. After that the socket is muted in the kernel for a moment,
so that a VM that talks at line rate cannot drown the agent; whether a sign counts, and when to
stop listening, is the reconciler's decision alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from felix_shim.events import Sign
from felix_shim.frames import classify, mac_bytes
from felix_shim.model import EndpointId, SignKind
from felix_shim.packet_filter import NOTHING, Instruction, assemble, program
from libtortie.jsonlog import Log
from libtortie.model.ipam import IPAddress

MUTE_SECONDS = 0.1
RETRY_SECONDS = 0.1
_FRAME_BYTES = 2048
_ETH_P_ALL = 0x0003
_SO_ATTACH_FILTER = 26
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")


@dataclass(frozen=True, slots=True)
class Watched:
    """An endpoint whose VM is listened for; the MAC and the addresses are the VM's.

    `episode` goes back with every sign, so that a late one can be told apart.
    """

    endpoint: EndpointId
    interface: str
    mac: str
    addresses: tuple[IPAddress, ...]
    episode: int


@dataclass(slots=True)
class _Ear:
    """One watched endpoint inside the thread."""

    watched: Watched
    mac: bytes
    socket: socket.socket | None = None
    retry_at: float | None = 0.0  # when to open a socket, or to look again whether its link lives
    muted_until: float = 0.0
    muted: int = 0
    complaint: str = ""


@dataclass(slots=True)
class _Orders:
    """What other threads asked for since the last look."""

    watch: Mapping[EndpointId, Watched] | None = None
    nudged: bool = False
    stop: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Announcements:
    """The sniffer thread. `post` is called on it and must not block."""

    def __init__(self, post: Callable[[Sign], None], log: Log) -> None:
        self._post = post
        self._log = log
        self._orders = _Orders()
        self._ears: dict[EndpointId, _Ear] = {}
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)

    def watch(self, wanted: Mapping[EndpointId, Watched]) -> None:
        """Listen for exactly these endpoints from now on. Any thread; returns at once."""
        with self._orders.lock:
            self._orders.watch = dict(wanted)
        self._wake()

    def nudge(self) -> None:
        """A link appeared or came up: try unopened sockets now. Any thread."""
        with self._orders.lock:
            self._orders.nudged = True
        self._wake()

    def stop(self) -> None:
        """Make `run` return. Any thread."""
        with self._orders.lock:
            self._orders.stop = True
        self._wake()

    def run(self) -> None:
        """The thread's body."""
        try:
            while self._take_orders():
                for key, _ in self._selector.select(self._patience()):
                    if key.data is None:
                        self._drain_wake()
                    else:
                        self._listen(key.data)
                self._keep_open()
        finally:
            for ear in self._ears.values():
                self._close(ear)
            self._selector.close()
            self._wake_read.close()
            self._wake_write.close()

    # -- orders ------------------------------------------------------------------------------

    def _wake(self) -> None:
        try:
            self._wake_write.send(b"x")
        except (BlockingIOError, OSError):
            return  # full: it will wake anyway; closed: it has ended

    def _drain_wake(self) -> None:
        try:
            while self._wake_read.recv(4096):
                pass
        except BlockingIOError:
            return

    def _take_orders(self) -> bool:
        orders = self._orders
        with orders.lock:
            wanted, nudged, stop = orders.watch, orders.nudged, orders.stop
            orders.watch, orders.nudged = None, False
        if wanted is not None:
            self._adopt(wanted)
        if nudged:
            for ear in self._ears.values():
                ear.retry_at = 0.0
        if wanted is not None or nudged:
            self._keep_open()
        return not stop

    def _adopt(self, wanted: Mapping[EndpointId, Watched]) -> None:
        for endpoint, ear in list(self._ears.items()):
            watched = wanted.get(endpoint)
            if watched == replace(ear.watched, episode=watched.episode if watched else -1):
                ear.watched = watched
            else:
                self._close(ear)
                del self._ears[endpoint]
        for endpoint, watched in wanted.items():
            if endpoint not in self._ears:
                self._ears[endpoint] = _Ear(watched, mac_bytes(watched.mac))

    def _patience(self) -> float | None:
        now = time.monotonic()
        times = [ear.retry_at for ear in self._ears.values() if ear.retry_at is not None]
        times += [ear.muted_until for ear in self._ears.values() if ear.muted_until]
        return max(0.0, min(times) - now) if times else None

    # -- sockets -----------------------------------------------------------------------------

    def _keep_open(self) -> None:
        now = time.monotonic()
        for ear in self._ears.values():
            if ear.retry_at is not None and ear.retry_at <= now:
                self._look_again(ear, now)
            if ear.socket is not None and ear.muted_until and ear.muted_until <= now:
                ear.muted_until = 0.0
                _attach(ear.socket, program(ear.mac, ear.watched.addresses))

    def _look_again(self, ear: _Ear, now: float) -> None:
        """Make sure of a socket on a living link, and of being told when it is one no more.

        A packet socket hears ENETDOWN once, when its link goes down: not again when a link that is
        down is deleted. So a socket on a link that is not up is doubted until it is.
        """
        if ear.socket is not None and ear.socket.getsockname()[0] != ear.watched.interface:
            self._log.info("sniffer_lost", endpoint=ear.watched.endpoint, reason="link deleted")
            self._close(ear)
        if ear.socket is None:
            self._open(ear, now)
        if ear.socket is not None:
            ear.retry_at = (
                None if _is_up(ear.socket, ear.watched.interface) else now + RETRY_SECONDS
            )

    def _open(self, ear: _Ear, now: float) -> None:
        watched = ear.watched
        try:
            ear.socket = _open_socket(watched.interface, program(ear.mac, watched.addresses))
        except OSError as error:
            self._close(ear)
            ear.retry_at = now + RETRY_SECONDS
            if ear.complaint != str(error):
                ear.complaint = str(error)
                self._log.info(
                    "sniffer_waiting",
                    endpoint=watched.endpoint,
                    interface=watched.interface,
                    reason=error,
                )
            return
        ear.complaint = ""
        self._selector.register(ear.socket, selectors.EVENT_READ, ear)
        self._log.debug("sniffer_open", endpoint=watched.endpoint, interface=watched.interface)

    def _close(self, ear: _Ear) -> None:
        if ear.socket is None:
            return
        if ear.socket.fileno() in self._selector.get_map():
            self._selector.unregister(ear.socket)
        ear.socket.close()
        ear.socket = None
        ear.muted_until = 0.0

    def _listen(self, ear: _Ear) -> None:
        """Read what is there: the first sign is passed on, then the kernel mutes the socket."""
        while ear.socket is not None:
            try:
                frame, stamp = _receive(ear.socket)
            except BlockingIOError:
                return
            except OSError:  # ENETDOWN: the link went down; or it is being deleted
                ear.retry_at = 0.0
                return
            kind = classify(frame, ear.mac, ear.watched.addresses)
            if kind is not None:
                self._heard(ear, kind, stamp)

    def _heard(self, ear: _Ear, kind: SignKind, stamp: int) -> None:
        if ear.socket is None or ear.muted_until:
            ear.muted += 1
            return
        watched = ear.watched
        self._post(
            Sign(watched.endpoint, watched.interface, watched.episode, kind, stamp, ear.muted)
        )
        ear.muted = 0
        ear.muted_until = time.monotonic() + MUTE_SECONDS
        _attach(ear.socket, NOTHING)


def _open_socket(interface: str, instructions: tuple[Instruction, ...]) -> socket.socket:
    """A packet socket that never saw a frame from before its filter and its binding."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        _attach(opened, instructions)
        opened.bind((interface, _ETH_P_ALL))
        opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # clears ENETDOWN of a down link
    except OSError:
        opened.close()
        raise
    return opened


def _is_up(sniffer: socket.socket, interface: str) -> bool:
    """Whether a link is up (netdevice(7): `struct ifreq` with the name, then the flags)."""
    try:
        answer = fcntl.ioctl(sniffer, _SIOCGIFFLAGS, struct.pack("16s24x", interface.encode()))
    except OSError:
        return False
    return bool(struct.unpack_from("H", answer, 16)[0] & _IFF_UP)


def _attach(sniffer: socket.socket, instructions: tuple[Instruction, ...]) -> None:
    """Replace the socket's filter: `struct sock_fprog` points at the instructions."""
    code = assemble(instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HL", len(instructions), ctypes.addressof(buffer))
    sniffer.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


def _receive(sniffer: socket.socket) -> tuple[bytes, int]:
    """One frame and the kernel's time stamp of it, in nanoseconds of CLOCK_REALTIME."""
    frame, ancillary, _, _ = sniffer.recvmsg(_FRAME_BYTES, 64)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return frame, seconds * 1_000_000_000 + nanoseconds
    return frame, time.time_ns()
