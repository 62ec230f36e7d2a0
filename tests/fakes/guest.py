"""A guest that talks, and somebody outside who probes it every millisecond.

Both run in the test's own process, which may stand still as any other. So what is measured is the
network's time: a probe travels with the kernel's stamps, without the time for which the guest or
whoever reads its answers was not running; and a silence is told without the time for which nobody
asked.
"""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from lab import clock
from lab.probes import SO_TIMESTAMPNS
from libtortie.errors import NotFound
from libtortie.linux.netns import Netns
from tests.fakes import frames
from tests.fakes.called_node import CalledNode
from tests.fakes.node_process import ip

CLIENT = "192.0.2.2"
PORT = 7007
EVERY = 0.001
SPEAKS_EVERY = 0.02
LATE = 0.02
"""Seconds between two probes from which on the second is late: nobody asked meanwhile."""
SO_RCVBUFFORCE = 33
T = TypeVar("T")
_PROBE = struct.Struct("=Qq")
_TIMESPEC = struct.Struct("=qq")


class Guest:
    """What runs in a VM: it answers probes and says something of its own now and then.

    Before `arrive` it is stopped: KubeVirt's guest before the end of its migration. After `leave`
    it is again, and nobody answers for it: its pod's kernel, which has the guest's address here,
    would say that its ports are closed.
    """

    def __init__(self, node: CalledNode, container: str, address: str, mac: str) -> None:
        self._path = node.sandbox(container)
        self._address, self._mac = address, mac
        self._over = threading.Event()
        self._mute = False
        self._threads: list[threading.Thread] = []

    def arrive(self) -> float:
        """The guest runs here from now on; QEMU announces it. When that was (monotonic)."""
        self._over.clear()
        if self._mute:
            self._rule("delete")
        sock = _inside(self._path, self._socket)
        raw = _inside(self._path, packet_socket)
        began = time.monotonic()
        raw.send(frames.rarp(self._mac))
        raw.close()
        thread = threading.Thread(target=self._live, args=(sock,), daemon=True)
        thread.start()
        self._threads.append(thread)
        return began

    def leave(self) -> None:
        """Be stopped again."""
        if not self._mute:
            self._rule("add")
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self._threads.clear()

    def _rule(self, verb: str) -> None:
        """No way out for whatever the pod's kernel would say, or one again."""
        rule = ["ip", "rule", verb, "pref", "0", "blackhole"]
        with suppress(NotFound):
            _inside(self._path, lambda: subprocess.run(rule, check=True))
            self._mute = verb == "add"

    def _socket(self) -> socket.socket:
        sock = _stamped_socket()
        sock.bind((self._address, PORT))
        sock.settimeout(SPEAKS_EVERY)
        return sock

    def _live(self, sock: socket.socket) -> None:
        spoken = 0.0
        with sock:
            while not self._over.is_set():
                try:
                    if time.monotonic() - spoken >= SPEAKS_EVERY:
                        spoken = time.monotonic()
                        sock.sendto(b"", (CLIENT, PORT + 1))
                    data, control, _, sender = sock.recvmsg(100, 64)
                    number, _ = _PROBE.unpack(data)
                    sock.sendto(_PROBE.pack(number, time.time_ns() - _stamp(control)), sender)
                except OSError:
                    continue


class Prober:
    """A host outside the node that asks the guest every millisecond."""

    def __init__(self, node: CalledNode, address: str) -> None:
        name = f"{node.name}-client"
        ip("netns", "add", name)
        node.namespaces.append(name)
        node.ip("link", "add", "ext0", "type", "veth", "peer", "name", "eth0", "netns", name)
        node.ip("address", "add", "192.0.2.1/24", "dev", "ext0")
        node.ip("link", "set", "ext0", "up")
        ip("-n", name, "address", "add", f"{CLIENT}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", "192.0.2.1")
        self._target = (address, PORT)
        self._asked: list[float] = []
        self._heard: list[float] = []
        self._over = threading.Event()
        self.path = f"/run/netns/{name}"
        self._sock = _inside(self.path, _stamped_socket)
        self._sock.settimeout(0.1)
        self._threads = [self._start(self._ask), self._start(self._hear)]

    def gap(self, began: float) -> float:
        """Seconds of the longest time without an answer since then, until now.

        Without those for which nobody asked.
        """
        now = time.monotonic()
        while self._take() and self._heard[-1] < now:
            continue  # answers go on coming: what came until now is in the socket or read
        asked, heard = tuple(self._asked), tuple(self._heard)
        moments = [began, *sorted(moment for moment in heard if began <= moment < now), now]
        return max(b - a - unasked(asked, a, b) for a, b in itertools.pairwise(moments))

    def answered_since(self, began: float) -> bool:
        """Whether any answer came."""
        return any(moment >= began for moment in self._heard[-100:])

    def close(self) -> None:
        """Stop asking."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self._sock.close()

    @staticmethod
    def _start(body: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    def _ask(self) -> None:
        due = time.monotonic()
        for number in itertools.count():
            if self._over.wait(max(0.0, due - time.monotonic())):
                return
            due = max(due + EVERY, time.monotonic() - LATE)
            try:
                self._sock.sendto(_PROBE.pack(number, 0), self._target)
            except OSError:
                continue
            finally:
                self._asked.append(time.monotonic())

    def _hear(self) -> None:
        while not self._over.is_set():
            self._take()

    def _take(self) -> bool:
        """Wait a moment for one answer, and note when it would have come from a guest at once."""
        try:
            data, control, _, _ = self._sock.recvmsg(100, 64)
        except OSError:
            return False
        _, dwelt = _PROBE.unpack(data)
        came = _stamp(control) - clock.realtime_offset() - dwelt
        self._heard.append(came / clock.NS_PER_S)
        return True


def unasked(asked: tuple[float, ...], begin: float, end: float) -> float:
    """For how many seconds between two moments no probe was sent although one was due."""
    within = asked[bisect_right(asked, begin) : bisect_left(asked, end)]
    steps = itertools.pairwise([begin, *within, end])
    return sum(max(0.0, b - a - LATE) for a, b in steps)


def _inside(path: str, work: Callable[[], T]) -> T:
    return Netns(deadline=120).call(path, work)


def _stamped_socket() -> socket.socket:
    """A UDP socket that keeps what comes until somebody reads it, with the time it came at."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def _stamp(control: list[tuple[int, int, bytes]]) -> int:
    """When the kernel received a datagram, in ns of the wall clock."""
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, rest = _TIMESPEC.unpack(data)
            return int(seconds) * clock.NS_PER_S + int(rest)
    raise AssertionError("the kernel stamped nothing")


def packet_socket(ifname: str = "eth0") -> socket.socket:
    """A socket that sends whole frames; of the namespace of the thread that asks."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind((ifname, 0))
    return sock
