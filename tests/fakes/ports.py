"""TCP ports of the loopback address that stay what a test takes them for."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 12000


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different, for servers that will listen later, and again.

    None is of those the kernel gives to outgoing connections: one of these might take a port
    between our look and the server's start, or while the server is down.
    """
    ends = int(_RANGE.read_text().split()[0])
    assert ends > _FIRST + 1000, f"{_RANGE} leaves no ports for servers"
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(range(_FIRST, ends), 100 + count):
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"{count} free ports were not found")


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses every connection, and that nobody else can take meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, but not listening
        port: int = held.getsockname()[1]
        yield port
