"""`make bench-policy`: from a stored change to the kernel's rules, on a large cluster.

A real agent runs in a network namespace, on a SQLite datastore that the benchmark writes. When a
change is in the kernel, and of how many set elements it was, the kernel itself tells its listeners.
A change counts from when its write has returned.

Felix cannot run here beside it, so the peer's column is `nft`, the program, given the same change
as text on the same rules. Exit status 1 when a row is not met; nothing is left behind, also when it
is stopped. It takes two minutes.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

import click

from lab.results import BenchRow, at_most, write
from libtortie.datastore.port import Record
from tests.bench.policy_nft import NftPeer
from tests.bench.policy_world import Size, fill, local_interface, remote_address
from tests.fakes.fresh_names import fresh_name
from tests.fakes.nft_monitor import Commit, NftMonitor, nft_monitor
from tests.fakes.node_process import DEADLINE, NodeProcess, until
from tests.fakes.process_tree import PeakMemory, processor_seconds

ENDPOINT_P50, ENDPOINT_P99, LABEL, ADDED, ELEMENTS, START, START_MIB = 20, 60, 10, 10, 2, 20, 400
PEER_COUNT = 30
"""Changes that `nft` makes: each takes it a tenth of a second and more."""
SETTLED = 0.05
"""Seconds between changes, in which the agent finishes what the last one made due."""


@dataclass(slots=True)
class Measured:
    """Milliseconds and touched elements of each change of a kind."""

    ms: list[float] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    """The agent, and who hears what it commits."""

    process: NodeProcess
    size: Size
    heard: NftMonitor

    def change(self, record: Record, key: bytes, found: Measured, *, new: bool) -> None:
        """Store something; wait until a commit has touched an element with this key."""
        store, since = self.process.store, len(self.heard.commits)
        if new:
            store.create(record.key, record.value)
        else:
            store.update(record.key, record.value, store.get(record.key).revision)
        stored = time.monotonic()

        def about_it(commit: Commit) -> bool:
            return any(key in one for one in commit.keys)

        commit = self.heard.wait(about_it, since, DEADLINE)
        found.ms.append(max(commit.at - stored, 0.0) * 1000)
        found.elements.append(sum(commit.elements.values()))
        time.sleep(SETTLED)


def endpoints(node: Node, count: int) -> Measured:
    """New endpoints of the node, whose veths are there, as the CNI plugin makes them."""
    found, apps = Measured(), node.size.apps
    for number in range(apps, apps + count):
        key = local_interface(number).encode()
        node.change(node.size.local(number, 7 * number % apps), key, found, new=True)
    return found


def labels(node: Node, count: int) -> Measured:
    """Endpoints of other nodes that change from one policy's set to another's."""
    found = Measured()
    for number in range(count):
        key = ip_address(remote_address(number)).packed
        node.change(node.size.remote(number, number + 1), key, found, new=False)
    return found


def additions(node: Node, count: int) -> Measured:
    """Endpoints of other nodes that come into the set of all of them, and one other."""
    found, first = Measured(), node.size.remotes
    for number in range(first, first + count):
        key = ip_address(remote_address(number)).packed
        node.change(node.size.remote(number), key, found, new=True)
    return found


@dataclass(frozen=True, slots=True)
class Started:
    """`seconds` until rules are in force; of the processors; memory of the agent and `nft`."""

    seconds: float
    processor_s: float
    mib: float


def start(process: NodeProcess) -> Started:
    """Start the agent on a full store and an empty kernel."""
    began = time.monotonic()
    process.start(wait=False)
    assert process.agent is not None
    with PeakMemory(process.agent.pid) as memory:
        until("the agent serves CNI", lambda: process.lines("cni_serving"))
        seconds = time.monotonic() - began
        used = processor_seconds(process.agent.pid)
    return Started(seconds, used, memory.mib)


def wire(process: NodeProcess, size: Size, count: int) -> None:
    """Veths of the node's endpoints, and of those to come."""
    lines = []
    for number in range(size.apps + count):
        name, peer = local_interface(number), f"p{number}"
        lines += [f"link add {name} type veth peer name {peer}"]
        lines += [f"link set {one} up" for one in (name, peer)]
    command = ["ip", "-n", process.name, "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), text=True, check=True)


def p99(times: Sequence[float]) -> float:
    """Of n sorted times the one at 0.99 n, rounded up."""
    ordered = sorted(times)
    return ordered[-(-99 * len(ordered) // 100) - 1]


def rows_of(
    size: Size,
    found: Mapping[str, Measured],
    peer: Mapping[str, Sequence[float]],
    started: Started,
) -> list[BenchRow]:
    """The four rows of what must be reached; three of them have two figures."""
    loaded = f"{size.policies} policies, {size.remotes} remote endpoints"
    middle = statistics.median
    new, label, added = found["endpoint"], found["label"], found["added"]
    endpoint = f"new endpoint, until its policy is in the kernel; {loaded}"
    one = f"one label change that moves 1 endpoint among {size.remotes}"
    pod = f"one pod added to a set of {size.remotes}"
    return [
        at_most(
            f"{endpoint}: p50; nft", middle(new.ms), middle(peer["endpoint"]), "ms", ENDPOINT_P50
        ),
        at_most(f"{endpoint}: p99; nft", p99(new.ms), p99(peer["endpoint"]), "ms", ENDPOINT_P99),
        at_most(f"{one}: p50; nft", middle(label.ms), middle(peer["label"]), "ms", LABEL),
        at_most(f"{one}: set elements touched", max(label.elements), None, "elements", ELEMENTS),
        at_most(f"{pod}: p50; nft", middle(added.ms), middle(peer["added"]), "ms", ADDED),
        at_most(f"start-up; {loaded}", started.seconds, None, "s", START),
        at_most(f"start-up; {loaded}: memory", started.mib, None, "MiB", START_MIB),
    ]


def _leave(number: int, _: object) -> NoReturn:
    """Unwind: whatever was begun is ended."""
    sys.exit(128 + number)


def measure(directory: Path, size: Size, count: int) -> tuple[list[BenchRow], dict[str, object]]:
    """All of it on one node."""
    directory.mkdir()
    tell: Callable[[str], None] = partial(click.echo)
    with closing(NodeProcess(directory, fresh_name("bp"), log_level="info")) as process:
        fill(process.store, size.records())
        wire(process, size, count)
        tell(f"the store of {process.name} is filled")
        started = start(process)
        tell(f"the agent has started: {started}")
        last = f"local-{size.apps - 1}"
        until(f"{last} has its status file", lambda: process.status(last))
        with nft_monitor(process.name) as heard:
            node = Node(process, size, heard)
            found = {
                "endpoint": endpoints(node, count),
                "label": labels(node, count),
                "added": additions(node, count),
            }
        process.stop()
        peer = NftPeer(process.name, size).measure(min(count, PEER_COUNT))
    rows = rows_of(size, found, peer, started)
    figures: dict[str, object] = {
        name: {"ms": one.ms, "elements": one.elements} for name, one in found.items()
    }
    return rows, figures | {"nft": dict(peer), "start": asdict(started)}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/policy.json"))
@click.option("--policies", type=click.IntRange(10), default=1_000, show_default=True)
@click.option("--endpoints", "remotes", type=click.IntRange(10), default=10_000, show_default=True)
@click.option("--count", type=click.IntRange(1), default=100, show_default=True)
def main(out: Path, policies: int, remotes: int, count: int) -> None:
    """Measure, write the result, and say what was not met."""
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="bench-policy-") as directory:
        rows, figures = measure(Path(directory) / "node", Size(policies, remotes), count)
    write(out, rows, figures)
    for row in rows:
        met = "met" if row.met else "NOT met"
        peer = "" if row.peer is None else f", nft {row.peer:g}"
        click.echo(f"{row.what}: {row.ours} {row.unit} (target {row.target:g}{peer}, {met})")
    sys.exit(0 if all(row.met for row in rows) else 1)


if __name__ == "__main__":
    main()
