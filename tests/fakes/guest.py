"""A guest that talks, and somebody outside who probes it every millisecond."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable

from libtortie.linux.netns import Netns
from tests.fakes import frames
from tests.fakes.called_node import CalledNode
from tests.fakes.node_process import ip

CLIENT = "192.0.2.2"
PORT = 7007
EVERY = 0.001
SPEAKS_EVERY = 0.02
_STAMP = struct.Struct("=d")


class Guest:
    """What runs in a VM: it answers probes and says something of its own now and then.

    Before `arrive` it is stopped: KubeVirt's guest before the end of its migration.
    """

    def __init__(self, node: CalledNode, container: str, address: str, mac: str) -> None:
        self._path = node.sandbox(container)
        self._address, self._mac = address, mac
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def arrive(self) -> float:
        """The guest runs here from now on; QEMU announces it. When that was (monotonic)."""
        self._over.clear()
        sock = Netns().call(self._path, self._socket)
        raw = Netns().call(self._path, packet_socket)
        began = time.monotonic()
        raw.send(frames.rarp(self._mac))
        raw.close()
        thread = threading.Thread(target=self._live, args=(sock,), daemon=True)
        thread.start()
        self._threads.append(thread)
        return began

    def leave(self) -> None:
        """Be stopped again."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self._threads.clear()

    def _socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
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
                    data, sender = sock.recvfrom(100)
                    sock.sendto(data, sender)
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
        self._heard: list[float] = []
        self._over = threading.Event()
        self._sock = Netns().call(
            f"/run/netns/{name}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        )
        self._sock.settimeout(0.1)
        self._threads = [self._start(self._ask), self._start(self._hear)]

    def gap(self, began: float) -> float:
        """Seconds of the longest time without an answer since then, until now."""
        heard = [moment for moment in tuple(self._heard) if moment >= began]
        moments = [began, *heard, time.monotonic()]
        return max(b - a for a, b in itertools.pairwise(moments))

    def answered_since(self, began: float) -> bool:
        """Whether any answer came."""
        return bool(self._heard) and self._heard[-1] >= began

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
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += EVERY
            try:
                self._sock.sendto(_STAMP.pack(time.monotonic()), self._target)
            except OSError:
                continue

    def _hear(self) -> None:
        while not self._over.is_set():
            try:
                self._sock.recv(100)
            except OSError:
                continue
            self._heard.append(time.monotonic())


def packet_socket(ifname: str = "eth0") -> socket.socket:
    """A socket that sends whole frames; of the namespace of the thread that asks."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind((ifname, 0))
    return sock
