"""The lab's processes: started inside its namespaces, found again without having been told.

A process is the lab's if its network namespace is one of `tlab-*`, or if the lab recorded its pid
*and* start time (a pid alone may meanwhile be somebody else's). Nothing else is ever signalled.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab import names
from lab.tools import LabError

PROC = Path("/proc")
KILL_DEADLINE_S = 60.0
_NUMBER = re.compile("[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process the lab started. `start_time` is in clock ticks since boot."""

    pid: int
    start_time: int
    name: str


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    record = parse_stat(text)
    return record.start_time if record is not None else None


def parse_stat(text: str) -> Recorded | None:
    """A process by the text of its /proc/PID/stat; None for a dead one's, or half a text."""
    # The command in brackets may hold anything; the fields after it are fixed (proc(5)).
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return Recorded(int(pid), int(fields[19]), name)


def children(pid: int) -> tuple[Recorded, ...]:
    """Whose parent a process is; none where it has ended."""
    try:
        pids = (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
        texts = [(PROC / one / "stat").read_text() for one in pids]
    except OSError:
        return ()
    return tuple(one for one in map(parse_stat, texts) if one is not None)


class Ledger:
    """The file that names every process started, one per line: pid, start time, name."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, pid: int, name: str) -> None:
        """Record a process that was just started."""
        began = start_time(pid)
        if began is not None:
            with self._path.open("a") as file:
                file.write(f"{pid} {began} {name}\n")

    def alive(self) -> tuple[Recorded, ...]:
        """Recorded processes that still are what they were."""
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ()
        return tuple(one for one in map(parse_record, lines) if one and is_same(one))


def parse_record(line: str) -> Recorded | None:
    """A line of the ledger; None for one that was cut short by a kill."""
    parts = line.split(" ", 2)
    if len(parts) != 3 or not all(_NUMBER.fullmatch(one) for one in parts[:2]):
        return None
    return Recorded(int(parts[0]), int(parts[1]), parts[2])


def is_same(record: Recorded) -> bool:
    """Whether the pid still belongs to the process that was recorded."""
    return start_time(record.pid) == record.start_time


def spawn(
    ledger: Ledger,
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a background process in its own session, output to a log file, and record it."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
            env=None if env is None else dict(env),
        )
    ledger.add(child.pid, name)
    return child


def preferred(nice: int) -> str:
    """What a shell does to go before others, where the machine lets it; what it executes then does.

    Where the kernel makes a group of each session (sched(7), autogroup), niceness counts within
    one, and the group's own between them.
    """
    return f'{{ echo {nice} >"/proc/$$/autogroup"; renice -n {nice} $$; }} >/dev/null 2>&1\n'


def preferring(nice: int, command: Sequence[str]) -> list[str]:
    """A command that goes before others."""
    return ["sh", "-c", f'{preferred(nice)}exec "$@"', "sh", *command]


def in_namespaces(inodes: frozenset[int]) -> tuple[int, ...]:
    """Processes (not this one, no zombies) whose network namespace is one of these."""
    own = os.getpid()
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with suppress(OSError):
            if (entry / "ns" / "net").stat().st_ino in inodes:
                found.append(int(entry.name))
    return tuple(found)


def lab_namespaces() -> tuple[str, ...]:
    """Names of all `tlab-*` namespaces on this machine."""
    if not names.NETNS_DIR.is_dir():
        return ()
    return tuple(
        sorted(p.name for p in names.NETNS_DIR.iterdir() if p.name.startswith(names.PREFIX))
    )


def namespace_inodes(namespaces: Iterable[str]) -> frozenset[int]:
    """Identities of namespaces; a handle that holds none (a failed `ip netns add`) is skipped."""
    host = Path("/proc/self/ns/net").stat().st_ino
    inodes = set()
    for name in namespaces:
        with suppress(OSError):
            inodes.add(names.netns_path(name).stat().st_ino)
    return frozenset(inodes - {host})


def kill_all(ledger: Ledger) -> tuple[int, ...]:
    """SIGKILL every process of the lab until none is left; returns those killed.

    Again and again, because a process may have been starting another one. Raises `LabError`
    when some outlive the deadline.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_DEADLINE_S
    own = os.getpid()
    while True:
        # Namespaces are listed anew each round: a daemon may have made one more while dying.
        found = set(in_namespaces(namespace_inodes(lab_namespaces())))
        found |= {one.pid for one in ledger.alive() if one.pid != own}
        if not found:
            return tuple(sorted(killed))
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(found)} do not die")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        time.sleep(0.02)
