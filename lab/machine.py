"""Where numbers come from: the machine, the versions of what ran on it, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.cluster import tool
from libtortie import __version__


def machine() -> dict[str, Any]:
    """The machine's part of a report."""
    return {
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """What took part; a program that cannot be asked is `not found`."""
    return {
        "tortie": __version__,
        "commit": commit() or "no git",
        "bird": first_line(["bird", "--version"]),
        "nft": first_line(["nft", "--version"]),
        "iproute2": first_line(["ip", "-V"]),
        "kubectl": first_line([str(tool("kubectl")), "version", "--client"]),
    }


def first_line(argv: Sequence[str]) -> str:
    """What a program says first, on either stream."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "not found"
    return next(iter((done.stdout or done.stderr).splitlines()), "")


def commit() -> str:
    """The commit that runs, `+` for one with changes on top; empty outside of git."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    return head + ("+" if head and git("status", "--porcelain", "-uno") else "")
