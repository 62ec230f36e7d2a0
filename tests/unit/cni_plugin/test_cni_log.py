"""Whatever is where the log shall be: a call of the plugin ends as it would, and answers JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cni_plugin

REPOSITORY = Path(cni_plugin.__file__).parents[1]


def log_path(directory: Path, what: str) -> str:
    """A path with that at it."""
    path = directory / "cni.log"
    match what:
        case "a file":
            path.write_text("")
        case "a missing directory":
            return str(directory / "tortie" / "cni.log")
        case "a file for a directory":
            path.write_text("")
            return str(path / "cni.log")
        case "a directory":
            path.mkdir()
        case "a link to nowhere":
            path.symlink_to("/proc/nowhere/log")
        case "a link to itself":
            path.symlink_to(path)
        case "a pipe without a reader":
            os.mkfifo(path)
        case "a full disk":
            return "/dev/full"
        case "a read-only file system":
            return "/proc/sys/cni.log"
        case "a name that is too long":
            return str(directory / ("x" * 300))
    return str(path)


@pytest.mark.parametrize(
    ("what", "kept"),
    [
        ("a file", True),
        ("nothing", True),
        ("a missing directory", True),
        ("a file for a directory", False),
        ("a directory", False),
        ("a link to nowhere", False),
        ("a link to itself", False),
        ("a pipe without a reader", False),
        ("a full disk", False),
        ("a read-only file system", False),
        ("a name that is too long", False),
    ],
)
def test_what_the_log_is_changes_no_answer(what: str, kept: bool, tmp_path: Path) -> None:
    path = log_path(tmp_path, what)
    conf = {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "tortie",
        "nodename": "n1",
        "sqlite_path": str(tmp_path / "none" / "tortie.db"),
        "agent_socket": str(tmp_path / "run" / "cni.sock"),
        "log_file_path": path,
    }
    done = subprocess.run(
        [sys.executable, "-m", "cni_plugin.wiring"],
        input=json.dumps(conf).encode(),
        env={
            "PYTHONPATH": str(REPOSITORY),
            "CNI_COMMAND": "STATUS",
            "CNI_PATH": "/opt/cni/bin",
        },
        capture_output=True,
        check=False,
        timeout=180,
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["code"]) == (1, 50), answer
    assert b"Traceback" not in done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["event"] == "cni_error"
    if kept:
        assert json.loads(Path(path).read_text().splitlines()[-1])["code"] == 50
