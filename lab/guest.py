"""The guest's programs: a UDP and a TCP echo server for both families, in the guest's namespace.

One thread and one epoll set serve both; the process asks for SCHED_FIFO, because a guest that
waits for the lab's processor would look like a network that lost it.
"""

from __future__ import annotations

import argparse
import selectors
import socket
from collections.abc import Callable

from lab import clock
from lab.names import ECHO_PORT

PRIORITY = 20
DATAGRAM_MAX = 2048
CHUNK = 65536


def serve(port: int, ready: Callable[[], None]) -> None:
    """Echo for ever on UDP and TCP `port`."""
    loop = selectors.EpollSelector()
    udp = _socket(socket.SOCK_DGRAM)
    udp.bind(("::", port))
    listener = _socket(socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", port))
    listener.listen(16)
    loop.register(udp, selectors.EVENT_READ, lambda: _echo_datagrams(udp))
    loop.register(listener, selectors.EVENT_READ, lambda: _accept(loop, listener))
    ready()
    while True:
        for key, _ in loop.select():
            key.data()


def _socket(kind: int) -> socket.socket:
    """One that IPv4 reaches, too, as mapped addresses."""
    made = socket.socket(socket.AF_INET6, kind | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made


def _echo_datagrams(udp: socket.socket) -> None:
    while True:
        try:
            data, sender = udp.recvfrom(DATAGRAM_MAX)
            udp.sendto(data, sender)
        except BlockingIOError:
            return
        except OSError as error:
            # An ICMP error of an earlier answer, or no route for this one: UDP loses it.
            print(f"udp: {error}", flush=True)
            return


def _accept(loop: selectors.BaseSelector, listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(5.0)
    loop.register(connection, selectors.EVENT_READ, lambda: _echo_stream(loop, connection))


def _echo_stream(loop: selectors.BaseSelector, connection: socket.socket) -> None:
    try:
        data = connection.recv(CHUNK)
        if data:
            connection.sendall(data)
            return
    except OSError as error:
        print(f"tcp: {error}", flush=True)
    loop.unregister(connection)
    connection.close()


def main() -> None:
    """`python -m lab.guest [--port N]`."""
    parser = argparse.ArgumentParser(description="UDP and TCP echo, as a guest would run them")
    parser.add_argument("--port", type=int, default=ECHO_PORT)
    port = parser.parse_args().port
    clock.be_punctual(PRIORITY)
    serve(port, lambda: print("ready", flush=True))


if __name__ == "__main__":
    main()
