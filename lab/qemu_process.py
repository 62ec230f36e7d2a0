"""QEMU processes of the lab: started in a launcher pod, found again by the file each has written.

A pod holds nothing but its QEMU: whatever runs in its namespace is what an earlier try has left.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab import names
from lab.processes import (
    KILL_DEADLINE_S,
    Ledger,
    Recorded,
    in_namespaces,
    is_same,
    namespace_inodes,
    parse_stat,
    preferred,
    spawn,
)
from lab.qemu import Machine, command_line
from lab.qemu_control import Control
from lab.tools import LabError

PID = "pid"
NICE = -10
"""A guest that waits for the lab's processor would look like a network that lost it. More would be
too much: with SCHED_FIFO its threads keep the agent from the route, or each other from the guest.
"""
_BECOMING = f'{preferred(NICE)}cat "/proc/$$/stat" >"$0.new" && mv "$0.new" "$0" && exec "$@"'
"""The shell that becomes QEMU: it has written down who it is, before it is QEMU."""


def launch(
    ledger: Ledger,
    name: str,
    directory: Path,
    machine: Machine,
    within: Sequence[str] = (),
    *,
    incoming: bool,
) -> None:
    """Start QEMU and wait until it can be talked to; `within` is put before its command.

    Raises `LabError`.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    qemu = command_line(directory, machine, incoming=incoming)
    command = ["sh", "-c", _BECOMING, str(directory / PID), *qemu]
    child = spawn(ledger, name, [*within, *command], log=directory / "qemu.log")
    Control(directory, lambda: child.poll() is None).close()


def running(directory: Path) -> Recorded | None:
    """The QEMU whose directory it is, while it runs."""
    try:
        record = parse_stat((directory / PID).read_text())
    except FileNotFoundError:
        return None
    return record if record is not None and is_same(record) else None


def attach(directory: Path, *, look_s: float) -> Control | None:
    """Talk to a QEMU; None when it has ended. Raises `LabError` when it does not answer."""
    if running(directory) is None:
        return None
    try:
        return Control(directory, lambda: running(directory) is not None, look_s=look_s)
    except LabError:
        if running(directory) is None:
            return None
        raise


def end(directory: Path) -> None:
    """Kill a QEMU and wait until it is gone. Raises `LabError`."""
    deadline = time.monotonic() + KILL_DEADLINE_S
    while (record := running(directory)) is not None:
        if time.monotonic() > deadline:
            raise LabError(f"QEMU of {directory} (pid {record.pid}) does not die")
        with suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)
        time.sleep(0.005)


def end_within(netns: str) -> None:
    """Kill what runs in a pod."""
    inodes = namespace_inodes((netns,)) if names.netns_path(netns).exists() else frozenset()
    while inodes and (found := in_namespaces(inodes)):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def clear(directory: Path) -> None:
    """End a QEMU and remove its files. Raises `LabError`."""
    end(directory)
    shutil.rmtree(directory, ignore_errors=True)
