"""Keeps this node's agent: a process that has imported all of the agent, forks it, and forks the
next one at once when it dies.

A new process needs a second of the processor before it knows its own code; a VM that arrives just
then is not heard. The keeper has that behind it, and shares the memory with its agents. It has one
thread, no files and no datastore, reads no configuration, and does nothing but wait: so nothing of
it can break, and every agent begins from the same state.

An agent that dies (by a signal, or of a fault of its own: `CRASHED`) is followed. One that ends by
itself is not: it was told to, or found that it may not run here (`REFUSED`); the keeper then ends
with its status, for who supervises the keeper. So does one whose agents die at once again and
again. An agent never outlives its keeper: the kernel kills it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from libtortie.errors import first_line
from libtortie.jsonlog import JsonLog, Log
from libtortie.linux.process import call_process, die_with, threads
from libtortie.metrics import Metric, Readings

REFUSED = 1
"""Exit status of an agent that may not, or cannot, run here as things are."""
CRASHED = 70
"""Exit status of an agent that ended for a fault of its own (`EX_SOFTWARE`)."""
LONG_LIFE = 10.0
"""Seconds. Who died later than that does not die at once."""
PAUSES = (0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds before an agent follows, by how many in a row have died at once; then no more follow."""
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What is passed on to the agent, and ends the keeper with it."""
KEEPER_NAME, AGENT_NAME = "tortie-keeper", "tortie-node"


@dataclass(frozen=True, slots=True)
class Ended:
    """An agent's end: its exit status, below zero the signal that killed it; the seconds that it
    lived; the signals that it was passed; and its pid, 0 where it could not begin."""

    status: int
    lived: float
    passed: frozenset[int] = frozenset()
    pid: int = 0

    @property
    def words(self) -> str:
        """For people."""
        if self.status >= 0:
            return f"status {self.status}"
        names = {int(one): one.name for one in signal.Signals}
        return names.get(-self.status, f"signal {-self.status}")


@dataclass(frozen=True, slots=True)
class Another:
    """One more agent after `pause` seconds; so many in a row have now died at once."""

    pause: float
    quick: int


@dataclass(frozen=True, slots=True)
class Over:
    """The keeper's own end, with this exit status."""

    status: int


def decide(ended: Ended, quick: int) -> Another | Over:
    """What follows an agent's end, when `quick` before it had died at once. Pure."""
    killed = ended.status < 0
    status = 128 - ended.status if killed else ended.status
    if ended.passed:
        return Over(0 if -ended.status in ended.passed else status)
    if not killed and status != CRASHED:
        return Over(status)
    quick = 0 if ended.lived >= LONG_LIFE else quick + 1
    return Another(PAUSES[quick], quick) if quick < len(PAUSES) else Over(status)


@dataclass(frozen=True, slots=True)
class Past:
    """What an agent is told of those before it: how many its keeper has had, and how the last
    one ended."""

    agents: int = 0
    last: str = ""

    def fields(self) -> Mapping[str, object]:
        """For the log; nothing where there was none."""
        return {"after": self.last, "restarts": self.agents} if self.agents else {}

    def metric(self) -> Metric:
        """For `/metrics`."""
        return Readings(
            "tortie_agent_restarts_total",
            "Agents that died and were followed at once by another, since the keeper's start.",
            (),
            lambda: {(): float(self.agents)},
            "counter",
        )


def spare_collector() -> None:
    """Let Python's garbage collector pass over what start-up made, and look less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def keep(log: Log | None = None) -> Past:
    """Become the keeper; returns in each of its agents, and never in itself.

    All that an agent needs should have been imported. Raises `SystemExit`, with the last agent's
    status. Where others have started threads nobody can be kept: returns in this process.
    """
    log = log or JsonLog(sys.stderr)
    if (found := threads()) > 1:
        log.warning("keeper_impossible", threads=found)
        return Past()
    files = program_files()
    code = tuple(map(_stamp, files))
    spare_collector()
    waited = {signal.SIGCHLD, *STOPS} - _ignored()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, nobody's status would be told
    call_process(KEEPER_NAME)
    past, quick = Past(), 0
    while True:
        ended = one_life(mask, waited, log)
        if ended is None:
            return past
        verdict = decide(ended, quick)
        told = {"pid": ended.pid, "how": ended.words, "seconds": round(ended.lived, 1)}
        if isinstance(verdict, Over):
            if not ended.passed and ended.status != REFUSED:  # which the agent itself has told
                log.error("agent_given_up", **told)
            raise SystemExit(verdict.status)
        log.warning("agent_died", **told, pause_seconds=verdict.pause)
        if verdict.pause and signal.sigtimedwait(waited - {signal.SIGCHLD}, verdict.pause):
            raise SystemExit(0)
        if tuple(map(_stamp, files)) != code:
            _begin_anew(mask, log)
        past, quick = Past(past.agents + 1, ended.words), verdict.quick


def one_life(mask: Iterable[int], waited: set[signal.Signals], log: Log) -> Ended | None:
    """Begin an agent and attend to it until its end; None in the agent itself.

    One that cannot begin, because the machine has no process or memory left, is as one that died.
    """
    keeper, began = os.getpid(), time.monotonic()
    try:
        pid = os.fork()
    except OSError as error:
        log.error("agent_not_begun", reason=first_line(error))
        return Ended(CRASHED, 0.0)
    if pid == 0:
        _become_agent(keeper, mask)
        return None
    status, passed = _attend(pid, waited)
    return Ended(status, time.monotonic() - began, passed, pid)


def _ignored() -> set[signal.Signals]:
    """SIGHUP for who was started by nohup(1)."""
    return {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()


def _become_agent(keeper: int, mask: Iterable[int]) -> None:
    """In the new process: die with its keeper, and have the signals that it had once.

    Its process group is its own: what a terminal sends to both would count twice.
    """
    if not die_with(keeper):
        os._exit(CRASHED)
    os.setpgid(0, 0)
    call_process(AGENT_NAME)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _attend(pid: int, waited: set[signal.Signals]) -> tuple[int, frozenset[int]]:
    """Pass on what the agent is told until it has ended: its exit status, and what that was.

    SIGCONT goes along: a stopped agent would not hear the rest.
    """
    passed: set[int] = set()
    while (status := _reap(pid)) is None:
        number = signal.sigwait(waited)
        if number != signal.SIGCHLD:
            passed.add(int(number))
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
    return status, frozenset(passed)


def _reap(pid: int) -> int | None:
    """See off all that have ended, strangers as well: as process 1 we have them. The agent's exit
    status, if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == pid:
            found = os.waitstatus_to_exitcode(status)


def _begin_anew(mask: Iterable[int], log: Log) -> None:
    """An upgrade in place: an agent of the old code would load the rest from the new files."""
    log.warning("keeper_begins_anew", reason="files of the program have changed")
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execv(sys.executable, sys.orig_argv)
    except OSError as error:
        log.error("agent_given_up", how=first_line(error))
        raise SystemExit(CRASHED) from error


def program_files() -> tuple[str, ...]:
    """What this program is made of: interpreter and modules."""
    found = {str(getattr(one, "__file__", None) or "") for one in tuple(sys.modules.values())}
    return (sys.executable, *sorted(found - {""}))


def _stamp(path: str) -> tuple[str, int, int, int]:
    """Which file a path names, and as of when; one that is gone is another."""
    try:
        seen = Path(path).stat()
    except OSError:
        return path, 0, 0, 0
    return path, seen.st_ino, seen.st_mtime_ns, seen.st_size
