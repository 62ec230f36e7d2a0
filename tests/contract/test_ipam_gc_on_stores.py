"""Garbage collection over every datastore: each flaw, damaged records, a real API's pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from ipam.check import examine
from ipam.client import AddressRequest
from ipam.gc import Means, Outcome, opinions
from lab.apiserver.errors import ApiError
from lab.apiserver.faults import CloseConnection, Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.kube import client as kube_client
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.model.ipam import Attribute, Handle
from libtortie.model.keys import BlockKey, HandleKey, path_of
from tests.contract.datastore_backends import BACKENDS
from tests.fakes.faulty_store import Fault as StoreFault
from tests.fakes.faulty_store import FaultyStore, Killed, StepwiseStore
from tests.fakes.gc_world import BOTH, Town, flaws, mess
from tests.fakes.ipam_world import World, plain_pod
from tests.fakes.kube import FakeKube
from tests.fakes.kubernetes_store import kubernetes_api, put_raw, stores_of
from tests.fakes.mortal_store import Countdown, told

PLAIN = [name for name in BACKENDS if not name.startswith("kubernetes")]


@contextmanager
def _kubernetes(group: Group) -> Iterator[tuple[Town, Any]]:
    """Nodes, pods and IPAM's records are all objects of one API."""
    with kubernetes_api() as server, stores_of(server, group) as (store,):
        fake = FakeKube()
        fake.api = server.api
        town = Town(World(store), fake, stores_nodes=False)
        yield town, lambda path, data: put_raw(server, group, path, data)


@pytest.fixture(params=[*PLAIN, Group.V1, Group.V3])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Town, Any]]:
    """A town over a datastore, and what writes bytes into that past every check."""
    if isinstance(request.param, Group):
        with _kubernetes(request.param) as made:
            yield made
    else:
        with BACKENDS[request.param].open(request) as harness:
            yield Town(World(harness.store)), harness.put_raw


def test_every_flaw_is_mended_and_nothing_that_lives_is_freed(place: tuple[Town, Any]) -> None:
    town, _ = place
    mess(town)
    before = town.held
    town.sweep()
    assert len(flaws(town)) >= 5
    town.settle(3)
    assert flaws(town) == set()
    assert len(before - town.held) == 1, "the one leaked address"
    town.world.audit()
    means = Means(town.world.store, town.reader, town.world.now)
    problems = examine(opinions(means)).problems
    assert problems == ()


def test_killed_after_each_commit_the_next_passes_finish(place: tuple[Town, Any]) -> None:
    town, _ = place
    mess(town)
    town.sweep()
    for _ in range(12):
        try:
            town.sweep(FaultyStore(town.world.store, [StoreFault.KILLED_AFTER]))
        except Killed:
            town.memory = {}
            town.sweep()
            continue
        break
    town.settle(2)
    assert flaws(town) == set()
    town.world.audit()


@pytest.mark.parametrize("stepwise", [False, True])
def test_killed_at_every_call_of_the_store(stepwise: bool) -> None:
    """Reads included; without transactions between any two writes of a commit, too."""
    calls = _dying_pass(0, stepwise)
    assert calls > 40
    for number in range(1, calls + 1):
        _dying_pass(number, stepwise)


def _dying_pass(die_at: int, stepwise: bool) -> int:
    """A town whose second pass dies at a call, and what the next passes make of it."""
    town = Town()
    mess(town)
    town.sweep()
    before, countdown = town.held, Countdown(die_at)
    store = told(town.world.store, countdown)
    try:
        town.sweep(StepwiseStore(store) if stepwise else store)
    except Killed:
        town.memory = {}
    town.settle(3)
    assert flaws(town) == set(), die_at
    assert len(before - town.held) == 1, die_at
    town.world.audit()
    return len(countdown.steps)


def test_a_damaged_block_and_handle_are_named_and_the_others_work(
    place: tuple[Town, Any],
) -> None:
    town, put = place
    (broken, _) = town.start("broken", want=BOTH)
    (leaked, _) = town.start("leaked", "n2", want=BOTH)
    town.run("odd", "n2")
    (block,) = [one for one in town.world.blocks() if broken in one.cidr]
    put(path_of(BlockKey(block.cidr)), b'{"cidr":"10.65.0.0/30","allocations":[7]}')
    put(path_of(HandleKey("k8s-pod-network.c-odd")), b'{"block":"none"}')
    town.remove_pod("leaked")
    town.settle(3)
    assert town.last is not None
    unreadable = " ".join(town.last.opinions.inventory.unreadable)
    name = str(block.cidr).replace("/", "-")
    assert name in unreadable or name.replace(".", "-") in unreadable
    assert "c-odd" in unreadable
    assert str(leaked) not in town.held
    assert "k8s-pod-network.c-broken" in town.world.handles()
    assert town.outcome("handle k8s-pod-network.c-broken") is Outcome.KEEP
    assert block.cidr in {key.cidr for key in town.world.affinities()}


def test_empty_handles_go_once_they_are_old_enough(place: tuple[Town, Any]) -> None:
    town, _ = place
    town.start("web")
    for number in range(40):
        counts = {ip_network("10.65.0.64/30"): 1} if number % 2 else {}
        town.world.put(HandleKey(f"old-{number}"), Handle(counts))
    town.sweep()
    town.world.put(HandleKey("young"), Handle({}))
    town.sweep()
    assert set(town.world.handles()) == {"k8s-pod-network.c-web", "young"}
    town.sweep()
    assert set(town.world.handles()) == {"k8s-pod-network.c-web"}
    town.world.audit()


def test_an_address_that_was_left_to_nobody_is_free_again(place: tuple[Town, Any]) -> None:
    """As an older Calico leaves one that was cooling down: an attribute `{}`."""
    town, _ = place
    town.world.config(cooldown_seconds=60)
    town.start("lives")
    (address,) = town.start("web")
    town.stop("web")
    town.remove_pod("web")
    for block in town.world.blocks():
        kept = tuple(Attribute() if one.released_at else one for one in block.attributes)
        town.world.put(BlockKey(block.cidr), replace(block, attributes=kept))
    assert str(address) in town.held
    town.settle(2)
    assert len(town.held) == 1
    town.world.audit()
    want = AddressRequest(addresses=(ip_address(address),))
    (again,) = town.world.client("n1").assign("net.c9", plain_pod("x"), want)
    assert again.address == address


def test_an_empty_handle_that_is_used_meanwhile_is_kept(place: tuple[Town, Any]) -> None:
    """It is deleted at the revision that was judged, not by its name."""
    town, _ = place
    town.world.put(HandleKey("k8s-pod-network.c-late"), Handle({}))
    town.sweep()
    store = FaultyStore(town.world.store)

    def late(_: object) -> None:
        store.before_commit = lambda ops: None
        town.start("late")

    store.before_commit = late
    town.sweep(store)
    assert len(town.held) == 1
    assert set(town.world.handles()) == {"k8s-pod-network.c-late"}
    town.world.audit()


# -- a real API ---------------------------------------------------------------------------------


@pytest.fixture
def cluster(server: ApiServer) -> Iterator[Town]:
    """A town whose API is asked over HTTP, with a leaked address."""
    fake = FakeKube()
    fake.api = server.api
    town = Town(kube=fake)
    with closing(HttpKubeClient(direct(server.url))) as client:
        town.reader = client
        town.start("web")
        town.start("app")
        town.remove_pod("web")
        yield town


def test_over_http_what_is_gone_is_freed(cluster: Town) -> None:
    cluster.settle(2)
    assert len(cluster.held) == 1


def test_a_list_whose_second_page_fails_is_no_list(
    cluster: Town, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_client, "PAGE", 1)
    real = server.api.list

    def second_fails(*args: Any, continuation: str = "", **options: Any) -> Any:
        if continuation:
            raise ApiError(500, "InternalError", "the second page is lost")
        return real(*args, continuation=continuation, **options)

    monkeypatch.setattr(server.api, "list", second_fails)
    cluster.settle()
    assert len(cluster.held) == 2
    assert cluster.last is not None
    assert any("second page is lost" in one.reason for one in cluster.last.verdicts)
    monkeypatch.setattr(server.api, "list", real)
    cluster.settle(2)
    assert len(cluster.held) == 1


@pytest.mark.parametrize("verb", ["list", "get"])
@pytest.mark.parametrize(
    "action", [Reject(403, "Forbidden"), Reject(500), Reject(429), CloseConnection()]
)
def test_a_refusing_or_broken_api_frees_nothing(
    cluster: Town, server: ApiServer, verb: str, action: Any
) -> None:
    server.faults.add(Fault(action, verb=verb, resource="pods"))
    cluster.settle()
    assert len(cluster.held) == 2
    server.faults.clear()
    cluster.settle(2)
    assert len(cluster.held) == 1
