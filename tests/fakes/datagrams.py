"""Datagrams from one network namespace to another, counted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from libtortie.linux.netns import Netns

PATIENCE = 60.0
"""Seconds for what must arrive."""
SO_RCVBUFFORCE = 33


def inside(namespace: str, work: Callable[[], object]) -> object:
    """What a call gives in a namespace."""
    return Netns(deadline=2 * PATIENCE).call(f"/run/netns/{namespace}", work)


@contextmanager
def probing(source: str, target: str, address: str, port: int) -> Iterator[dict[str, int]]:
    """A datagram every half millisecond; afterwards `sent` and `received`."""
    count = {"sent": 0, "received": 0}
    stop, sent_all = threading.Event(), threading.Event()

    def receiver() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)  # whoever reads it may be late
        sock.bind(("0.0.0.0", port))
        sock.settimeout(0.5)
        return sock

    sink = inside(target, receiver)
    sender = inside(source, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    assert isinstance(sink, socket.socket)
    assert isinstance(sender, socket.socket)

    def send() -> None:
        while not stop.wait(0.0005):
            sender.sendto(b"x", (address, port))
            count["sent"] += 1

    def receive() -> None:
        while True:
            last = sent_all.is_set()  # asked before the wait: all is there before it begins
            try:
                sink.recv(10)
            except TimeoutError:
                if last:
                    return
                continue
            count["received"] += 1

    threads = [threading.Thread(target=send), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        yield count
    finally:
        stop.set()
        threads[0].join()
        sent_all.set()
        threads[1].join()
        sink.close()
        sender.close()
