"""What tests of SQLite's file share: other processes, small disks, and a look at its soundness."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_network
from pathlib import Path

from libtortie.datastore.port import Event
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.ipam import Handle
from libtortie.model.keys import Handles

ROOT = Path(__file__).parents[2]
CIDR = ip_network("10.250.0.0/26")
DEADLINE = 90.0


def handle(count: int = 1) -> Handle:
    return Handle({CIDR: count})


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "tests.contract.sqlite_worker", *map(str, args)]


def herd(mode: str, path: Path, processes: int, rounds: int) -> None:
    ran = subprocess.run(
        command(mode, path, processes, rounds),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@contextmanager
def worker(mode: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(mode, path),
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()  # it holds its locks until it is gone


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def check_integrity(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def first_event(store: SqliteDatastore, start: str) -> Event:
    """The first event after `start`; fails, and does not hang, when none comes."""
    watch = store.watch(Handles(), start)
    timer = threading.Timer(DEADLINE, watch.close)
    timer.start()
    try:
        for event in watch:
            return event
        raise AssertionError("no event within the deadline")
    finally:
        timer.cancel()
        watch.close()


@contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)
