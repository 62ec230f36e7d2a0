"""Hears what is committed to nf_tables in a network namespace, as the kernel tells it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from libtortie.linux.channel import messages
from libtortie.linux.netns import Netns
from libtortie.linux.nft_wire import DELELEM, NEWELEM, NEWGEN
from libtortie.linux.wire import attributes

_NETLINK_NETFILTER, _NFNLGRP_NFTABLES = 12, 7
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE = 33
_NFGEN_SIZE = 4


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: when it was told (`time.monotonic`), what kinds of messages it had, which
    sets' elements it touched how often, and its elements' keys."""

    at: float
    kinds: Counter[int]
    elements: Counter[str]
    keys: frozenset[bytes]


@dataclass(slots=True)
class NftMonitor:
    """Commits as they are heard."""

    commits: list[Commit] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _open: bool = True

    def wait(self, wanted: Callable[[Commit], bool], since: int, seconds: float) -> Commit:
        """The first commit from number `since` on that is wanted. Raises `TimeoutError`."""
        end = time.monotonic() + seconds
        with self._changed:
            seen = since
            while True:
                for one in self.commits[seen:]:
                    if wanted(one):
                        return one
                seen = len(self.commits)
                if (left := end - time.monotonic()) <= 0:
                    raise TimeoutError(f"no such commit to nf_tables within {seconds:g} s")
                self._changed.wait(left)

    def run(self, sock: socket.socket) -> None:
        """The thread's body."""
        kinds, elements = Counter[int](), Counter[str]()
        keys: set[bytes] = set()
        while self._open:
            try:
                data = sock.recv(1 << 20)
            except TimeoutError:
                continue
            at = time.monotonic()
            for full, _, body in messages(data):
                kind = full & 0xFF
                kinds[kind] += 1
                if kind in (NEWELEM, DELELEM):
                    name, found = _elements(body)
                    elements[name] += len(found)
                    keys.update(found)
                if kind == NEWGEN:
                    commit = Commit(at, kinds, elements, frozenset(keys))
                    with self._changed:
                        self.commits.append(commit)
                        self._changed.notify_all()
                    kinds, elements, keys = Counter(), Counter(), set()

    def stop(self) -> None:
        """Let `run` return."""
        self._open = False


def _elements(body: memoryview) -> tuple[str, list[bytes]]:
    """The set's name, and the keys of the elements of one message."""
    found = attributes(body, _NFGEN_SIZE)
    name = bytes(found[2]).rstrip(b"\0").decode()
    keys, listed, offset = [], found[3], 0
    while offset + 4 <= len(listed):
        length, _ = struct.unpack_from("=HH", listed, offset)
        key = attributes(attributes(listed[offset + 4 : offset + length], 0)[1], 0)
        keys.append(bytes(key[1]))
        offset += (length + 3) & ~3
    return name, keys


@contextmanager
def nft_monitor(namespace: str) -> Iterator[NftMonitor]:
    """Hear what is committed in a named network namespace from now on."""

    def opened() -> socket.socket:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 256 << 20)
        sock.bind((0, 0))
        sock.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        sock.settimeout(0.2)
        return sock

    monitor = NftMonitor()
    with Netns(deadline=60.0).call(f"/run/netns/{namespace}", opened) as sock:
        thread = threading.Thread(target=monitor.run, args=(sock,), daemon=True)
        thread.start()
        try:
            yield monitor
        finally:
            monitor.stop()
            thread.join()
