"""Datagrams, each of a connection of its own, from one namespace to another, and which arrived."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from libtortie.linux.netns import Netns
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, ip

T = TypeVar("T")
NODE, FAR, MAC = "172.31.0.11", "172.31.0.1", "02:00:00:00:00:11"
SO_RCVBUFFORCE = 33
_UDP_TIMEOUT = Path("/proc/sys/net/netfilter/nf_conntrack_udp_timeout")


@contextmanager
def two_spaces() -> Iterator[tuple[str, str]]:
    """A node and whoever is far, with a link between them; they end with the block."""
    here, far = fresh_name("hc"), fresh_name("hf")
    try:
        for name in (here, far):
            ip("netns", "add", name)
        command = f"link add up0 address {MAC} type veth peer name up0 netns {far}"
        ip("-n", here, *command.split())
        for name, address in ((here, NODE), (far, FAR)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "up0")
            ip("-n", name, "link", "set", "up0", "up")
        ip("-n", far, "neighbour", "add", NODE, "lladdr", MAC, "dev", "up0")
        inside(here, partial(_UDP_TIMEOUT.write_text, "1"))  # each datagram leaves an entry
        yield here, far
    finally:
        for name in (here, far):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def inside(space: str, work: Callable[[], T]) -> T:
    return Netns(deadline=2 * DEADLINE).call(f"/run/netns/{space}", work)


@dataclass
class Probe:
    """A datagram after another to a port, each of a connection of its own."""

    ear: socket.socket
    mouth: socket.socket
    port: int
    sent: int = 0
    received: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _sent_all: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        for source in itertools.cycle(range(1024, 60000)):
            if self._stop.wait(0.0005):
                return
            datagram = struct.pack("!HHHH", source, self.port, 9, 0) + b"x"
            self.mouth.sendto(datagram, (NODE, 0))
            self.sent += 1

    def receive(self) -> None:
        while True:
            last = self._sent_all.is_set()  # asked before the wait: all is there before it begins
            try:
                self.ear.recv(10)
            except TimeoutError:
                if last:
                    return
                continue
            self.received += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=one) for one in (self.send, self.receive)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            threads[0].join()
            self._sent_all.set()
            threads[1].join()
            self.ear.close()
            self.mouth.close()


def probe(here: str, far: str, port: int) -> Probe:
    def ear() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)  # whoever reads may be late
        sock.bind((NODE, port))
        sock.settimeout(0.5)
        return sock

    raw = inside(far, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP))
    return Probe(inside(here, ear), raw, port)
