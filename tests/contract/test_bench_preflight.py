"""`make bench-preflight` on a small cluster: whole, and leaving nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.bench_remains import processes_of

ROOT = Path(__file__).parents[2]


def test_it_has_its_rows_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    out = tmp_path / "preflight.json"
    sizes = ["--vms=20", "--nodes=3", "--runs=1"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.bench.preflight", *sizes, f"--out={out}"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate()
    document = json.loads(out.read_text())
    assert [row["target"] for row in document["rows"]] == [10, 1024]
    assert document["rows"][0]["what"] == "vm preflight --all, 20 VMs on 3 nodes"
    met = all(row["met"] for row in document["rows"])
    assert process.returncode == (0 if met else 1), said
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(process.pid, str(tmp_path / "tmp")) == []
