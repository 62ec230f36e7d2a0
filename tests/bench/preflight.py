"""`make bench-preflight`: `tortiectl vm preflight --all` on a large cluster of VMs.

The command is a process of its own, and so is the API server, which is the lab's. Both share the
machine, so what the server takes counts, too. Exit status 1 when a row is not met.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from lab.apiserver import kubeconfig
from lab.results import BenchRow, at_most, conclude
from tests.bench.gc_run import Used, run, term_held

VMS, NODES = 5000, 500
MOST_SECONDS, MOST_MIB = 10.0, 1024.0
BIN = Path(sys.executable).parent


@contextmanager
def api(vms: int, nodes: int) -> Iterator[str]:
    """The URL of an API server with the cluster."""
    command = [sys.executable, "-m", "tests.bench.vm_api", str(vms), str(nodes)]
    with term_held():
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def rows_of(what: str, used: Used) -> list[BenchRow]:
    """Time and memory."""
    return [
        at_most(what, used.seconds, None, "s", MOST_SECONDS),
        at_most(f"{what}: memory", used.peak_mib, None, "MiB", MOST_MIB),
    ]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/preflight.json"))
@click.option("--vms", default=VMS, show_default=True)
@click.option("--nodes", default=NODES, show_default=True)
@click.option("--runs", default=3, show_default=True)
def main(out: Path, vms: int, nodes: int, runs: int) -> None:
    """Measure; the slowest run counts."""
    with tempfile.TemporaryDirectory() as directory, api(vms, nodes) as url:
        click.echo(f"the server is filled: {url}")
        config = Path(directory) / "kubeconfig"
        kubeconfig.write(config, kubeconfig.render(url, {}, None))
        environ = {
            **os.environ,
            "KUBECONFIG": str(config),
            "DATASTORE_TYPE": "kubernetes",
            "CALICO_API_GROUP": "projectcalico.org/v3",
        }
        command = [str(BIN / "tortiectl"), "vm", "preflight", "--all"]
        says = f"{vms} VMs judged: 0 blocked, 0 would lose connections, 0 at risk; 0 findings"
        measured = []
        for _ in range(runs):
            used = run(command, environ, says=says, most_seconds=10 * MOST_SECONDS)
            click.echo(f"vm preflight --all: {used}")
            measured.append(used)
    what = f"vm preflight --all, {vms} VMs on {nodes} nodes"
    worst = max(measured, key=lambda one: one.seconds)
    figures = {"runs": [asdict(one) for one in measured]}
    if not conclude(out, rows_of(what, worst), figures, click.echo):
        sys.exit(1)


if __name__ == "__main__":
    main()
