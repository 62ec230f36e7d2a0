"""`make bench-ipam`: IPAM on a real etcd, beside Calico's own client where `make peer` built it.

Both use the same etcd, one after the other. Every figure is taken by processes of their own, as
the agent would be one. Exit status 1 when a row is not met.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click

from lab.results import BenchRow, at_least, at_most, conclude
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, Handles
from tests.bench import ipam_cluster
from tests.fakes.etcd_server import EtcdMember, etcd_members

PEER = Path("build/peer/ipambench")
PEER_NODE = "calico"
ROUNDS = 3
CALLERS, SECONDS = 16, 6.0
NODES, EACH = 8, 200
SINGLES = 400

LEAST_PER_S = 3000.0
TIMES_PUTS = 1.5
MOST_ROUND_TRIPS = 1.2
MOST_TIMES_EMPTY = 1.2
MOST_MIB = 300.0

Figures = dict[str, Any]


class Worker:
    """A process of `ipam_node`."""

    def __init__(self, url: str, name: str, *job: object) -> None:
        command = [sys.executable, "-m", "tests.bench.ipam_node", url, name, *map(str, job)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Its next line. Raises `ClickException` when it is over instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException(f"a node's process ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def throughput(url: str, tell: Callable[[str], None]) -> tuple[BenchRow, Figures]:
    """Allocate and release by many callers of one node: the median of several rounds."""
    ours: list[Figures] = []
    peers: list[Figures] = []
    for number in range(ROUNDS):
        with closing(Worker(url, f"crowd-{number}", "callers", CALLERS, SECONDS)) as worker:
            ours.append(worker.hear())
        tell(f"{CALLERS} callers: {ours[-1]}")
        peers += [calico(url, CALLERS, 500, *lock) for lock in ((), ("--host-lock",))]
    rates = [one["allocations_per_s"] for one in ours]
    puts = statistics.median(one["puts_per_s"] for one in ours)
    target = max(LEAST_PER_S, TIMES_PUTS * puts)
    what = f"allocate + release on one node, {CALLERS} callers"
    row = at_least(
        beside(what, peers),
        statistics.median(rates),
        best(peers, "allocations_per_s", max),
        "allocations/s",
        target,
    )
    return row, {"ours": ours, "peer": peers}


def many_nodes(store: EtcdDatastore, url: str) -> tuple[list[BenchRow], Figures]:
    """Several nodes at once: what they got, what is left of it, and the round trips it took."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(closing(Worker(url, f"node-{number}", "each", EACH)))
            for number in range(NODES)
        ]
        got = Counter(address for one in workers for address in one.hear()["addresses"])
        for worker in workers:
            worker.say()
        counts = [worker.hear() for worker in workers]
    twice = sum(times - 1 for times in got.values())
    missing = NODES * EACH - got.total()
    peers = [calico(url, 1, 50)]
    what = f"{NODES} nodes, {EACH} allocations each"
    trips = [
        at_most(
            beside(f"{what}: round trips per {step[:-3]}e", peers),
            sum(one[step] for one in counts) / (NODES * EACH),
            best(peers, f"round_trips_per_{step[:-3]}e".replace("allocate", "allocation"), min),
            "round trips",
            MOST_ROUND_TRIPS,
        )
        for step in ("allocating", "releasing")
    ]
    wrong = at_most(f"{what}: given twice, or left", twice + missing + left(store), None, "", 0)
    return [*trips, wrong], {"ours": counts, "peer": peers}


def left(store: EtcdDatastore) -> int:
    """Handles and addresses that nobody gave back."""
    blocks = [one.value for one in store.list(Blocks(4)).records]
    held = sum(len(one.attributes) for one in blocks if isinstance(one, Block))
    return held + len(store.list(Handles()).records)


def size(
    empty: EtcdMember, full: EtcdMember, tell: Callable[[str], None]
) -> tuple[list[BenchRow], Figures]:
    """One allocation at a time on an empty store and on a large one, in turns; and the memory."""
    with ExitStack() as stack:
        pair = [
            stack.enter_context(closing(Worker(one.url, "single", "single", SINGLES)))
            for one in (empty, full)
        ]
        for _ in range(SINGLES):
            for worker in pair:
                worker.say()
                worker.hear()
        small, large = (worker.hear() for worker in pair)
    times = [statistics.median(one["seconds"][1:]) for one in (small, large)]
    claims = [one["seconds"][0] for one in (small, large)]
    tell(f"seconds on an empty store, on a full one: {times}; with the first block: {claims}")
    peers = [[calico(one.url, 1, 200) for one in (empty, full)] for _ in range(ROUNDS)]
    slower = [
        both[1]["mean_cycle_s"] / both[0]["mean_cycle_s"] for both in peers if both[0] and both[1]
    ]
    ends = [both[1] for both in peers]
    what = f"{ipam_cluster.NODES} nodes, {ipam_cluster.NODES * ipam_cluster.PER_NODE} allocations"
    rows = [
        at_most(
            beside(f"{what}: one allocation, times that on an empty store", ends),
            times[1] / times[0],
            statistics.median(slower) if slower else None,
            "",
            MOST_TIMES_EMPTY,
        ),
        at_most(
            beside(f"{what}: memory of the allocator", ends),
            large["peak_mib"],
            best(ends, "peak_mib", min),
            "MiB",
            MOST_MIB,
        ),
    ]
    figures = {"seconds": times, "first block": claims, "peak_mib": large["peak_mib"]}
    return rows, {"ours": figures, "peer": ends}


def calico(url: str, callers: int, count: int, *options: str) -> Figures:
    """What Calico's client does on the same etcd; {} where it was not built."""
    if not PEER.exists():
        return {}
    command = [str(PEER), "--endpoints", url, "--node", PEER_NODE, "--callers", str(callers)]
    process = subprocess.Popen(
        [*command, "--count", str(count), *options], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{PEER} ended with {process.returncode}: {text}")
    found: Figures = json.loads(text)
    return found | {"peak_mib": used.ru_maxrss / 1024}


def best(peers: Sequence[Figures], name: str, of: Callable[[list[float]], float]) -> float | None:
    """The peer's best figure, if there is a peer."""
    found = [one[name] for one in peers if one]
    return of(found) if found else None


def beside(what: str, peers: Sequence[Figures]) -> str:
    """The row's name, with the reason when nothing stands beside it."""
    return what if any(peers) else f"{what} (no peer: {PEER} is not built, see `make peer`)"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/ipam.json"))
def main(out: Path) -> None:
    """Measure, write the result, and say what was not met."""
    tell = click.echo
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ipam-")))
        (member,) = stack.enter_context(etcd_members(_inside(directory, "empty")))
        store = stack.enter_context(closing(EtcdDatastore(EtcdConfig(member.url))))
        crowd = [f"crowd-{number}" for number in range(ROUNDS)]
        nodes = [f"node-{number}" for number in range(NODES)]
        ipam_cluster.prepare(store, PEER_NODE, "single", *crowd, *nodes)
        first, figures_1 = throughput(member.url, tell)
        more, figures_2 = many_nodes(store, member.url)
        (large,) = stack.enter_context(etcd_members(_inside(directory, "full")))
        with closing(EtcdDatastore(EtcdConfig(large.url))) as filled:
            ipam_cluster.prepare(filled, PEER_NODE, "single")
            ipam_cluster.fill(filled)
        tell("the large store is filled")
        last, figures_3 = size(member, large, tell)
    rows = [first, *more, *last]
    sys.exit(
        0
        if conclude(out, rows, {"callers": figures_1, "nodes": figures_2, "size": figures_3}, tell)
        else 1
    )


def _inside(directory: Path, name: str) -> Path:
    (directory / name).mkdir()
    return directory / name


if __name__ == "__main__":
    main()
