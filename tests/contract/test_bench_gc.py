"""`make bench-gc` on a small cluster: whole, and leaving nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.fakes.bench_remains import processes_of

ROOT = Path(__file__).parents[2]


def bench(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.bench.gc", "--nodes=2", f"--out={tmp_path}/gc.json"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
    )


def of_it(process: subprocess.Popen[str], tmp_path: Path) -> list[str]:
    """What is left: files, and processes that know its directory or are its children."""
    files = [str(path) for path in (tmp_path / "tmp").iterdir()]
    return files + processes_of(process.pid, str(tmp_path / "tmp"))


def test_each_command_has_its_rows_and_nothing_is_left(tmp_path: Path) -> None:
    process = bench(tmp_path)
    said, _ = process.communicate()
    document = json.loads((tmp_path / "gc.json").read_text())
    assert len(document["rows"]) == 8
    assert {row["target"] for row in document["rows"]} == {10, 60, 1024}
    met = all(row["met"] for row in document["rows"])
    assert process.returncode == (0 if met else 1), said
    assert of_it(process, tmp_path) == []


def test_stopped_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    process = bench(tmp_path)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any("the store is filled" in line for line in lines)
    assert of_it(process, tmp_path) != []
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "gc.json").exists()
    assert of_it(process, tmp_path) == []
