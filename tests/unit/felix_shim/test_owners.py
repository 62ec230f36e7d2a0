"""Owner swaps are retried until the store agrees, and only while they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from felix_shim.model import EndpointId
from felix_shim.owners import (
    AGREED_DELAY,
    LONGEST_DELAY,
    REFUSED_DELAY,
    RETRY,
    OwnerKeeper,
    Ownership,
)
from ipam.client import IPAMClient
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Listing, Record, Snapshot
from libtortie.errors import Conflict, OwnerMismatch, TortieError, Unauthorized, Unavailable
from libtortie.model.ipam import Owner
from libtortie.model.keys import Key, Scope
from tests.fakes.agent_world import RecordingLog
from tests.fakes.by_hand import Clock
from tests.fakes.faulty_store import FaultyStore

ENDPOINT = EndpointId("default", "tgt")


def wanted(episode: int = 1, pod: str = "tgt") -> dict[EndpointId, Ownership]:
    one = EndpointId("default", pod)
    return {one: Ownership(one, "handle", {"pod": pod}, episode)}


class Store:
    """Answers with what is set, and counts."""

    def __init__(self) -> None:
        self.answer: bool | TortieError = True
        self.calls: list[tuple[str, Owner]] = []

    def promote(self, handle: str, owner: Owner) -> bool:
        self.calls.append((handle, owner))
        if isinstance(self.answer, TortieError):
            raise self.answer
        return self.answer


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


@pytest.fixture
def keeper(store: Store, clock: Clock, log: RecordingLog) -> OwnerKeeper:
    return OwnerKeeper(store.promote, log, clock)


def test_one_attempt_when_the_store_agrees(
    keeper: OwnerKeeper, store: Store, clock: Clock, log: RecordingLog
) -> None:
    keeper.want(wanted())
    assert keeper.attempt_due() == 1
    clock.now += AGREED_DELAY - 1
    keeper.want(wanted())
    assert keeper.attempt_due() == 0
    assert store.calls == [("handle", {"pod": "tgt"})]
    assert log.of("owner_swapped")[0]["endpoint"] == ENDPOINT


def test_the_routes_of_a_cut_over_go_first(store: Store, clock: Clock, log: RecordingLog) -> None:
    """Wanted again meanwhile, it does not wait anew."""
    keeper = OwnerKeeper(store.promote, log, clock, 0.1)
    keeper.want(wanted())
    assert keeper.attempt_due() == 0
    clock.now += 0.06
    keeper.want(wanted())
    assert keeper.attempt_due() == 0
    clock.now += 0.06
    assert keeper.attempt_due() == 1
    assert len(store.calls) == 1


def test_what_agreed_once_is_looked_at_again_and_taken_back(
    keeper: OwnerKeeper, store: Store, clock: Clock, log: RecordingLog
) -> None:
    """An agent whose API was late may have taken the seat from this one."""
    keeper.want(wanted())
    assert keeper.attempt_due() == 1
    for answer, told in ((True, 1), (Unavailable("x"), 1), (True, 2)):
        store.answer = answer
        clock.now += AGREED_DELAY
        assert keeper.attempt_due() == 1
        assert len(log.of("owner_swapped")) == told


@pytest.mark.parametrize("error", [Unavailable("x"), Unauthorized("403"), Conflict("x"), False])
def test_retried_with_growing_delays_until_it_works(
    keeper: OwnerKeeper, store: Store, clock: Clock, error: bool | TortieError
) -> None:
    store.answer = error
    keeper.want(wanted())
    attempts = 0
    for _ in range(600):
        attempts += keeper.attempt_due()
        clock.now += 0.1
    assert 10 <= attempts <= 60 / LONGEST_DELAY + 10
    store.answer = True
    clock.now += LONGEST_DELAY
    assert keeper.attempt_due() == 1
    clock.now += LONGEST_DELAY
    assert keeper.attempt_due() == 0


def test_a_refusal_is_asked_again_only_now_and_then(
    keeper: OwnerKeeper, store: Store, clock: Clock, log: RecordingLog
) -> None:
    store.answer = OwnerMismatch("another pod")
    keeper.want(wanted())
    for _ in range(9):
        keeper.attempt_due()
        clock.now += REFUSED_DELAY / 3
    assert len(store.calls) == 3
    assert len(log.of("owner_swap_failed")) == 1, "the same complaint is made once"


def test_what_is_no_longer_wanted_is_dropped(keeper: OwnerKeeper, store: Store) -> None:
    keeper.want(wanted())
    keeper.want({})
    assert keeper.attempt_due() == 0
    assert store.calls == []


def test_one_claim_lasts_through_episodes_and_ends_when_it_is_given_up(
    keeper: OwnerKeeper, store: Store
) -> None:
    keeper.want(wanted())
    keeper.attempt_due()
    keeper.want(wanted(episode=4))
    assert keeper.attempt_due() == 0
    keeper.want({})
    keeper.want(wanted(episode=6))
    assert keeper.attempt_due() == 1


def test_one_refused_vm_does_not_hold_up_another(
    keeper: OwnerKeeper, store: Store, clock: Clock
) -> None:
    store.answer = OwnerMismatch("x")
    keeper.want(wanted())
    keeper.attempt_due()
    store.answer = True
    keeper.want({**wanted(), **wanted(pod="other")})
    assert keeper.attempt_due() == 1
    assert store.calls[-1][1] == {"pod": "other"}


def test_a_store_in_trouble_holds_up_a_promotion_for_moments_only() -> None:
    class Away(FaultyStore):
        """Answers nothing."""

        asked = 0

        def get(self, key: Key) -> Record:
            self.asked += 1
            raise Unavailable("no answer")

        def list(self, scope: Scope) -> Listing:
            self.asked += 1
            raise Unavailable("no answer")

        def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
            self.asked += 1
            raise Unavailable("no answer")

    store, pauses = Away(MemoryDatastore()), list[float]()
    client = IPAMClient(
        store, "n1", now=lambda: datetime.now(UTC), retry=RETRY, sleep=pauses.append
    )
    with pytest.raises(Unavailable):
        client.promote("handle", {"pod": "tgt"})
    assert store.asked == RETRY.attempts == 3
    assert sum(pauses) <= RETRY.seconds == 2
