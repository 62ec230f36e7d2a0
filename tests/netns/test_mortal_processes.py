"""Hosts, proxies and guests of a run that is killed: nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.processes import start_time
from lab.tools import run
from tests.fakes.migration_proxies import until

pytestmark = pytest.mark.root

RUN = """
import os, sys
from pathlib import Path
from lab.qemu import Guest, Machine
from tests.fakes.libvirt_hosts import Libvirt
from tests.fakes.proxied_hosts import hosts
with hosts() as both:
    both.source.start()
    guest = Guest(Path(sys.argv[1]), Machine(), incoming=True, within=both.target.within)
    libvirt = Libvirt(both.source, Machine(), both.directory, ".")
    libvirt.ready()
    libvirt.disk.touch()
    libvirt.boot()
    print("there", flush=True)
    sys.stdin.read()
"""


def children(pid: int) -> list[int]:
    """Whose parent a process is."""
    return [int(one) for one in run(["pgrep", "-P", str(pid)]).split()]


def namespaces(pids: list[int]) -> set[Path]:
    """Their network namespaces, less our own."""
    found = {Path(f"/proc/{pid}/ns/net").readlink() for pid in pids}
    return found - {Path("/proc/self/ns/net").readlink()}


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "guest")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"there\n"
    pids = children(killed.pid)
    began = {pid: start_time(pid) for pid in pids}
    spaces = namespaces(pids)
    assert len(pids) == 5  # two namespaces' holders, a proxy, a guest, and libvirt with its own
    assert len(spaces) == 2
    killed.kill()
    killed.communicate()
    until(lambda: not any(start_time(pid) == began[pid] for pid in pids))
    until(lambda: not spaces & everybodys())


def everybodys() -> set[Path]:
    """The network namespaces of all processes there are."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(entry.readlink())
        except OSError:
            continue  # it has just ended
    return found
