"""The datastore port's contract, over every backend: lists, names and snapshots."""

from __future__ import annotations

import re
import threading
from ipaddress import ip_network

import pytest

from libtortie.datastore import etcd_reader
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.port import (
    Create,
    Datastore,
    Put,
    Unchanged,
    Update,
)
from libtortie.errors import (
    Conflict,
    Malformed,
)
from libtortie.model.ipam import (
    Block,
    BlockAffinity,
    IPAMConfig,
)
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    Resources,
    Scope,
    path_of,
)
from tests.contract.datastore_backends import BACKENDS, Harness
from tests.fakes.datastore_values import (
    CIDR,
    NOT_A_HANDLE,
    block,
    called,
    handle,
    handle_key,
    network_set,
    set_key,
)
from tests.fakes.followed import following, in_threads


def test_list_scopes_hold_their_own_and_nothing_else(store: Datastore) -> None:
    v6 = ip_network("fd00:10::/122")
    keys: dict[str, Key] = {
        "b4": BlockKey(CIDR),
        "b6": BlockKey(v6),
        "a1": AffinityKey("n1", CIDR),
        "a16": AffinityKey("n1", v6),
        "a10": AffinityKey("n10", CIDR),
        "av": AffinityKey("n1", ip_network("10.250.0.8/30"), "virtual"),
        "h": handle_key(),
        "c": IPAMConfigKey(),
        "w1": set_key("w"),
        "w2": set_key("w", "ns2"),
    }
    v6_block = Block(v6, None, (None,) * 64, tuple(range(64)))
    for name, key in keys.items():
        match key:
            case BlockKey():
                store.create(key, block() if name == "b4" else v6_block)
            case AffinityKey():
                store.create(key, BlockAffinity())
            case HandleKey():
                store.create(key, handle())
            case IPAMConfigKey():
                store.create(key, IPAMConfig())
            case ResourceKey():
                store.create(key, network_set(key))

    def listed(scope: object) -> set[Key]:
        listing = store.list(scope)  # type: ignore[arg-type]  # one of the scopes
        assert listing.malformed == ()
        assert [path_of(r.key) for r in listing.records] == sorted(
            path_of(r.key) for r in listing.records
        )
        assert all(store.get(record.key) == record for record in listing.records)
        assert store.names(scope) == tuple(record.key for record in listing.records)  # type: ignore[arg-type]  # the same
        return {record.key for record in listing.records}

    assert listed(Blocks(4)) == {keys["b4"]}
    assert listed(Blocks(6)) == {keys["b6"]}
    assert listed(Affinities()) == {keys["a1"], keys["a16"], keys["a10"]}
    assert listed(Affinities("n1")) == {keys["a1"], keys["a16"]}
    assert listed(Handles()) == {keys["h"]}
    assert listed(IPAMConfigKey()) == {keys["c"]}
    assert listed(Resources(Kind.NETWORK_SET)) == {keys["w1"], keys["w2"]}
    assert listed(Resources(Kind.NETWORK_SET, "ns")) == {keys["w1"]}
    assert listed(Resources(Kind.IP_POOL)) == set()
    assert listed(keys["w1"]) == {keys["w1"]}
    assert listed(set_key("w", "n")) == set()


def test_list_skips_malformed_values_and_names_them(harness: Harness) -> None:
    good = harness.store.create(handle_key("good"), handle())
    bad = handle_key("bad")
    harness.put_raw(path_of(bad), NOT_A_HANDLE)
    listing = harness.store.list(Handles())
    assert listing.records == (good,)
    assert len(listing.malformed) == 1
    assert re.search(f"{called(bad)}: block", listing.malformed[0])
    with pytest.raises(Malformed, match=called(bad)):
        harness.store.get(handle_key("bad"))


def test_parts_are_what_a_list_has(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that cannot be read; where it reads in pages, in several."""
    monkeypatch.setattr(etcd_reader, "PAGE", 3)
    monkeypatch.setattr(etcd_reader, "ANSWER", 1)
    store = harness.store
    assert [record for part in store.parts(Handles()) for record in part.records] == []
    for number in range(10):
        store.create(handle_key(f"h{number}"), handle(number))
    harness.put_raw(path_of(handle_key("h45")), NOT_A_HANDLE)
    listing = store.list(Handles())
    parts = [*store.parts(Handles())]
    assert tuple(record for part in parts for record in part.records) == listing.records
    assert tuple(text for part in parts for text in part.malformed) == listing.malformed != ()
    assert len(parts) == (4 if isinstance(store, EtcdDatastore) else 1)


def test_a_malformed_value_can_be_deleted(harness: Harness) -> None:
    harness.put_raw(path_of(handle_key("bad")), NOT_A_HANDLE)
    harness.store.delete(handle_key("bad"))
    assert harness.store.list(Handles()).malformed == ()


# -- names


def test_names_need_no_readable_value_but_a_readable_name(harness: Harness) -> None:
    harness.store.create(BlockKey(CIDR), block())
    bad = BlockKey(ip_network("10.250.0.0/30"))
    harness.put_raw(path_of(bad), b"[")
    harness.put_raw("/calico/ipam/v2/assignment/ipv4/block/10.250.0.5-30", b"{}")
    assert harness.store.names(Blocks(4)) == (bad, BlockKey(CIDR))


# -- snapshots


def test_a_snapshot_is_what_get_and_list_would_say(harness: Harness) -> None:
    store = harness.store
    one = store.create(handle_key("one"), handle(1))
    store.create(BlockKey(CIDR), block())
    bad = handle_key("bad")
    harness.put_raw(path_of(bad), NOT_A_HANDLE)
    there, absent = IPAMConfigKey(), set_key("w")
    setting = store.create(there, IPAMConfig(strict_affinity=True))
    keys: list[Key] = [handle_key("one"), absent, bad, there, handle_key("one")]
    scopes: list[Scope] = [Handles(), Blocks(4), Blocks(6), there, absent]
    found = store.snapshot(keys, scopes)
    assert found.records == {one.key: one, there: setting}
    assert list(found.broken) == [bad]
    with pytest.raises(Malformed) as error:
        store.get(bad)
    assert found.broken[bad] == str(error.value)
    assert list(found.listings) == scopes
    for scope in scopes:
        listing = store.list(scope)
        assert found.listings[scope].records == listing.records
        assert found.listings[scope].malformed == listing.malformed


def test_a_snapshot_of_nothing(store: Datastore) -> None:
    found = store.snapshot([])
    assert (found.records, found.listings, found.broken) == ({}, {}, {})
    assert store.snapshot([handle_key()]).records == {}
    assert store.snapshot([], [Handles()]).listings[Handles()].records == ()


def test_a_snapshots_listing_starts_a_watch_and_guards_a_commit(store: Datastore) -> None:
    store.create(handle_key("before"), handle())
    revision = store.snapshot([handle_key("before")], [Handles()]).listings[Handles()].revision
    store.commit([Unchanged(Handles(), revision)])
    first = store.create(handle_key("after"), handle())
    with following(store, Handles(), revision) as follow:
        assert follow.next() == Put(first)
    with pytest.raises(Conflict):
        store.commit([Unchanged(Handles(), revision)])


def test_a_snapshot_of_many_keys(store: Datastore) -> None:
    keys = [handle_key(f"h{i:03}") for i in range(300)]
    for key in keys[::3]:
        store.create(key, handle())
    found = store.snapshot(keys, [Handles(), Blocks(4)])
    assert list(found.records) == keys[::3]
    assert [record.key for record in found.listings[Handles()].records] == keys[::3]


def test_no_snapshot_sees_half_a_commit(atomic_harness: Harness) -> None:
    """Two handles always hold the same count, also while they are being rewritten."""
    store, other = atomic_harness.store, atomic_harness.other
    left, right = handle_key("left"), handle_key("right")
    store.commit([Create(left, handle(0)), Create(right, handle(0))])
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = other.snapshot([right], [Handles()])
            records = [*found.listings[Handles()].records, found.records[right]]
            assert len({str(record.value) for record in records}) == 1

    def write() -> None:
        try:
            for count in range(1, 100):
                old = store.snapshot([left, right]).records.values()
                store.commit([Update(r.key, handle(count), r.revision) for r in old])
        finally:
            done.set()

    in_threads(3, lambda number: read() if number else write())


def test_atomic_is_what_the_suite_was_told(
    store: Datastore, request: pytest.FixtureRequest
) -> None:
    assert store.atomic == BACKENDS[request.node.callspec.params["harness"]].atomic
