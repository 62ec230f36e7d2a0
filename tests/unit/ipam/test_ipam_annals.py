"""What commits did to addresses becomes facts, whoever staged it and however it was committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from ipam.annals import Annals, facts_of
from ipam.block import assign, new_block, release
from ipam.client import AddressRequest, IPAMClient
from libtortie.model.history import Fact, What
from libtortie.model.keys import IPNetwork
from libtortie.model.plain_ip import plain_network
from libtortie.past_migrations import migrations
from tests.fakes.faulty_store import Fault, FaultyStore, StepwiseStore
from tests.fakes.ipam_world import START, World, plain_pod, pool, vm_pod

HANDLE = "k8s-pod-network.vmi.shop.db"
BOTH = AddressRequest(ipv6=True)
SOURCE = vm_pod("src", node="n1")
TARGET = vm_pod("dst", node="n2", vmim_uid="m-1")
CIDR: IPNetwork = plain_network("10.0.0.0/29", strict=True)


@dataclass
class Book:
    """A world whose clients' deeds are written down."""

    world: World = field(
        default_factory=lambda: World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    )
    facts: list[Fact] = field(default_factory=list)

    def client(self, node: str, **options: object) -> IPAMClient:
        return self.world.client(node, annals=self.annals(node), **options)  # type: ignore[arg-type]  # as given

    def annals(self, node: str) -> Annals:
        return Annals(node, self.world.now, self.facts.extend)

    def told(self) -> list[tuple[What, str, str, str]]:
        """(what, by, pod, before) since the last time."""
        found = [(one.what, one.by, one.pod, one.before) for one in self.facts]
        self.facts.clear()
        return found


def test_a_vms_life_is_told() -> None:
    book = Book()
    got = book.client("n1").claim_vm(HANDLE, SOURCE, BOTH)
    (fact,) = book.facts
    assert fact.addresses == tuple(one.address for one in got)
    assert (fact.namespace, fact.vm, fact.node) == ("shop", "db", "n1")
    assert book.told() == [(What.GRANTED, "n1", "src", "")]

    book.client("n2").claim_vm_target(HANDLE, TARGET)
    (fact,) = book.facts
    assert fact.details == {"source": "n1", "migration_uid": "m-1"}
    (seen,) = migrations(book.facts)
    assert (seen.source, seen.target, seen.outcome) == ("n1", "n2", "running")
    assert book.told() == [(What.TARGETED, "n2", "dst", "src")]

    book.client("n2").promote(HANDLE, TARGET)
    assert book.facts[0].details == {"source": "n1", "migration_uid": "m-1"}
    assert book.told() == [(What.PROMOTED, "n2", "dst", "src")]

    book.client("n1").disown_vm(HANDLE, SOURCE, vm_deleting=False)
    assert book.told() == [], "the former source left: nobody's address changed"
    book.client("n2").disown_vm(HANDLE, TARGET, vm_deleting=False)
    assert book.told() == [(What.HANDED_OVER, "n2", "", "dst")]

    again = vm_pod("again", node="n3", vmi_uid="vmi-2")
    book.client("n3").claim_vm(HANDLE, again, BOTH)
    assert book.told() == [(What.HANDED_OVER, "n3", "again", "")]
    book.client("n3").disown_vm(HANDLE, again, vm_deleting=True)
    assert book.told()[-1][0] is What.RELEASED
    assert not book.world.allocated()


def test_a_pods_life_is_told_with_its_handle() -> None:
    book = Book()
    client = book.client("n1")
    client.assign("net.c-web", plain_pod("web"), AddressRequest())
    client.release("net.c-web")
    granted, released = book.facts
    assert (granted.what, released.what) == (What.GRANTED, What.RELEASED)
    assert granted.handle_id == released.handle_id == "net.c-web"
    assert (granted.vm, granted.pod, released.pod) == ("", "web", "web")
    assert granted.addresses == released.addresses != ()


def test_a_repeat_and_a_read_tell_nothing() -> None:
    book = Book()
    client = book.client("n1")
    client.claim_vm(HANDLE, SOURCE, BOTH)
    book.told()
    client.claim_vm(HANDLE, SOURCE, BOTH)
    client.by_handle(HANDLE)
    client.promote(HANDLE, SOURCE)
    assert book.told() == []


def test_what_was_not_committed_is_not_told() -> None:
    book = Book()
    store = FaultyStore(book.world.store, [Fault.CONFLICT, Fault.CONFLICT])
    book.client("n1", store=store).claim_vm(HANDLE, SOURCE, BOTH)
    assert len(book.facts) == 1


def test_a_release_with_a_cool_down_is_told_once() -> None:
    book = Book()
    book.world.config(cooldown_seconds=30)
    client = book.client("n1")
    client.assign("net.c-web", plain_pod("web"), AddressRequest())
    client.release("net.c-web")
    book.world.later(60)
    client.assign("net.c-app", plain_pod("app"), AddressRequest())
    assert [what for what, *_ in book.told()] == [What.GRANTED, What.RELEASED, What.GRANTED]


def test_a_commit_that_stopped_half_way_tells_what_was_written() -> None:
    """Without transactions: one family's block is written when another is faster with the next."""
    book = Book()
    book.world.client("n1").claim_vm("net.vmi.shop.first", vm_pod("first", vm="first"), BOTH)
    store = StepwiseStore(book.world.store)
    stops: list[int] = []

    def others_first(done: int) -> None:
        if done == 2 and not stops:
            stops.append(done)
            book.world.client("n1").claim_vm("net.vmi.shop.x", vm_pod("x", vm="x"), BOTH)

    store.between = others_first
    got = book.client("n1", store=store).claim_vm(HANDLE, SOURCE, BOTH)
    assert stops
    assert len(book.facts) == 2, "a fact for each commit that wrote something"
    told = [address for fact in book.facts for address in fact.addresses]
    assert sorted(map(str, told)) == sorted(str(one.address) for one in got)
    assert {fact.what for fact in book.facts} == {What.GRANTED}


def test_many_addresses_are_one_fact_of_bounded_size() -> None:
    cidr = plain_network("10.1.0.0/24", strict=True)
    empty = new_block(cidr, node="n1", now=START)
    full, _ = assign(empty, 256, handle_id="h", owner=plain_pod("web"))
    (fact,) = facts_of([(empty, full)], "n1", START)
    assert len(fact.addresses) == 64
    assert str(fact.addresses[0]) == "10.1.0.0"


@pytest.mark.parametrize("swap", [False, True])
def test_another_handles_address_is_released_and_granted(swap: bool) -> None:
    empty = new_block(CIDR, node="n1", now=START)
    one, _ = assign(empty, 1, handle_id="h1", owner=plain_pod("a"))
    other, _ = assign(empty, 1, handle_id="h2", owner=plain_pod("b"))
    changes = (other, one) if swap else (one, other)
    facts = facts_of([changes], "n1", START)
    assert [fact.what for fact in facts] == [What.RELEASED, What.GRANTED]


def test_a_block_that_goes_with_its_last_address_releases_it() -> None:
    empty = new_block(CIDR, node="n1", now=START)
    held, _ = assign(empty, 1, handle_id="h1", owner=plain_pod("a"))
    told: Callable[..., Sequence[Fact]] = facts_of
    assert [fact.what for fact in told([(held, None)], "n1", START)] == [What.RELEASED]
    assert told([(None, held)], "n1", START)[0].what is What.GRANTED
    assert told([(None, None), (empty, None), (None, empty)], "n1", START) == ()
    cooling = release(held, [0], now=START, cooldown=30)
    assert told([(cooling, None)], "n1", START) == ()
