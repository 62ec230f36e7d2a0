"""Real stores with several at once, and one whose disk fills up meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ipam.client import AddressRequest, IPAMClient, Retry
from libtortie.datastore.open import open_datastore
from libtortie.datastore.port import Datastore
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Unavailable
from tests.fakes.ipam_stores import STORES
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod
from tests.fakes.patience import PATIENCE
from tests.fakes.sqlite_files import check_integrity, tmpfs
from tests.unit.ipam.test_ipam_together import at_once

BOTH = AddressRequest(ipv6=True)
VM = "k8s-pod-network.vmi.shop.db"
PATIENT = Retry(attempts=1000, seconds=PATIENCE)
Open = Callable[[], Datastore]


@pytest.fixture(params=list(STORES))
def open_store(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Another process's client of the same store, which is empty at first."""
    with STORES[request.param](request) as where:
        yield lambda: open_datastore(where.config(""))


@contextmanager
def clients(open_store: Open, nodes: list[str]) -> Iterator[tuple[World, list[IPAMClient]]]:
    with closing(open_store()) as judge:
        world = World(judge).pools(
            pool("a", "10.0.0.0/24", blockSize=29), pool("b", "fd00::/120", blockSize=125)
        )
        stores = [open_store() for _ in nodes]
        try:
            yield (
                world,
                [
                    world.client(node, store, retry=PATIENT)
                    for node, store in zip(nodes, stores, strict=True)
                ],
            )
        finally:
            for store in stores:
                store.close()


@pytest.mark.parametrize("nodes", [["n1", "n1"], ["n1", "n2"]])
def test_adds_of_one_vm_at_the_same_instant(open_store: Open, nodes: list[str]) -> None:
    with clients(open_store, nodes) as (world, workers):
        for turn in range(5):
            handle = f"{VM}{turn}"

            def add(number: int, handle: str = handle) -> Callable[[], object]:
                owner = vm_pod(f"p{number}", node=nodes[number], vm=handle)
                return lambda: workers[number].claim_vm(handle, owner, BOTH)

            results = at_once([add(0), add(1)])
            given = []
            for result in results:
                assert isinstance(result, tuple), result
                given.append([one.address for one in result])
            assert given[0] == given[1]
            assert [address.version for address in given[0]] == [4, 6]
            assert world.allocated()[handle] == 2
        world.audit()


@pytest.mark.root
def test_disk_fills_up_during_fifty_adds(tmp_path: Path) -> None:
    once = Retry(attempts=1)
    with tmpfs(tmp_path / "disk", "8m") as disk:
        path = disk / "t.db"
        with closing(SqliteDatastore(path, shared=True)) as store:
            world = World(store).pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/120"))
            client = world.client("n1", retry=once)
            refused: list[str] = []
            for number in range(50):
                if number == 10:
                    _fill(disk / "ballast")
                if number == 40:
                    (disk / "ballast").unlink()
                handle = f"h{number}"
                try:
                    got = client.assign(handle, plain_pod(handle), BOTH)
                except Unavailable:
                    refused.append(handle)
                    assert world.client().by_handle(handle) == ()
                else:
                    assert world.client().by_handle(handle) == got
                world.audit()
            assert refused
            assert refused[-1] == "h39", "the first ADD after there was room again works"
            for handle in refused:
                assert len(client.assign(handle, plain_pod(handle), BOTH)) == 2
            assert world.allocated() == {f"h{number}": 2 for number in range(50)}
            world.audit()
        check_integrity(path)


def _fill(ballast: Path) -> None:
    """Take all the room that is left."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return
