"""`make bench-proxy` with few bytes: whole, and leaving nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.bench_remains import processes_of

ROOT = Path(__file__).parents[2]
ROWS = (
    "plain, 1 stream; socat",
    "plain, 1 stream; raw TCP of iperf3",
    "TLS, 1 stream; haproxy",
    "TLS, 8 streams; haproxy",
    "memory of a daemon over idle while 64 streams flow, TLS",
    "memory of a daemon over idle while 64 streams flow, plain",
    "20 short sessions: descriptors left",
    "20 short sessions: threads left",
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose sockets' paths are short enough."""
    with tempfile.TemporaryDirectory(prefix="tp-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def bench(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The benchmark, which ends when its test fails."""
    (directory / "t").mkdir()
    small = ("--mib=4", "--rounds=1", "--sessions=20", f"--out={directory}/proxy.json")
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.bench.proxy", *small],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(directory / "t")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def left(process: subprocess.Popen[str], directory: Path) -> list[str]:
    """Files, namespaces, and processes that know its directory, live in them or are its own."""
    found = [str(path) for path in (directory / "t").iterdir()]
    found += [each.name for each in Path("/run/netns").glob(f"tt{process.pid}-*")]
    return found + processes_of(process.pid, str(directory / "t"), f"tt{process.pid}-")


def test_each_row_is_there_and_nothing_is_left(directory: Path) -> None:
    with bench(directory) as process:
        told, _ = process.communicate()
    document = json.loads((directory / "proxy.json").read_text())
    rows = document["rows"]
    assert len(rows) == len(ROWS)
    for row, what in zip(rows, ROWS, strict=True):
        assert row["what"].startswith(what)
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows[:4])
    assert process.returncode == (0 if all(row["met"] for row in rows) else 1), told
    assert left(process, directory) == []


def test_stopped_in_the_middle_it_leaves_nothing(directory: Path) -> None:
    with bench(directory) as process:
        assert process.stdout is not None
        assert any(line.startswith("haproxy") for line in iter(process.stdout.readline, ""))
        assert left(process, directory) != []
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not (directory / "proxy.json").exists()
    assert left(process, directory) == []
