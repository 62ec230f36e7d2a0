"""Serves the CNI executable over a unix socket: one request, one answer, one thread each.

Only root may ask (the kernel vouches for the peer's uid). The socket is 0600 in a directory of
0755. At most `LIMIT` requests run at once; more wait in the listen queue. A socket file left by a
dead agent is replaced; that the other agent is dead is known from the lock, which its caller holds.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

from cni_plugin.caller import asked_by
from cni_plugin.frame import OtherVersion, Request, Response, encode_response, read_request
from libtortie.errors import InvalidInput, Malformed, Unavailable, first_line
from libtortie.jsonlog import Log

LIMIT = 64
BACKLOG = 512
REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 10.0
STOP_SECONDS = 15.0
DYING_SECONDS = 10.0
"""How long the lock of a dead agent may be held by a child of it that has yet to begin its own
program: until then it has all of its parent's files open."""
_POLL = 0.01
_UCRED = struct.Struct("3i")


def take_lock(path: Path, *, patience: float = DYING_SECONDS) -> IO[str]:
    """The one-agent-per-node lock, held while the file is open. Raises `InvalidInput`.

    A lock whose holder is alive is refused at once, a dead one's after `patience` seconds.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    end = time.monotonic() + patience
    file = path.open("a+", encoding="ascii", errors="replace")
    while not _try_lock(file):
        file.seek(0)
        holder = file.read().strip() or "unknown"
        alive = holder.isdecimal() and Path("/proc", holder).exists()
        if alive or time.monotonic() >= end:
            file.close()
            raise InvalidInput(f"another agent (pid {holder}) holds {path}")
        time.sleep(_POLL)
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Serve = Callable[[Request], Response]
PassOn = Callable[[socket.socket, Callable[[], None]], bool]


def _to_nobody(client: socket.socket, returned: Callable[[], None]) -> bool:
    """There are no workers."""
    return False


class CNIServer:
    """`serve` answers one request and never raises; `allowed` are the uids that may ask.

    `spawn(name, body)` runs a body on a thread of its own and sees to its failure. `pass_on` is
    offered what comes while this serves another: whoever takes a connection says when it is done.
    """

    def __init__(
        self,
        path: Path,
        serve: Serve,
        spawn: Callable[[str, Callable[[], None]], threading.Thread],
        log: Log,
        *,
        pass_on: PassOn = _to_nobody,
        allowed: frozenset[int] = frozenset({0}),
    ) -> None:
        self._path = path
        self._serve = serve
        self._spawn = spawn
        self._log = log
        self._allowed = allowed
        self._pass_on = pass_on
        self._slots = threading.Semaphore(LIMIT)
        self._stopping = threading.Event()
        self._running: set[threading.Thread] = set()
        self._away = 0
        """Requests that were passed on and have not come back."""
        self._returned = threading.Condition()
        self._accepting = threading.Lock()
        self._listener: socket.socket | None = None
        self._inode = (0, 0)

    def open(self) -> None:
        """Listen. Raises OSError."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o600)  # nobody can connect before `listen`
            self._inode = _inode(self._path)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener

    def lost(self) -> str:
        """Why no request comes here although this serves; empty if they do, or may not."""
        if self._stopping.is_set() or _inode(self._path) == self._inode:
            return ""
        return f"{self._path} was removed or replaced"

    def run(self) -> None:
        """The accepting thread's body, until `stop`."""
        listener = self._listener
        if listener is None:
            raise RuntimeError("run before open")
        with self._accepting:
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            self._slots.acquire()
            try:
                client, _ = listener.accept()
            except OSError:
                self._slots.release()
                if self._stopping.is_set():
                    return
                time.sleep(0.05)  # out of descriptors: others give some back
                continue
            self._start(client)

    def stop(self, deadline: float = STOP_SECONDS) -> bool:
        """Take no more requests, wait for running ones; False when some outlast the deadline.

        What was accepted before is running, even if its thread has not begun yet.
        """
        end = time.monotonic() + deadline
        self._stopping.set()
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._listener.shutdown(socket.SHUT_RDWR)
        self._slots.release()
        if not self._accepting.acquire(timeout=deadline):
            return False
        self._accepting.release()
        if self._listener is not None:
            self._listener.close()
        for thread in tuple(self._running):
            thread.join(max(0.0, end - time.monotonic()))
        with self._returned:
            back = self._returned.wait_for(lambda: not self._away, end - time.monotonic())
        return back and not any(thread.is_alive() for thread in tuple(self._running))

    def _start(self, client: socket.socket) -> None:
        def body() -> None:
            try:
                with client:
                    serve_one(client, self._serve, self._log)
            finally:
                self._slots.release()

        uid = _peer_uid(client)
        if uid not in self._allowed:
            self._log.warning("cni_refused", uid=uid)
            client.close()
            self._slots.release()
            return
        self._running = {one for one in self._running if one.is_alive()}
        if not (self._running and self._is_passed_on(client)):
            self._running.add(self._spawn("cni-request", body))

    def _is_passed_on(self, client: socket.socket) -> bool:
        """Give a request away, if somebody takes it."""
        with self._returned:
            self._away += 1
        taken = self._pass_on(client, self._came_back)
        if taken:
            client.close()
        else:
            with self._returned:
                self._away -= 1
        return taken

    def _came_back(self) -> None:
        with self._returned:
            self._away -= 1
            self._returned.notify_all()
        self._slots.release()


def serve_one(client: socket.socket, serve: Serve, log: Log) -> None:
    """Read a request, have it served, and answer it."""
    try:
        client.settimeout(REQUEST_SECONDS)
        request = read_request(client)
    except OtherVersion as error:
        log.warning("cni_other_version", reason=first_line(error))
        _send(client, error.answer, log)
        return
    except (Malformed, Unavailable) as error:
        log.warning("cni_unreadable", reason=first_line(error))
        return
    with asked_by(partial(_waits, client)):
        answer = serve(request)
    _send(client, encode_response(answer.code, answer.stdout), log)


def _send(client: socket.socket, frame: bytes, log: Log) -> None:
    try:
        client.settimeout(ANSWER_SECONDS)
        client.sendall(frame)
    except OSError as error:
        log.warning("cni_caller_gone", reason=error)


def _inode(path: Path) -> tuple[int, int]:
    """Which file a path names; zeros for none."""
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _waits(client: socket.socket) -> bool:
    """Whether the other end is open, at least for what we send."""
    poll = select.poll()
    poll.register(client, 0)
    return not poll.poll(0)


def _peer_uid(client: socket.socket) -> int:
    """The uid of the process at the other end, as the kernel recorded it at connect."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(raw)
    return int(uid)
