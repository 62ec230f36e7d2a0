"""CNI requests of a crowd, served by a process beside the agent: an interpreter's lock of its own.

Thirty requests on threads of one interpreter spend a third of the agent's time on handing its lock
over, and use one core. So the agent forks workers at its very start, while it has one thread: they
share its memory, and its program whatever became of the files by then. The agent accepts every
request itself. One alone it serves itself; those beside it go to a worker, descriptor and all.

A worker is nothing without its agent: it has no listening socket, the kernel kills it when the
agent dies, and the agent when it ends. What it has to tell (lines of the log, what became of calls,
that one rests) goes to the agent, so there is one log and one set of metrics, and whoever listens
to the log hears all of it. A worker that dies costs the calls it has, which their runtime repeats
(code 11), and speed. Nothing else: the agent serves on without it, until its own next start (by
now it has threads, and cannot fork). One that gives no sign for long, asked for it, is ended.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from cni_plugin.calls import Call
from libtortie.jsonlog import Log
from libtortie.linux.process import call_process, die_with, threads
from libtortie.metrics import Counter, Gauge, Metric

MOST_HELD = 32
"""Requests that one worker has at once: one that stands still leaves the agent slots of its own."""
MESSAGE = 128 << 10
"""Bytes of the longest message."""
BEGIN, ASK = b"begin", b"ask"
ASK_SECONDS = 5.0
"""After so much silence of a worker that has requests it is asked for a sign; each report is one.
The thread that takes requests gives it, and never waits for them."""
HUNG_SECONDS = 30.0
"""After so much silence it stands still (a stopped process, a dead mount), and is ended."""
BURY_SECONDS = 1.0
WORKER_NAME = "tortie-worker"

Body = Callable[[socket.socket], None]
"""A worker's life with its channel, until that closes."""


def number_of(wanted: int | None, cores: int) -> int:
    """How many workers: as many as are wanted, else one where there is a core for it. Pure."""
    return min(cores - 1, 1) if wanted is None else wanted


@dataclass(slots=True, eq=False)
class Worker:
    """The agent's end of a worker. `returns`: by number, whom to tell that a request is done with.

    `weight`: how many of its requests count as being at work."""

    pid: int
    channel: socket.socket
    serves: bool = False
    weight: int = 0
    ended: bool = False
    returns: dict[int, Callable[[], None]] = field(default_factory=dict)


def fork_workers(count: int, body: Body) -> tuple[Worker, ...]:
    """Workers that wait for `begin`. None where the process has more than one thread: a fork would
    have what the others hold locked, and the end of this thread, which should be the agent's, is
    what the kernel kills workers for."""
    workers: list[Worker] = []
    if threads() > 1:
        return ()
    agent = os.getpid()
    for _ in range(count):
        gc.freeze()  # a collection would write to all the memory that is shared
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            for other in (ours, *(one.channel for one in workers)):
                other.close()
            _be_worker(agent, theirs, body)
        theirs.close()
        ours.settimeout(ASK_SECONDS)
        workers.append(Worker(pid, ours))
    return tuple(workers)


def _be_worker(agent: int, channel: socket.socket, body: Body) -> NoReturn:
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the agent ends its workers
            signal.signal(number, signal.SIG_IGN)
        if die_with(agent):
            call_process(WORKER_NAME)
            body(channel)
            status = 0
    finally:
        os._exit(status)


def put_down(pid: int) -> None:
    """Kill a child and see it off; one that the kernel does not let go is left to who comes after.

    So is one that is seen off by the kernel, where whoever started us had SIGCHLD ignored."""
    end = time.monotonic() + BURY_SECONDS
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < end:
            time.sleep(0.01)


class Workers:
    """Hands requests over and takes reports. From any thread; `follow` is a thread's body.

    `count` is told how many more requests are at work, or fewer. `bury` ends a process.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        log: Log,
        observe: Callable[[Call, int], None],
        count: Callable[[int], None],
        bury: Callable[[int], None] = put_down,
    ) -> None:
        self._workers = tuple(workers)
        self._log = log
        self._observe = observe
        self._count = count
        self._bury = bury
        self._lock = threading.Lock()
        self._numbers = 0
        self._ending = threading.Event()
        self.passed_on = Counter(
            "tortie_cni_passed_on_total", "CNI calls that the agent had a worker process serve."
        )
        self.serving = Gauge(
            "tortie_cni_workers",
            "Worker processes that serve CNI calls beside the agent.",
            lambda: float(sum(one.serves for one in self._workers)),
        )

    def metrics(self) -> tuple[Metric, ...]:
        """For `/metrics`."""
        return self.passed_on, self.serving

    def begin(self, start: Callable[[str, Callable[[], None], Callable[[], None]], None]) -> None:
        """Have them open what they need; each is handed requests once it has."""
        for worker in self._workers:
            start(f"cni-worker-{worker.pid}", partial(self.follow, worker), self.end)
            with suppress(OSError):  # `follow` tells
                worker.channel.send(BEGIN)

    def take(self, client: socket.socket, returned: Callable[[], None]) -> bool:
        """Hand a connection to the worker with the fewest; False where there is none for it.

        `returned` is called once its request was answered, or will never be.
        """
        with self._lock:
            able = [one for one in self._workers if one.serves and len(one.returns) < MOST_HELD]
            if not able:
                return False
            worker = min(able, key=lambda one: len(one.returns))
            self._numbers += 1
            try:
                socket.send_fds(worker.channel, [b"%d" % self._numbers], [client.fileno()])
            except OSError:  # it is gone: `follow` tells
                return False
            worker.returns[self._numbers] = returned
            self._weigh(worker, 1)
        self.passed_on.add()
        return True

    def follow(self, worker: Worker) -> None:
        """Take a worker's reports until its end."""
        while report := self._report(worker):
            self._told(worker, json.loads(report))
        worker.serves = False
        self._end(worker)
        with self._lock:
            lost, worker.returns = worker.returns, {}
            self._weigh(worker, -worker.weight)
        if not self._ending.is_set():
            self._log.error("cni_worker_lost", pid=worker.pid, requests=len(lost))
        for returned in lost.values():
            returned()

    def _report(self, worker: Worker) -> bytes:
        """The next report; nothing from one that has ended, or had to be."""
        silent = 0.0
        while silent < HUNG_SECONDS:
            try:
                return worker.channel.recv(MESSAGE)
            except TimeoutError:
                silent = silent + ASK_SECONDS if worker.returns else 0.0
            except OSError:
                return b""
            if silent:
                with suppress(OSError):  # of one that stands still it may be full
                    worker.channel.send(ASK, socket.MSG_DONTWAIT)
        self._log.error("cni_worker_hangs", pid=worker.pid, seconds=silent)
        return b""

    def _told(self, worker: Worker, report: dict[str, Any]) -> None:
        match report:
            case {"event": event, "level": level, "fields": fields}:
                getattr(self._log, level)(event, **fields)
            case {"command": command, "code": code, "seconds": seconds, "phases": phases}:
                call = Call(command, lambda: 0.0, phases)
                call.ended = seconds
                self._observe(call, code)
            case {"weight": weight}:
                with self._lock:
                    self._weigh(worker, weight)
            case {"answered": number}:
                with self._lock:
                    returned = worker.returns.pop(number)
                    self._weigh(worker, -1)
                returned()
            case {"serves": True}:
                worker.serves = True
                self._log.info("cni_worker_serves", pid=worker.pid)

    def _weigh(self, worker: Worker, more: int) -> None:
        worker.weight += more
        self._count(more)

    def end(self) -> None:
        """End them, whatever they are at, and bury them. Once more does nothing."""
        self._ending.set()
        for worker in self._workers:
            self._end(worker)

    def _end(self, worker: Worker) -> None:
        """Once only: its pid may be another's then."""
        with self._lock:
            ended, worker.ended = worker.ended, True
        if not ended:
            self._bury(worker.pid)
