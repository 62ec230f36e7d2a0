"""`make bench-cli` on a small cluster: every row is there, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.bench_remains import processes_of

ROOT = Path(__file__).parents[2]


def test_each_command_has_its_rows_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    small = ["--nodes=2", "--listed-nodes=1", "--starts=1", f"--out={tmp_path}/cli.json"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.bench.cli", *small],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
    )
    said, _ = process.communicate()
    document = json.loads((tmp_path / "cli.json").read_text())
    assert [(row["what"].split(": ")[-1], row["target"]) for row in document["rows"]] == [
        ("tortiectl --help", 150),
        ("tortiectl version --client", 150),
        ("tortiectl get wep -A -o json", 20),
        ("memory", 256),
        ("tortiectl ipam show", 10),
        ("memory", 1024),
        ("tortiectl ipam check", 60),
        ("memory", 1024),
    ]
    met = all(row["met"] for row in document["rows"])
    assert process.returncode == (0 if met else 1), said
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(process.pid, str(tmp_path / "tmp")) == []
