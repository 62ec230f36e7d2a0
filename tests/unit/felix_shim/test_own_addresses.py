"""When the agent looks after its node's own addresses, what it says, what wakes it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from felix_shim import own_addresses
from felix_shim.cluster import BGP, FELIX, NODES, POOLS
from felix_shim.events import Event, Instance, InSync, Listed, Stored, Unstored
from felix_shim.own_addresses import (
    PERIOD_SECONDS,
    TROUBLE_SECONDS,
    OwnAddresses,
    encrypted,
)
from ipam.attempts import Attempts
from ipam.client import AddressRequest
from ipam.tunnels import IPIP, WIREGUARD_V6, stated_in
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Record
from libtortie.model.keys import Kind, ResourceKey, path_of
from libtortie.model.resources import ClusterInformation, FelixConfigurationSpec, Node
from tests.fakes.agent_world import RecordingLog
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool

NODE = ResourceKey(Kind.NODE, "n1")
DEADLINE = 60.0


@dataclass
class Bench:
    world: World = field(default_factory=World)
    log: RecordingLog = field(default_factory=RecordingLog)

    def __post_init__(self) -> None:
        self.world.resource(Kind.NODE, "n1", {})
        self.world.pools(pool("a", "10.0.0.0/24", ipipMode="Always"))

    def keeper(self, **fields: Any) -> OwnAddresses:
        store = self.world.store
        attempts = Attempts(store, UNHURRIED, time.monotonic, lambda seconds: None)
        return OwnAddresses(store, self.world.client(), attempts, "n1", self.log, **fields)

    def stated(self) -> str:
        node = self.world.store.get(NODE).value
        assert isinstance(node, Node)
        return stated_in(node, IPIP)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_pass_gives_what_is_needed_says_so_and_rests(bench: Bench) -> None:
    keeper = bench.keeper()
    assert keeper.attempt() == PERIOD_SECONDS
    address = bench.stated()
    assert bench.log.lines == [("tunnel_address", {"type": IPIP.type, "address": address})]
    assert keeper.attempt() == PERIOD_SECONDS
    assert len(bench.log.lines) == 1
    bench.world.pools(pool("a", "10.0.0.0/24"))
    keeper.attempt()
    assert bench.log.lines[1] == ("tunnel_address", {"type": IPIP.type, "address": ""})
    assert not bench.stated()


def test_with_pod_cidrs_there_are_none(bench: Bench) -> None:
    assert bench.keeper(pod_cidr=True).attempt() == PERIOD_SECONDS
    assert not bench.stated()
    assert bench.world.allocated() == {}


def test_wireguard_is_felixs_to_switch_on(bench: Bench) -> None:
    bench.world.pools(pool("b", "fd00::/64"))
    bench.world.resource(Kind.FELIX_CONFIGURATION, "default", {"wireguardEnabledV6": True})
    bench.keeper().attempt()
    handle = WIREGUARD_V6.handle_id("n1")
    assert len(bench.world.client().by_handle(handle)) == 1
    bench.world.resource(Kind.FELIX_CONFIGURATION, "node.n1", {"wireguardEnabledV6": False})
    bench.keeper().attempt()
    assert bench.world.client().by_handle(handle) == ()


@pytest.mark.parametrize(
    ("specs", "families"),
    [
        ([], set()),
        ([{}], set()),
        ([{"wireguardEnabled": True}], {4}),
        (
            [{"wireguardEnabled": True, "wireguardEnabledV6": True}, {"wireguardEnabled": False}],
            {6},
        ),
        ([{"wireguardEnabled": False}, {"wireguardEnabled": True}], {4}),
    ],
)
def test_families_that_are_encrypted(specs: list[dict[str, Any]], families: set[int]) -> None:
    assert encrypted(map(FelixConfigurationSpec.model_validate, specs)) == families


def test_an_empty_block_of_no_use_is_given_up(bench: Bench) -> None:
    bench.keeper().attempt()
    bench.world.store.delete(ResourceKey(Kind.IP_POOL, "a"))
    bench.keeper().attempt()
    assert [name for name, _ in bench.log.lines][-2:] == ["tunnel_address", "block_given_up"]
    assert bench.world.blocks() == []


def test_trouble_is_said_once_and_tried_again_soon(bench: Bench) -> None:
    bench.world.pools(pool("a", "10.0.0.0/32", blockSize=32, ipipMode="Always"))
    bench.world.client().assign("h", plain_pod("p"), AddressRequest())
    keeper = bench.keeper()
    assert [keeper.attempt(), keeper.attempt()] == [TROUBLE_SECONDS] * 2
    (said,) = bench.log.of("own_addresses_wait")
    assert str(said["reason"]).startswith("ipipTunnelAddress: no free IPv4 address")
    bench.world.client().release("h")
    assert keeper.attempt() == PERIOD_SECONDS
    assert bench.stated() == "10.0.0.0"


@pytest.mark.parametrize("kind", [Kind.NODE, Kind.FELIX_CONFIGURATION])
def test_what_cannot_be_read_is_waited_for(bench: Bench, kind: Kind) -> None:
    name = "n1" if kind is Kind.NODE else "default"
    assert isinstance(bench.world.store, MemoryDatastore)
    bench.world.store.put_raw(path_of(ResourceKey(kind, name)), b"{")
    assert bench.keeper().attempt() == TROUBLE_SECONDS
    (said,) = bench.log.of("own_addresses_wait")
    assert path_of(ResourceKey(kind, name)) in str(said["reason"])


def test_a_locked_datastore_is_waited_for(bench: Bench) -> None:
    wire = {"metadata": {"name": "default"}, "spec": {"datastoreReady": False}}
    locked = ClusterInformation.model_validate(wire)
    bench.world.put(locked.key, locked)
    keeper = bench.keeper()
    assert keeper.attempt() == TROUBLE_SECONDS
    bench.world.store.delete(locked.key)
    assert keeper.attempt() == PERIOD_SECONDS
    assert bench.stated()


def record(key: ResourceKey) -> Record:
    wire = {"metadata": {"name": key.name}}
    return Record(key, Node.model_validate(wire), "1")


OTHER = ResourceKey(Kind.NODE, "n2")


@pytest.mark.parametrize(
    ("event", "wakes"),
    [
        (Listed(POOLS, ()), True),
        (Listed(FELIX, ()), True),
        (Listed(NODES, ()), True),
        (Listed(BGP, ()), False),
        (Unstored(POOLS, ResourceKey(Kind.IP_POOL, "a")), True),
        (Stored(NODES, record(NODE)), True),
        (Unstored(NODES, NODE), True),
        (Stored(NODES, record(OTHER)), False),
        (Unstored(NODES, OTHER), False),
        (InSync(Instance, frozenset()), False),
    ],
)
def test_what_wakes_it(bench: Bench, event: Event, wakes: bool) -> None:
    keeper = bench.keeper()
    keeper.notice(event)
    assert keeper._nudged.is_set() is wakes


def test_a_change_is_seen_to_and_a_stop_ends_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_addresses, "SPACING_SECONDS", 0.001)
    passes: list[float] = []
    turn = threading.Condition()
    keeper = bench.keeper()

    class Counted(OwnAddresses):
        def attempt(self) -> float:
            with turn:
                passes.append(super().attempt())
                turn.notify_all()
            return passes[-1]

    keeper = Counted(keeper.store, keeper.ipam, keeper.attempts, "n1", keeper.log)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    with turn:
        assert turn.wait_for(lambda: passes, DEADLINE)
        before = len(passes)
    bench.world.pools(pool("a", "10.0.0.0/24"))
    keeper.notice(Listed(POOLS, ()))
    with turn:
        assert turn.wait_for(lambda: len(passes) > before, DEADLINE)
    keeper.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert not bench.stated()
