"""One node's process of the IPAM benchmark: `python -m tests.bench.ipam_node URL NODE JOB…`.

It allocates as the agent does, and prints one JSON object. `callers N SECONDS`: N threads allocate
and release until the time is over. `each N`: N allocations one after another, then, told to by a
line on stdin, their release. `single N`: N allocations, each told to by a line, timed and released.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from felix_shim.agent import SWITCH_INTERVAL
from felix_shim.keeper import spare_collector
from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey

WANT = AddressRequest()
PUTS_SECONDS = 2.0


class Node:
    """A node's client and what it knows of its own traffic."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.calls = 0
        self.store = EtcdDatastore(EtcdConfig(url), on_call=self._called)
        self.client = IPAMClient(self.store, name, now=lambda: datetime.now(UTC))

    def _called(self, _: str) -> None:
        self.calls += 1

    def assign(self, number: int, lane: int = 0) -> str:
        """One allocation for a pod as Kubernetes names them; its address."""
        pod = f"{self.name}-{lane}-{number}"
        container = f"{lane:04x}{number:060x}"
        owner = pod_owner(
            namespace="default",
            pod=pod,
            node=self.name,
            timestamp=datetime.now(UTC),
            container_id=container,
            pod_uid=f"00000000-0000-0000-{lane:04x}-{number:012x}",
        )
        (got,) = self.client.assign(self._handle(number, lane), owner, WANT)
        return str(got.address)

    def release(self, number: int, lane: int = 0) -> None:
        """Give it back. Raises `AssertionError` when there was nothing."""
        assert self.client.release(self._handle(number, lane))

    def _handle(self, number: int, lane: int) -> str:
        return f"k8s-pod-network.{self.name}.{lane:04x}{number:052x}"


def callers(node: Node, count: int, seconds: float) -> dict[str, Any]:
    """Sequential puts, then allocations and releases by several threads, per second."""
    puts = _puts(node)
    node.assign(0)
    node.release(0)
    done = [0] * count
    end = time.perf_counter() + seconds

    def work(lane: int) -> None:
        while time.perf_counter() < end:
            node.assign(done[lane], lane)
            node.release(done[lane], lane)
            done[lane] += 1

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(count)]
    node.calls = 0
    start, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    return {
        "puts_per_s": puts,
        "allocations_per_s": sum(done) / took,
        "operations_per_commit": 2 * sum(done) / node.calls,
        "processors": (time.process_time() - used) / took,
    }


def each(node: Node, count: int) -> dict[str, Any]:
    """Allocate, wait for a word, release: addresses and round trips."""
    addresses = [node.assign(number) for number in range(count)]
    allocating, node.calls = node.calls, 0
    print(json.dumps({"addresses": addresses}), flush=True)
    sys.stdin.readline()
    for number in range(count):
        node.release(number)
    return {"allocating": allocating, "releasing": node.calls}


def single(node: Node, count: int) -> dict[str, Any]:
    """Seconds of single allocations, the first of which claims a block, and this process' size."""
    times = []
    for number in range(count):
        sys.stdin.readline()  # our turn, beside another
        start = time.perf_counter()
        node.assign(number)
        times.append(time.perf_counter() - start)
        node.release(number)
        print(number, flush=True)
    return {"seconds": times, "peak_mib": _peak_mib()}


def _puts(node: Node) -> float:
    """Sequential writes of one small value, per second."""
    key = HandleKey(f"puts-{node.name}")
    record = node.store.create(key, Handle(blocks={}))
    start, done = time.perf_counter(), 0
    while time.perf_counter() < start + PUTS_SECONDS:
        record = node.store.update(key, Handle(blocks={}), record.revision)
        done += 1
    took = time.perf_counter() - start
    node.store.delete(key)
    return done / took


def _peak_mib() -> float:
    """The largest resident set this process ever had."""
    status = Path("/proc/self/status").read_text().splitlines()
    line = next(one for one in status if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main(url: str, name: str, job: str, *numbers: str) -> None:
    """Do a job and print what came of it."""
    jobs: dict[str, Callable[[Node], dict[str, Any]]] = {
        "callers": lambda node: callers(node, int(numbers[0]), float(numbers[1])),
        "each": lambda node: each(node, int(numbers[0])),
        "single": lambda node: single(node, int(numbers[0])),
    }
    sys.setswitchinterval(SWITCH_INTERVAL)
    node = Node(url, name)
    spare_collector()
    with closing(node.store):
        print(json.dumps(jobs[job](node)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
