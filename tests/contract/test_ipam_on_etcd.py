"""IPAM over a real etcd: its leader killed, round trips; what holds of every store is elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

from ipam.client import AddressRequest, IPAMClient, Retry
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.errors import Conflict, Unavailable
from tests.fakes.etcd_client import DEADLINE, eventually, store_at
from tests.fakes.etcd_server import EtcdMember, leader_of
from tests.fakes.ipam_world import World, plain_pod, pool

BOTH = AddressRequest(ipv6=True)
PATIENT = Retry(attempts=1000, seconds=DEADLINE)


def pools(world: World) -> World:
    return world.pools(pool("a", "10.0.0.0/24", blockSize=29), pool("b", "fd00::/64"))


def test_the_leader_is_killed_while_four_nodes_allocate(trio: list[EtcdMember]) -> None:
    """Nobody gets another's address, what was promised is held, and all of it can be given back."""
    urls = [one.url for one in trio]
    with closing(store_at(*urls)) as judge:
        world = pools(World(judge))
        promised: dict[str, set[str]] = {}
        errors: list[BaseException] = []
        first = threading.Semaphore(0)

        def work(number: int) -> None:
            try:
                with closing(EtcdDatastore(EtcdConfig(",".join(urls)))) as store:
                    client = IPAMClient(
                        store, f"n{number}", now=lambda: datetime.now(UTC), retry=PATIENT
                    )
                    for count in range(20):
                        allocate(client, f"n{number}-{count}")
            except BaseException as error:
                errors.append(error)
                raise

        def allocate(client: IPAMClient, handle: str) -> None:
            def once() -> None:
                try:
                    got = client.assign(handle, plain_pod(handle), BOTH)
                except Conflict as error:
                    raise Unavailable(str(error)) from error
                promised[handle] = {str(one.address) for one in got}

            eventually(once)
            first.release()

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(12):
            assert first.acquire(timeout=DEADLINE)
        leader_of(trio).stop()
        for thread in threads:
            thread.join(4 * DEADLINE)
            assert not thread.is_alive()
        assert errors == []
        assert len(promised) == 80
        every = [address for held in promised.values() for address in held]
        assert len(set(every)) == len(every) == 160
        world.audit()
        client = world.client()
        for handle, addresses in promised.items():
            assert {str(one.address) for one in client.by_handle(handle)} == addresses
            client.release(handle)
        assert world.allocated() == {}


def test_round_trips(member: EtcdMember) -> None:
    """Counted on the channel: warm is one, cold are three at most, whatever the number of keys."""
    calls: list[str] = []
    with closing(EtcdDatastore(EtcdConfig(member.url), on_call=calls.append)) as store:
        world = pools(World(store))
        warm = world.client()
        counts: dict[str, int] = {}

        def measure(what: str, work: Callable[[], object]) -> None:
            calls.clear()
            work()
            counts[what] = len(calls)

        v4 = AddressRequest()
        measure("a node's first address", lambda: warm.assign("a", plain_pod("a"), v4))
        measure("warm", lambda: warm.assign("b", plain_pod("b"), v4))
        measure("warm release", lambda: warm.release("b"))
        measure("cold", lambda: world.client().assign("c", plain_pod("c"), v4))
        measure("warm, the block changed", lambda: warm.assign("d", plain_pod("d"), v4))
        measure("warm again", lambda: warm.assign("e", plain_pod("e"), v4))
        measure("cold repeat", lambda: world.client().assign("c", plain_pod("c"), v4))
        measure("cold release", lambda: world.client().release("c"))
        world.put(pool("new", "10.9.0.0/24").key, pool("new", "10.9.0.0/24"))
        measure("a pool was added", lambda: warm.assign("f", plain_pod("f"), v4))
        measure("warm once more", lambda: warm.assign("g", plain_pod("g"), v4))
        measure("first of a second family", lambda: warm.assign("h", plain_pod("h"), BOTH))
        measure("both families warm", lambda: warm.assign("i", plain_pod("i"), BOTH))
        measure("its release", lambda: warm.release("i"))
        assert counts == {
            "a node's first address": 3,
            "warm": 1,
            "warm release": 1,
            "cold": 3,
            "warm, the block changed": 4,
            "warm again": 1,
            "cold repeat": 2,
            "cold release": 3,
            "a pool was added": 4,
            "warm once more": 1,
            "first of a second family": 4,
            "both families warm": 1,
            "its release": 1,
        }
        world.audit()
