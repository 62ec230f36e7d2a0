"""`make bench-cli`: what somebody waits for who types a command.

The start of the program, the commands that look at all of IPAM, and a list of very many endpoints,
each a process of its own on a real etcd. Beside them stands the real calicoctl where `make peer`
built it. Exit status 1 when a row is not met; nothing is left behind, also when it is stopped.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from lab.results import BenchRow, at_most, conclude
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from tests.bench import ipam_cluster
from tests.bench.gc import BIN, PEER, QUOTA, Job, api, jobs, leave, measure
from tests.bench.gc_run import Failed, run, term_held
from tests.fakes.etcd_server import EtcdMember, etcd_members

STARTS = 20
START_MS = 150.0
LIST_SECONDS = 20.0
LIST_MIB = 256.0
"""What is asked is that memory does not grow with the list; a tenth of it needs 140."""
CONFIG = """\
apiVersion: projectcalico.org/v3
kind: CalicoAPIConfig
spec: {{datastoreType: etcdv3, etcdEndpoints: "{etcd}", k8sAPIEndpoint: "{api}"}}
"""


def start_ms(command: Sequence[str], count: int) -> float:
    """The median of several starts, in milliseconds. Raises `Failed`."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        took.append(1000 * (time.perf_counter() - began))
        if done.returncode:
            raise Failed(f"{' '.join(command)}: status {done.returncode}")
    return statistics.median(took)


def starts(count: int) -> tuple[list[BenchRow], dict[str, object]]:
    """The commands that ask nobody. calicoctl of this release has no `version --client`."""
    rows: list[BenchRow] = []
    figures: dict[str, object] = {}
    for name, args in (("--help", ["--help"]), ("version --client", ["version", "--client"])):
        ours = start_ms([str(BIN / "tortiectl"), *args], count)
        rows.append(at_most(f"tortiectl {name}", ours, None, "ms", START_MS))
        figures[f"tortiectl {name}"] = {"ours_ms": ours, "starts": count}
    return rows, figures


def listing(config: Path, member: EtcdMember, endpoints: int) -> tuple[list[BenchRow], object]:
    """All endpoints as JSON."""
    command = [str(BIN / "tortiectl"), "get", "wep", "-A", "-o", "json", "-c", str(config)]
    ours = run(command, dict(os.environ), says="}", most_seconds=4 * LIST_SECONDS)
    click.echo(f"get wep -A -o json: {ours}")
    peer = None
    if PEER.exists():
        environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.url}
        theirs = [str(PEER), "get", "wep", "-A", "-o", "json", "--allow-version-mismatch"]
        peer = run(theirs, environ, most_seconds=4 * LIST_SECONDS)
        click.echo(f"calicoctl get wep -A -o json: {peer}")
    what = f"{endpoints} endpoints: tortiectl get wep -A -o json"
    seconds, mib = (peer.seconds, peer.peak_mib) if peer else (None, None)
    rows = [
        at_most(what, ours.seconds, seconds, "s", LIST_SECONDS),
        at_most(f"{what}: memory", ours.peak_mib, mib, "MiB", LIST_MIB),
    ]
    return rows, {"ours": asdict(ours), "peer": asdict(peer) if peer else None}


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[EtcdMember, Path]]:
    """A filled etcd, an API with the same pods, and the configuration that names both."""
    with ExitStack() as stack:
        with term_held():
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-cli-")))
            (member,) = stack.enter_context(etcd_members(root, arguments=QUOTA))
            server = stack.enter_context(api(nodes))
        with closing(EtcdDatastore(EtcdConfig(member.url))) as store:
            ipam_cluster.prepare(store)
            ipam_cluster.fill(store, nodes, endpoints=True)
        click.echo("the store is filled")
        config = root / "tortiectl.cfg"
        config.write_text(CONFIG.format(etcd=member.url, api=server))
        yield member, config


def of_ipam(config: Path, addresses: int) -> list[Job]:
    """The commands of IPAM that people type."""
    return [job for job in jobs(config, addresses) if job.name.startswith("tortiectl ")]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/cli.json"))
@click.option("--nodes", type=click.IntRange(1), default=ipam_cluster.NODES, show_default=True)
@click.option("--listed-nodes", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--starts", "count", type=click.IntRange(1), default=STARTS, show_default=True)
def main(out: Path, nodes: int, listed_nodes: int, count: int) -> None:
    """Measure, write the result, and say what was not met."""
    signal.signal(signal.SIGTERM, leave)
    try:
        rows, figures = starts(count)
        with cluster(listed_nodes) as (member, config):
            endpoints = listed_nodes * ipam_cluster.PER_NODE
            found, figures["get wep -A -o json"] = listing(config, member, endpoints)
            rows += found
        addresses = nodes * ipam_cluster.PER_NODE
        size = f"{nodes} nodes, {addresses} allocations"
        with cluster(nodes) as (member, config):
            for job in of_ipam(config, addresses):
                more, said = measure(job, size, member)
                rows, figures[job.name] = rows + more, said
    except Failed as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if conclude(out, rows, figures, click.echo) else 1)


if __name__ == "__main__":
    main()
