"""`make bench-policy` on a small cluster: whole, and leaving nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_bench_gc import of_it

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[2]


def bench(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "tmp").mkdir()
    small = ["--policies=20", "--endpoints=40", "--count=2", f"--out={tmp_path}/policy.json"]
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.bench.policy", *small],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
    )


def namespace_of(line: str) -> Path:
    assert line.startswith("the store of "), line
    return Path("/run/netns") / line.split()[3]


def test_every_row_is_there_and_nothing_is_left(tmp_path: Path) -> None:
    process = bench(tmp_path)
    said, _ = process.communicate()
    document = json.loads((tmp_path / "policy.json").read_text())
    assert [row["target"] for row in document["rows"]] == [20, 60, 10, 2, 10, 20, 400]
    assert len([row for row in document["rows"] if row["peer"] is not None]) == 4
    met = all(row["met"] for row in document["rows"])
    assert process.returncode == (0 if met else 1), said
    runs = document["runs"]
    assert set(runs["label"]["elements"]) == {2}, "one comes, one goes"
    assert set(runs["added"]["elements"]) == {2}, "in the set of all, and in one other"
    assert len({*runs["endpoint"]["elements"]}) == 1
    assert of_it(process, tmp_path) == []
    assert not namespace_of(said).exists()


def test_stopped_in_the_middle_it_leaves_nothing(tmp_path: Path) -> None:
    process = bench(tmp_path)
    assert process.stdout is not None
    namespace = namespace_of(process.stdout.readline())
    assert namespace.exists()
    assert of_it(process, tmp_path) != []
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "policy.json").exists()
    assert of_it(process, tmp_path) == []
    assert not namespace.exists()
