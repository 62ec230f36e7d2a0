"""Hears whose tables others change, as the kernel tells of every commit to nf_tables.

A commit's messages name their tables; one that names its generation ends them. Whoever hears all of
them knows that a table is as it was without reading it. When some are lost, nothing is known.
"""

from __future__ import annotations

import errno
import socket

from libtortie.linux.channel import messages, open_socket
from libtortie.linux.nft_wire import NEWGEN
from libtortie.linux.wire import attributes

_NETLINK_NETFILTER, _NFNLGRP_NFTABLES = 12, 7
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE = 33
_ROOM = 16 << 20
"""Bytes of messages that may wait to be heard: those of some hundred commits of kube-proxy."""
_PATIENCE = 1.0
"""Seconds: a commit is told of a moment after it is counted."""
_NFGEN_SIZE, _NAME, _GEN_ID = 4, 1, 1
_BUFFER = 1 << 16


class TableWatch:
    """Commits that touch tables of one name, in the network namespace of whoever calls `begin`."""

    def __init__(self, table: str) -> None:
        self._table = table.encode() + b"\0"
        self._sock: socket.socket | None = None
        self._latest: int | None = None
        self._touching = False
        self._touched: set[int] = set()

    def begin(self) -> None:
        """Hear what is committed from now on; what was before is forgotten. Raises `OSError`."""
        self.end()
        self._latest, self._touching, self._touched = None, False, set()
        sock = open_socket(_PATIENCE, _NETLINK_NETFILTER)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
            sock.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        except BaseException:
            sock.close()
            raise
        self._sock = sock

    def end(self) -> None:
        """Hear nothing any more."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def untouched(self, since: int, now: int) -> bool:
        """Whether no commit behind generation `since`, up to `now`, has touched the tables.

        False, too, when that is not known; then nothing is until `begin`.
        """
        known = self._hear(None) and (since == now or self._hear(now))
        if not known:
            self.end()
        if since == now or not known:
            return since == now
        found = {one for one in self._touched if 0 < (one - since) & 0xFFFFFFFF < 1 << 31}
        self._touched = found
        return not found

    def _hear(self, wanted: int | None) -> bool:
        """Take in what was told; with `wanted` wait for that generation. False: some is lost."""
        flags = socket.MSG_DONTWAIT if wanted is None else 0
        while self._sock is not None and (wanted is None or self._latest != wanted):
            try:
                self._take(self._sock.recv(_BUFFER, flags))
            except OSError as error:
                return wanted is None and error.errno in (errno.EAGAIN, errno.EWOULDBLOCK)
        return self._sock is not None

    def _take(self, data: bytes) -> None:
        for kind, _, body in messages(data):
            found = attributes(body, _NFGEN_SIZE)
            if kind & 0xFF != NEWGEN:
                self._touching |= bytes(found.get(_NAME, b"")) == self._table
                continue
            self._latest = int.from_bytes(found[_GEN_ID], "big")
            if self._touching:
                self._touched.add(self._latest)
            self._touching = False
