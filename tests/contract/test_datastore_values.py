"""The datastore port's contract, over every backend: single values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest

from libtortie.datastore.port import (
    Check,
    Create,
    Datastore,
    Unchanged,
)
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
)
from libtortie.model.ipam import (
    AffinityState,
    Block,
    BlockAffinity,
    IPAMConfig,
)
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Handles,
    IPAMConfigKey,
    Key,
)
from libtortie.model.resources import IPPool, Resource
from tests.fakes.datastore_values import (
    CIDR,
    block,
    called,
    handle,
    handle_key,
    nets_of,
    network_set,
    set_key,
)


def test_get_of_what_is_not_there(store: Datastore) -> None:
    with pytest.raises(NotFound, match=called(handle_key())):
        store.get(handle_key())


VALUES: list[tuple[Key, object]] = [
    (handle_key(), handle()),
    (
        BlockKey(CIDR),
        replace(block(2**63 + 5), affinity_claim_time=datetime(2026, 1, 2, tzinfo=UTC)),
    ),
    (AffinityKey("n1", CIDR), BlockAffinity(AffinityState.PENDING)),
    (AffinityKey("n1", ip_network("fd00::/122")), BlockAffinity()),
    (IPAMConfigKey(), IPAMConfig(strict_affinity=True, max_blocks_per_host=3)),
    (set_key("w"), network_set(set_key("w"))),
]


@pytest.mark.parametrize(("key", "value"), VALUES, ids=[type(key).__name__ for key, _ in VALUES])
def test_every_kind_of_value_is_kept(store: Datastore, key: Key, value: object) -> None:
    created = store.create(key, value)  # type: ignore[arg-type]  # one of the port's values
    assert created.key == key
    if not isinstance(value, Resource):
        assert created.value == value
    assert store.get(key) == created
    updated = store.update(key, created.value, created.revision)
    assert updated.value == created.value
    assert store.get(key) == updated
    store.delete(key, updated.revision)
    with pytest.raises(NotFound):
        store.get(key)


def test_what_a_write_returns_is_what_is_stored(store: Datastore) -> None:
    claimed = replace(
        block(), affinity_claim_time=datetime(2026, 1, 2, 3, 4, 5, 999999, tzinfo=UTC)
    )
    created = store.create(BlockKey(CIDR), claimed)
    assert created == store.get(BlockKey(CIDR))
    assert isinstance(created.value, Block)
    assert created.value.affinity_claim_time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_create_of_what_is_there(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    with pytest.raises(AlreadyExists, match=called(handle_key())):
        store.create(handle_key(), handle(2))
    assert store.get(handle_key()) == first


def test_update_needs_the_revision_that_is_stored(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    second = store.update(handle_key(), handle(2), first.revision)
    with pytest.raises(Conflict, match=called(handle_key())):
        store.update(handle_key(), handle(3), first.revision)
    with pytest.raises(Conflict):
        store.update(handle_key(), handle(3), "no-revision")
    assert store.get(handle_key()) == second
    store.delete(handle_key())
    with pytest.raises(NotFound):
        store.update(handle_key(), handle(3), second.revision)


def test_delete_with_and_without_a_revision(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    second = store.update(handle_key(), handle(2), first.revision)
    with pytest.raises(Conflict):
        store.delete(handle_key(), first.revision)
    assert store.get(handle_key()) == second
    store.delete(handle_key())
    with pytest.raises(NotFound):
        store.delete(handle_key())
    with pytest.raises(NotFound):
        store.delete(handle_key(), second.revision)


def test_a_recreated_value_has_a_revision_of_its_own(store: Datastore) -> None:
    first = store.create(handle_key(), handle(1))
    store.delete(handle_key())
    again = store.create(handle_key(), handle(1))
    assert again.revision != first.revision
    with pytest.raises(Conflict):
        store.update(handle_key(), handle(2), first.revision)


def test_a_value_under_the_wrong_key_is_refused(store: Datastore) -> None:
    with pytest.raises(InvalidInput):
        store.create(handle_key(), block())
    with pytest.raises(InvalidInput):
        store.create(BlockKey(ip_network("10.0.0.0/30")), block())
    with pytest.raises(NotFound):
        store.get(handle_key())


def test_resources_get_a_uid_and_a_birthday_and_keep_them(store: Datastore) -> None:
    key = set_key("w")
    born = store.create(key, network_set(key))
    assert isinstance(born.value, Resource)
    marks = (born.value.metadata.uid, born.value.metadata.creation_timestamp)
    assert all(marks)
    rebuilt = store.update(key, network_set(key, "192.0.2.0/24"), born.revision)
    assert isinstance(rebuilt.value, Resource)
    assert (rebuilt.value.metadata.uid, rebuilt.value.metadata.creation_timestamp) == marks
    assert nets_of(rebuilt.value) == ["192.0.2.0/24"]
    store.delete(key)
    reborn = store.create(key, network_set(key))
    assert isinstance(reborn.value, Resource)
    assert reborn.value.metadata.uid != marks[0]


def test_a_callers_uid_survives_a_create(keeping_store: Datastore) -> None:
    store = keeping_store
    metadata = {"name": "p", "uid": "u-1", "creationTimestamp": "2020-01-01T00:00:00Z"}
    pool = IPPool.model_validate({"metadata": metadata, "spec": {"cidr": "10.0.0.0/16"}})
    assert store.create(pool.key, pool).value == pool
    assert store.get(pool.key).value == pool


def test_names_that_are_no_text_are_nowhere_and_refused(store: Datastore) -> None:
    """A lone surrogate has no bytes to be stored as; one comes from a file name or environment."""
    key, scope = handle_key("\ud800"), Affinities("\ud800")
    good = Create(handle_key("good"), handle())
    for write in (
        lambda: store.create(key, handle()),
        lambda: store.commit([good, Create(key, handle())]),
    ):
        with pytest.raises(InvalidInput, match=r"\\ud800"):
            write()
    asked: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.update(key, handle(), "1"),
        lambda: store.delete(key),
        lambda: store.commit([Check(key, "1"), good]),
        lambda: store.commit([Unchanged(scope, "no revision"), good]),
        lambda: store.list(scope),
        lambda: store.names(scope),
        lambda: store.snapshot([key], [scope]),
    ]
    for ask in asked:
        with contextlib.suppress(InvalidInput, NotFound, Conflict):
            ask()
    assert store.list(Handles()).records == ()
