"""Keeps this node's migration proxy running, for who asked for it by `--migration-proxy`.

The proxy is a process of its own: streams survive a failed or killed agent, and the next one adopts
what it finds at the control socket. An agent that is told to stop stops the proxy first, and serves
on while that drains: the migrations that run then need it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from libtortie.control_client import ask
from libtortie.errors import Malformed, TortieError, first_line
from libtortie.jsonlog import Log

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two starts: the pause doubles while the proxy ends soon after its start."""
LONG_LIFE = 60.0
LOOK_SECONDS = 0.2
"""Between two looks for a second signal."""
CLOSING_SECONDS = 60.0
"""What the proxy may take beyond its `drain_seconds`."""


def proxy_command(config: str, control_socket: Path, node: str) -> list[str]:
    """The proxy as the agent starts it; the control socket is where the agent looks for it."""
    module = [sys.executable, "-m", "migration_proxy.daemon"]
    return [*module, "--config", config, "--control-socket", str(control_socket), "--node", node]


@dataclass(slots=True)
class _Running:
    """A proxy that was started or found; the descriptor is its pidfd, and outlives the pid."""

    pid: int
    pidfd: int
    child: subprocess.Popen[bytes] | None
    since: float


@dataclass(slots=True)
class ProxyKeeper:
    """`run` is a thread's body; `stop` may be called from any, and again.

    `failed` says whether the agent ends for a failure of its own: then the proxy stays. `hurry`,
    whether it was told to stop a second time: then the proxy drains by itself, and ends or is
    adopted by the next agent meanwhile.
    """

    command: Sequence[str]
    control_socket: Path
    log: Log
    failed: Callable[[], bool]
    hurry: Callable[[], bool] = bool
    _stopping: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: _Running | None = None
    _wake: tuple[int, int] = field(default_factory=lambda: os.pipe2(os.O_CLOEXEC))

    def run(self) -> None:
        """Start it, and again whenever it has ended, until `stop`."""
        pause = SHORTEST_PAUSE
        while True:
            with self._lock:
                if self._stopping.is_set():
                    return
                running = self._running = self._adopt() or self._start()
            if running is not None:
                if not _ended(running, None, self._wake[0]):
                    return  # `stop` sees to it
                with self._lock:
                    if self._running is not running:
                        return
                    self._running = None
                lived = time.monotonic() - running.since
                self._note_end(running, lived)
                pause = SHORTEST_PAUSE if lived > LONG_LIFE else min(2 * pause, LONGEST_PAUSE)
            if self._stopping.wait(pause):
                return

    def stop(self) -> None:
        """End the proxy by way of its drain, or leave it to the next agent if this one failed."""
        with self._lock:
            self._stopping.set()
            running, self._running = self._running, None
        os.write(self._wake[1], b"x")
        if running is None:
            return
        if self.failed():
            self.log.warning("migration_proxy_left", pid=running.pid)
            return
        patience = self._patience()
        self.log.info("migration_proxy_stopping", pid=running.pid, seconds=patience)
        _signal(running, signal.SIGTERM)
        if not self._drained(running, patience):
            if self.hurry():
                os.close(running.pidfd)
                self.log.warning("migration_proxy_left", pid=running.pid)
                return
            self.log.error("migration_proxy_killed", pid=running.pid, seconds=patience)
            _signal(running, signal.SIGKILL)
            _ended(running, None, None)
        self._note_end(running, time.monotonic() - running.since)

    def _drained(self, running: _Running, patience: float) -> bool:
        """Wait for its end; False when it took too long, or nobody is to wait any more."""
        end = time.monotonic() + patience
        while (left := end - time.monotonic()) > 0 and not self.hurry():
            if _ended(running, min(left, LOOK_SECONDS), None):
                return True
        return _ended(running, 0, None)

    def _adopt(self) -> _Running | None:
        """A proxy that an earlier agent left."""
        try:
            pid = int(self._number("pid"))
            pidfd = os.pidfd_open(pid)
        except (TortieError, OSError, OverflowError):
            return None
        self.log.info("migration_proxy_adopted", pid=pid)
        return _Running(pid, pidfd, None, time.monotonic())

    def _start(self) -> _Running | None:
        try:
            child = subprocess.Popen(
                list(self.command), stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
            )
        except OSError as error:
            self.log.error("migration_proxy_not_started", reason=first_line(error))
            return None
        _without_urgency(child.pid)
        try:
            pidfd = os.pidfd_open(child.pid)
        except OSError as error:  # no more descriptors: nobody could end it, or see its end
            child.kill()
            child.wait()
            self.log.error("migration_proxy_not_started", reason=first_line(error))
            return None
        self.log.info("migration_proxy_started", pid=child.pid)
        return _Running(child.pid, pidfd, child, time.monotonic())

    def _patience(self) -> float:
        """Seconds until it must have ended; fewer when it does not answer how long it drains."""
        try:
            return self._number("drain_seconds") + CLOSING_SECONDS
        except TortieError as error:
            self.log.warning("migration_proxy_silent", reason=first_line(error))
            return CLOSING_SECONDS

    def _number(self, name: str) -> float:
        """A number of the proxy's status. Raises `TortieError`, also for what is no such answer."""
        found = ask(str(self.control_socket), {"do": "status"}).get(name)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise Malformed(f"{self.control_socket}: {name} is {found!r}: not a migration proxy's")
        return found

    def _note_end(self, running: _Running, lived: float) -> None:
        """Reap it, and say that it is over."""
        os.close(running.pidfd)
        status = running.child.wait() if running.child is not None else None
        tell = self.log.info if self._stopping.is_set() else self.log.error
        tell("migration_proxy_ended", pid=running.pid, status=status, seconds=round(lived, 1))


def _ended(running: _Running, seconds: float | None, wake: int | None) -> bool:
    """Wait for its end; False when `seconds` are over, or `wake` becomes readable, before."""
    poll = select.poll()
    poll.register(running.pidfd, select.POLLIN)
    if wake is not None:
        poll.register(wake, select.POLLIN)
    found = dict(poll.poll(None if seconds is None else seconds * 1000))
    return running.pidfd in found


def _signal(running: _Running, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(running.pidfd, number)


def _without_urgency(pid: int) -> None:
    """What the proxy carries does not go before the guests, as the agent's own work does."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, max(0, os.getpriority(os.PRIO_PROCESS, pid)))
