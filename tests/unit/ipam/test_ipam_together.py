"""Several at once for one thing: a block, a VM's identity, one slow allocator's queue."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from ipaddress import ip_network

import pytest

from ipam.client import AddressRequest, Allocation, IPAMClient, Retry
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore, Op, Record
from libtortie.errors import NoFreeAddresses, TortieError, Unavailable
from libtortie.model.ipam import AffinityState
from libtortie.model.keys import AffinityKey, Key
from tests.fakes.faulty_store import Fault, FaultyStore, StepwiseStore
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

V4 = AddressRequest()
BOTH = AddressRequest(ipv6=True)
VM = "k8s-pod-network.vmi.shop.db"


def at_once(works: Sequence[Callable[[], object]]) -> list[object]:
    """The results of calls that begin together; an error of ours is a result."""
    start = threading.Barrier(len(works))
    results: list[object] = [None] * len(works)

    def run(number: int) -> None:
        start.wait(90)
        try:
            results[number] = works[number]()
        except TortieError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=[n], daemon=True) for n in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
        assert not thread.is_alive()
    return results


class Clinging(FaultyStore):
    """Affinities of one node cannot be deleted."""

    node = ""

    def delete(self, key: Key, revision: str | None = None) -> None:
        if isinstance(key, AffinityKey) and key.node == self.node:
            raise Unavailable("injected: the claim clings")
        self.inner.delete(key, revision)


def raced_claim(cidr: str, **config: object) -> tuple[World, Clinging, StepwiseStore]:
    """n1 has written its claim of a block, and n2 claims the block before n1 can."""
    world = World().pools(pool("a", cidr, blockSize=30)).config(**config)
    clinging = Clinging(world.store)
    clinging.node = "n1"
    store = StepwiseStore(clinging)
    raced: list[int] = []

    def other_first(done: int) -> None:
        if not raced:
            raced.append(done)
            claim = next(iter(world.affinities("n1")))
            first = claim.cidr.network_address
            want = AddressRequest(addresses=(first,))
            world.client("n2").assign("theirs", plain_pod("theirs", node="n2"), want)

    store.between = other_first
    return world, clinging, store


def confirmed(world: World) -> dict[str, str]:
    return {
        str(key.cidr): key.node
        for key, claim in world.affinities().items()
        if claim.state is AffinityState.CONFIRMED
    }


def test_loser_of_a_claim_that_cannot_take_it_back_never_allocates_by_it() -> None:
    world, clinging, store = raced_claim("10.0.0.0/30", strict_affinity=True)
    client = world.client("n1", store)
    for number in range(3):
        with pytest.raises(NoFreeAddresses, match="affinity is strict"):
            client.assign(f"h{number}", plain_pod(f"p{number}"), V4)
    assert confirmed(world) == {"10.0.0.0/30": "n2"}
    assert world.affinities("n1")[AffinityKey("n1", ip_network("10.0.0.0/30"))].state is (
        AffinityState.PENDING
    )
    assert world.allocated() == {"theirs": 1}
    clinging.node = ""
    world.pools(pool("b", "10.1.0.0/30", blockSize=30))
    client.assign("h", plain_pod("p"), V4)
    assert {str(key.cidr) for key in world.affinities("n1")} == {"10.1.0.0/30"}
    world.audit()


def test_loser_of_a_claim_takes_another_block() -> None:
    world, _, store = raced_claim("10.0.0.0/29")
    client = world.client("n1", store)
    for number in range(4):
        client.assign(f"h{number}", plain_pod(f"p{number}"), V4)
    nodes = {block.cidr: block.node for block in world.blocks()}
    assert confirmed(world) == {str(cidr): node for cidr, node in nodes.items()}
    for number in range(4):
        (got,) = client.by_handle(f"h{number}")
        assert nodes[got.block] == "n1"
    world.audit()


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
def test_adds_of_one_vm_at_the_same_instant_get_the_same_addresses(
    nodes: int, stepwise: bool
) -> None:
    for turn in range(10):
        world = World().pools(
            pool("a", "10.0.0.0/28", blockSize=30), pool("b", "fd00::/124", blockSize=126)
        )
        clients = [_client(world, f"n{number}", stepwise) for number in range(nodes)]

        def add(number: int, clients: list[IPAMClient] = clients) -> Callable[[], object]:
            client = clients[number % len(clients)]
            owner = vm_pod(f"p{number}", node=f"n{number % len(clients)}")
            return lambda: client.claim_vm(VM, owner, BOTH)

        results = at_once([add(number) for number in range(4)])
        given = {frozenset(one.address for one in _given(result)) for result in results}
        assert len(given) == 1, (turn, results)
        assert [a.version for a in sorted(next(iter(given)), key=lambda a: a.version)] == [4, 6]
        assert world.allocated() == {VM: 2}
        world.audit()


def _client(world: World, node: str, stepwise: bool) -> IPAMClient:
    store: Datastore = StepwiseStore(world.store) if stepwise else world.store
    return world.client(node, store, retry=Retry(attempts=500, seconds=60.0))


def _given(result: object) -> tuple[Allocation, ...]:
    assert isinstance(result, tuple), result
    return result


class Slow(FaultyStore):
    """Each commit takes its time of a clock that only commits move."""

    seconds = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ticks = itertools.count(1)
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        self.time = next(self._ticks) * self.seconds
        return super().commit(ops)


FAULTS = [Fault.UNAVAILABLE_AFTER, Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE] * 12


@pytest.mark.parametrize("script", [[], FAULTS, FAULTS[::-1]])
def test_hundred_adds_in_the_queue_of_a_slow_allocator(script: list[Fault]) -> None:
    """Each is given its addresses, or leaves nothing that its DEL, which follows a refused ADD,
    does not free: an undo, too, may meet a fault. A try may take a second, 100 take longer."""
    world = World(MemoryDatastore()).pools(
        pool("a", "10.0.0.0/24", blockSize=29), pool("b", "fd00::/120", blockSize=125)
    )
    slow = Slow(world.store, script)
    client = world.client(
        "n1", slow, retry=Retry(attempts=2, seconds=1.0), monotonic=slow.monotonic
    )

    def add(number: int) -> Callable[[], object]:
        return lambda: client.assign(f"h{number}", plain_pod(f"p{number}"), BOTH)

    results = at_once([add(number) for number in range(100)])
    refused = [number for number, result in enumerate(results) if isinstance(result, TortieError)]
    assert bool(refused) is bool(script)
    assert len(refused) < 100
    for number in refused:
        world.client().release(f"h{number}")
    for number, result in enumerate(results):
        stored = world.client().by_handle(f"h{number}")
        assert stored == (() if number in refused else _given(result))
    assert world.allocated() == {f"h{n}": 2 for n in range(100) if n not in refused}
    world.audit()
