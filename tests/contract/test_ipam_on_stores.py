"""IPAM over every store that nodes share: stories, processes of several nodes, killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings

from ipam.client import AddressRequest, IPAMClient
from libtortie.datastore.open import open_datastore
from tests.fakes.faulty_store import Fault, FaultyStore
from tests.fakes.ipam_stores import STORES, Where
from tests.fakes.ipam_world import World, plain_pod, pool
from tests.fakes.patience import PATIENCE
from tests.property.test_ipam_clients import Act, configs, empty_out, no_two_holders, run, steps

EXAMPLES = 500 if os.environ.get("TORTIE_SOAK") else 12
BOTH = AddressRequest(ipv6=True)
WORKER = """
import sys
from datetime import UTC, datetime
from ipam.client import AddressRequest, IPAMClient, Retry
from libtortie.datastore.open import open_datastore
from tests.fakes.ipam_stores import Where
from tests.fakes.ipam_world import plain_pod, vm_pod
from tests.fakes.patience import PATIENCE, be_patient

be_patient()
kind, place, name, node, count = sys.argv[1:]
store = open_datastore(Where(kind, place).config(node))
retry = Retry(attempts=1000, seconds=PATIENCE)
client = IPAMClient(store, node, now=lambda: datetime.now(UTC), retry=retry)
want = AddressRequest(ipv6=True)
for number in range(int(count)):
    handle = f"{name}-{number}"
    client.assign(handle, plain_pod(handle, node=node), want)
    client.claim_vm("vm", vm_pod(f"vm-{name}", node=node), want)
    if number % 3 == 0:
        client.release(handle)
    if number >= 20:  # who is killed late must not have taken all there is
        client.release(f"{name}-{number - 20}")
    print(number, flush=True)
store.close()
"""


@contextmanager
def opened(where: Where) -> Iterator[World]:
    """The store as its judge sees it."""
    with closing(open_datastore(where.config(""))) as store:
        yield World(store)


@pytest.fixture(params=list(STORES))
def where(request: pytest.FixtureRequest) -> Iterator[Where]:
    """Each store, empty."""
    with STORES[request.param](request) as found:
        yield found


def worker(where: Where, name: str, node: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, where.kind, where.place, name, node, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def reap(*workers: subprocess.Popen[str]) -> None:
    for process in workers:
        process.kill()
        process.communicate(timeout=PATIENCE)


def pools(world: World) -> World:
    return world.pools(pool("a", "10.0.0.0/24", blockSize=29), pool("b", "fd00::/64"))


@pytest.mark.parametrize("store_name", list(STORES))
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(configs, steps)
def test_stories_of_three_nodes(
    request: pytest.FixtureRequest,
    store_name: str,
    config: dict[str, object],
    story: list[tuple[Act, list[Fault], list[Act]]],
) -> None:
    with STORES[store_name](request) as where, opened(where) as world:
        world.pools(pool("a", "10.0.0.0/29", blockSize=30), pool("b", "fd00::/125", blockSize=126))
        world.config(**config)

        def audit() -> None:
            world.audit(exact=world.store.atomic)
            no_two_holders(world)

        run(
            world,
            story,
            lambda faults, interlope: FaultyStore(
                world.store, faults, before_commit=lambda ops: interlope()
            ),
            audit,
        )
        empty_out(world)


def test_processes_of_two_nodes_share_one_store(where: Where) -> None:
    with opened(where) as world:
        pools(world)
        workers = [worker(where, f"w{i}", f"n{i % 2}", 12) for i in range(3)]
        try:
            for process in workers:
                process.communicate(timeout=4 * PATIENCE)
            assert [process.returncode for process in workers] == [0, 0, 0]
        finally:
            reap(*workers)
        held = world.allocated()
        assert held.pop("vm") == 2
        assert set(held.values()) == {2}
        assert len(held) == 3 * 8
        world.audit()


def test_killed_processes_leave_a_sound_store(where: Where) -> None:
    """kill -9 at whatever point it meets; then the same attachments are asked for again."""
    with opened(where) as world:
        pools(world)
        for turn in range(4):
            process = worker(where, f"k{turn}", "n1", 1_000_000)
            try:
                assert process.stdout is not None
                for _ in range(3 + turn):
                    assert process.stdout.readline()
                process.send_signal(signal.SIGKILL)
                assert process.wait(timeout=PATIENCE) == -signal.SIGKILL
            finally:
                reap(process)
            world.audit(exact=world.store.atomic)
        client = IPAMClient(world.store, "n1", now=lambda: datetime.now(UTC))
        for handle in world.handles():
            before = client.by_handle(handle)
            if handle != "vm":
                got = client.assign(handle, plain_pod(handle), BOTH)
                # Without transactions, what a handle only announced is not held yet.
                assert got == before if world.store.atomic else all(one in got for one in before)
            client.release(handle)
        assert world.allocated() == {}
        assert world.handles() == {}
