"""`make bench-gc`: the commands that look at all of IPAM, on a large cluster in a real etcd.

Each command is a process of its own; a small API server lists the pods. What the kernel counts for
the process is its memory and CPU time. Beside `ipam show` and `ipam check` stands the real
calicoctl where `make peer` built it. Exit status 1 when a row is not met.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from lab.results import BenchRow, at_most, write
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from tests.bench import ipam_cluster
from tests.fakes.etcd_server import etcd_members

PEER = Path("build/peer/calicoctl")
BIN = Path(sys.executable).parent
MOST_MIB = 1024.0
SIZE = f"{ipam_cluster.NODES} nodes, {ipam_cluster.NODES * ipam_cluster.PER_NODE} allocations"


@dataclass(frozen=True, slots=True)
class Used:
    """What one command took; `last` is its last line."""

    seconds: float
    processor_s: float
    peak_mib: float
    last: str


@dataclass(frozen=True, slots=True)
class Job:
    """A command of ours, calicoctl's arguments for the same, and the most seconds it may take."""

    name: str
    command: Sequence[str]
    peer: Sequence[str]
    most_seconds: float


def jobs(config: Path) -> tuple[Job, ...]:
    """What is measured."""
    ctl, controllers = str(BIN / "tortiectl"), str(BIN / "tortie-controllers")
    return (
        Job("tortiectl ipam show", (ctl, "ipam", "show", "-c", str(config)), ("ipam", "show"), 10),
        Job(
            "tortiectl ipam check",
            (ctl, "ipam", "check", "-c", str(config)),
            ("ipam", "check"),
            60,
        ),
        Job(
            "tortie-controllers gc, one pass",
            (controllers, "gc", "-c", str(config), "--once", "--dry-run", "-o", "json"),
            (),
            60,
        ),
    )


def run(command: Sequence[str], environ: dict[str, str]) -> Used:
    """Run a command to its end. Raises `ClickException` when it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        last = line.strip() or last
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {process.returncode}: {last}")
    cpu = used.ru_utime + used.ru_stime
    return Used(took, cpu, used.ru_maxrss / 1024, last[:200])


def rows_of(job: Job, ours: Used, peer: Used | None) -> list[BenchRow]:
    """Time and memory of one command."""
    what = f"{SIZE}: {job.name}"
    seconds, mib = (peer.seconds, peer.peak_mib) if peer else (None, None)
    return [
        at_most(what, ours.seconds, seconds, "s", job.most_seconds),
        at_most(f"{what}: memory", ours.peak_mib, mib, "MiB", MOST_MIB),
    ]


@contextmanager
def api() -> Iterator[str]:
    """The URL of an API server with the cluster's nodes and pods."""
    command = [sys.executable, "-m", "tests.bench.pods_api"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/gc.json"))
def main(out: Path) -> None:
    """Measure, write the result, and say what was not met."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-gc-") as directory,
        etcd_members(Path(directory), arguments=["--quota-backend-bytes=8589934592"]) as (member,),
        api() as server,
    ):
        with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
            ipam_cluster.prepare(store)
            ipam_cluster.fill(store, endpoints=True)
        click.echo("the store is filled")
        config = Path(directory) / "tortiectl.cfg"
        config.write_text(
            "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata: {}\nspec:\n"
            f"  datastoreType: etcdv3\n  etcdEndpoints: {member.url}\n  k8sAPIEndpoint: {server}\n"
        )
        rows: list[BenchRow] = []
        figures: dict[str, object] = {}
        for job in jobs(config):
            ours = run(job.command, dict(os.environ))
            click.echo(f"{job.name}: {ours}")
            peer = None
            if job.peer and PEER.exists():
                environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url}
                peer = run([str(PEER), *job.peer, "--allow-version-mismatch"], environ)
                click.echo(f"calicoctl {' '.join(job.peer)}: {peer}")
            rows += rows_of(job, ours, peer)
            figures[job.name] = {"ours": asdict(ours), "peer": asdict(peer) if peer else None}
    write(out, rows, figures)
    for row in rows:
        met = "met" if row.met else "NOT met"
        click.echo(f"{row.what}: {row.ours} {row.unit} (target {row.target:g}, {met})")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
