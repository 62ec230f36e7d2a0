"""`make bench-gc`: the commands that look at all of IPAM, on a large cluster in a real etcd.

Each command is a process of its own; a small API server lists the pods. What the kernel counts for
the process is its memory and CPU time; what it says must be right. Beside `ipam show` and `ipam
check` stands the real calicoctl where `make peer` built it. Exit status 1 when a row is not met;
nothing is left behind, also when it is stopped. It takes 4 to 8 minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import click

from lab.results import BenchRow, at_most, conclude
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from tests.bench import ipam_cluster
from tests.bench.gc_run import Failed, Used, run, term_held
from tests.fakes.etcd_server import EtcdMember, etcd_members

PEER = Path("build/peer/calicoctl")
BIN = Path(sys.executable).parent
MOST_MIB = 1024.0
QUOTA = ["--quota-backend-bytes=8589934592"]


@dataclass(frozen=True, slots=True)
class Job:
    """A command of ours, what it must say, the most seconds it may take, and calicoctl's arguments
    for the same."""

    name: str
    command: Sequence[str]
    says: str
    most_seconds: float
    peer: Sequence[str] = ()


def jobs(config: Path, addresses: int) -> tuple[Job, ...]:
    """What is measured: nothing is wrong in this cluster, and so many addresses are in use."""
    ctl, controllers, at = str(BIN / "tortiectl"), str(BIN / "tortie-controllers"), str(config)
    once = (controllers, "gc", "-c", at, "--once")
    return (
        Job(
            "tortiectl ipam show", (ctl, "ipam", "show", "-c", at), "IP Pool", 10, ("ipam", "show")
        ),
        Job(
            "tortiectl ipam check",
            (ctl, "ipam", "check", "-c", at),
            "found 0 problems",
            60,
            ("ipam", "check"),
        ),
        Job(
            "tortie-controllers gc, one pass",
            once,
            f"0 wait, 0 done; ipam_allocations_in_use {addresses},",
            60,
        ),
        Job(
            "tortie-controllers gc, one pass that tells every verdict as JSON",
            (*once, "--dry-run", "-o", "json"),
            '"unknown": {"count": 0, ',
            60,
        ),
    )


def rows_of(size: str, job: Job, ours: Used, peer: Used | None) -> list[BenchRow]:
    """Time and memory of one command."""
    what = f"{size}: {job.name}"
    seconds, mib = (peer.seconds, peer.peak_mib) if peer else (None, None)
    return [
        at_most(what, ours.seconds, seconds, "s", job.most_seconds),
        at_most(f"{what}: memory", ours.peak_mib, mib, "MiB", MOST_MIB),
    ]


@contextmanager
def api(nodes: int = ipam_cluster.NODES) -> Iterator[str]:
    """The URL of an API server with the cluster's nodes and pods."""
    command = [sys.executable, "-m", "tests.bench.pods_api", str(nodes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def measure(job: Job, size: str, member: EtcdMember) -> tuple[list[BenchRow], Mapping[str, object]]:
    """One command of ours, and calicoctl's beside it."""
    ours = run(job.command, dict(os.environ), says=job.says, most_seconds=2 * job.most_seconds)
    click.echo(f"{job.name}: {ours}")
    peer = None
    if job.peer and PEER.exists():
        environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url}
        command = [str(PEER), *job.peer, "--allow-version-mismatch"]
        peer = run(command, environ, most_seconds=2 * job.most_seconds)
        click.echo(f"calicoctl {' '.join(job.peer)}: {peer}")
    figures = {"ours": asdict(ours), "peer": asdict(peer) if peer else None}
    return rows_of(size, job, ours, peer), figures


def leave(number: int, _: object) -> NoReturn:
    """Unwind: whatever was begun is ended, and that is not interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/gc.json"))
@click.option("--nodes", type=click.IntRange(1), default=ipam_cluster.NODES, show_default=True)
def main(out: Path, nodes: int) -> None:
    """Measure, write the result, and say what was not met."""
    signal.signal(signal.SIGTERM, leave)
    addresses = nodes * ipam_cluster.PER_NODE
    rows: list[BenchRow] = []
    figures: dict[str, object] = {}
    with ExitStack() as stack:
        with term_held():
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gc-"))
            (member,) = stack.enter_context(etcd_members(Path(directory), arguments=QUOTA))
            server = stack.enter_context(api(nodes))
        with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
            ipam_cluster.prepare(store)
            ipam_cluster.fill(store, nodes, endpoints=True)
        click.echo("the store is filled")
        config = Path(directory) / "tortiectl.cfg"
        config.write_text(
            "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata: {}\nspec:\n"
            f"  datastoreType: etcdv3\n  etcdEndpoints: {member.url}\n  k8sAPIEndpoint: {server}\n"
        )
        for job in jobs(config, addresses):
            try:
                found, figures[job.name] = measure(
                    job, f"{nodes} nodes, {addresses} allocations", member
                )
            except Failed as error:
                raise click.ClickException(str(error)) from error
            rows += found
    sys.exit(0 if conclude(out, rows, figures, click.echo) else 1)


if __name__ == "__main__":
    main()
