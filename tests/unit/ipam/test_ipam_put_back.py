"""A store is found put back to a backup: what was remembered is void, what was written undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from ipam.cache import UNKNOWN, Cache
from ipam.client import AddressRequest
from ipam.transaction import Transaction
from libtortie.datastore.port import Op, Record, Snapshot
from libtortie.errors import Conflict
from libtortie.model.keys import Affinities, HandleKey, Key, Scope
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import World, plain_pod, pool

BOTH = AddressRequest(ipv6=True)


@dataclass
class PutBack(FaultyStore):
    """`notice` is called after each answer, and may say that it was of an earlier state."""

    notice: Callable[[str], bool] = lambda what: False
    era: int = 0

    @property
    def rewinds(self) -> int:
        return self.era

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        done = super().commit(ops)
        self.era += self.notice("commit")
        return done


def first(what: str) -> Callable[[str], bool]:
    """True for the first answer to such a request."""
    seen: list[str] = []

    def notice(answered: str) -> bool:
        seen.append(answered)
        return answered == what and seen.count(what) == 1

    return notice


def world_with(*names: str) -> World:
    world = World().pools(
        pool("a", "10.0.0.0/28", blockSize=30), pool("b", "fd00::/124", blockSize=126)
    )
    for name in names:
        world.client().assign(name, plain_pod(name), BOTH)
    return world


def everything(world: World) -> dict[object, object]:
    """All that IPAM has stored."""
    found: dict[object, object] = {block.cidr: block for block in world.blocks()}
    found.update(world.handles())
    for key, value in world.affinities().items():
        found[key] = value
    return found


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("held", [("a",), ("a", "b")], ids=["its last", "one of two"])
def test_an_operation_is_taken_back_and_done_again(warm: bool, held: tuple[str, ...]) -> None:
    """Blocks and records that it made, changed or removed."""
    world = world_with(*held)
    store = PutBack(world.store)
    client = world.client(store=store)
    if warm:
        client.assign("warm", plain_pod("warm"), BOTH)
    states: list[object] = []
    store.before_commit = lambda _: states.append(everything(world))
    for work in (
        lambda: client.assign("new", plain_pod("new"), BOTH),
        lambda: client.release("a"),
    ):
        before = everything(world)
        states.clear()
        store.notice, store.commits = first("commit"), []
        assert work()
        assert len(store.commits) == 3, "done, taken back, done"
        assert states[0] == states[2] == before != states[1]
        world.audit()


def test_what_cannot_be_taken_back_any_more_is_found_again() -> None:
    """Another one came in between: the operation's own work counts, once."""
    world = world_with("a")
    store = PutBack(world.store, notice=first("commit"))

    def other(_: object) -> None:
        if len(store.commits) == 2:
            world.client().assign("other", plain_pod("other"), BOTH)

    store.before_commit = other
    assert len(world.client(store=store).assign("new", plain_pod("new"), BOTH)) == 2
    assert world.allocated() == {"a": 2, "new": 2, "other": 2}
    world.audit()


def test_nothing_is_written_on_what_was_read_before() -> None:
    world = world_with("a")
    store = PutBack(world.store)
    tx = Transaction(store)
    tx.remove(HandleKey("a"))
    store.era += 1
    with pytest.raises(Conflict, match="put back"):
        tx.commit()
    assert store.commits == []


def test_what_is_learnt_late_of_the_time_before_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One thread reads before the restore, another notices it, then the first goes on."""
    world = world_with("a")
    store, cache, key = PutBack(world.store), Cache("n1"), HandleKey("a")
    late = Transaction(store, cache)
    snapshot = store.snapshot

    def noticed(keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        found = snapshot(keys, scopes)
        store.era += 1
        Transaction(store, cache)
        return found

    monkeypatch.setattr(store, "snapshot", noticed)
    late.prefetch([key], [Affinities("n1")])
    assert cache.record(key) is UNKNOWN
    assert cache.listing(Affinities("n1")) is None


def test_what_was_remembered_is_read_anew() -> None:
    world = world_with()
    store = PutBack(world.store)
    client = world.client(store=store)
    client.assign("a", plain_pod("a"), BOTH)
    assert client._loop.cache is not None
    assert client._loop.cache.record(HandleKey("a")) is not UNKNOWN
    store.era += 1
    Transaction(store, client._loop.cache)
    assert client._loop.cache.record(HandleKey("a")) is UNKNOWN
    assert client._loop.cache.listing(Affinities("n1")) is None


def test_a_store_that_is_put_back_all_the_time_is_given_up() -> None:
    world = world_with("a")
    before = everything(world)
    store = PutBack(world.store, notice=lambda what: what == "commit")
    with pytest.raises(Conflict, match="put back to an earlier state"):
        world.client(store=store).assign("new", plain_pod("new"), BOTH)
    assert everything(world) == before
