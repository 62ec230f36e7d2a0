"""etcd: listings and snapshots of many pages, at one revision, in few round trips."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import closing

import pytest

from libtortie.datastore import etcd_reader
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.port import Create, Record, Update
from libtortie.errors import (
    InvalidInput,
)
from libtortie.model.keys import HandleKey, Handles
from tests.fakes.etcd_client import DEADLINE, KEY, handle, store_at
from tests.fakes.etcd_server import EtcdMember


def test_a_list_of_many_pages_is_of_one_revision(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two handles move together: no listing sees them differ, though pages lie between them."""
    monkeypatch.setattr(etcd_reader, "PAGE", 3)
    monkeypatch.setattr(etcd_reader, "ANSWER", 1)
    first, last = HandleKey("a"), HandleKey("z")
    enough = threading.Event()
    with closing(store_at(member.url)) as store, closing(store_at(member.url)) as writer:
        store.commit([Create(HandleKey(f"m{i:02}"), handle()) for i in range(20)])
        records: tuple[Record | None, ...] = writer.commit(
            [Create(key, handle(0)) for key in (first, last)]
        )

        def write() -> None:
            current = records
            for count in itertools.count(1):
                current = writer.commit(
                    [Update(r.key, handle(count), r.revision) for r in current if r is not None]
                )
                if enough.is_set():
                    return

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        seen: set[str] = set()
        ends = time.monotonic() + DEADLINE
        try:
            while len(seen) < 20:
                listing = store.list(Handles())
                found = {record.key: record for record in listing.records}
                assert len(found) == 22
                assert found[first].value == found[last].value
                assert int(found[first].revision) <= int(listing.revision)
                seen.add(found[first].revision)
                assert time.monotonic() < ends, "they do not move"
        finally:
            enough.set()
            thread.join(DEADLINE)


def test_a_list_whose_revision_is_compacted_begins_anew(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_reader, "PAGE", 5)
    calls = 0

    def told(method: str) -> None:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:  # before every second page
            member.compact()

    with closing(EtcdDatastore(EtcdConfig(member.url), on_call=told)) as store:
        store.commit([Create(HandleKey(f"h{i:02}"), handle()) for i in range(20)])
        calls = 0
        assert len(store.list(Handles()).records) == 20
        assert calls == 2 * etcd_reader.RESTARTS + 1


def test_a_snapshot_is_one_round_trip_and_of_one_revision_however_much_is_read_on(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    with closing(EtcdDatastore(EtcdConfig(member.url), on_call=calls.append)) as store:
        keys = [HandleKey(f"h{i:03}") for i in range(127)]
        store.commit([Create(key, handle()) for key in keys[:100]])
        calls.clear()
        whole = store.snapshot(keys, [Handles()])
        assert calls == ["/etcdserverpb.KV/Txn"]
        assert len(whole.records) == len(whole.listings[Handles()].records) == 100
        calls.clear()
        assert store.names(Handles()) == tuple(keys[:100])
        assert calls == ["/etcdserverpb.KV/Range"]
        calls.clear()
        monkeypatch.setattr(etcd_reader, "PAGE", 30)
        monkeypatch.setattr(etcd_reader, "ANSWER", 1)
        assert store.snapshot([*keys, KEY], [Handles()]).listings == whole.listings
        assert calls == ["/etcdserverpb.KV/Txn"] + 4 * ["/etcdserverpb.KV/Range"]


def test_later_answers_have_as_many_rows_as_their_size_allows(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd looks at all that is left for each answer: many small ones take the square of it."""
    monkeypatch.setattr(etcd_reader, "PAGE", 3)
    calls: list[str] = []
    with closing(EtcdDatastore(EtcdConfig(member.url), on_call=calls.append)) as store:
        keys = [HandleKey(f"h{i:03}") for i in range(100)]
        store.commit([Create(key, handle()) for key in keys])
        for rows, answers in ((97, 2), (49, 3)):
            monkeypatch.setattr(etcd_reader, "ANSWER", rows * 100)  # each counts 100 bytes at least
            calls.clear()
            assert [one.key for one in store.list(Handles()).records] == keys
            assert len(calls) == answers


def test_what_is_read_on_is_of_the_first_answers_revision(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_reader, "PAGE", 5)
    with closing(store_at(member.url)) as writer:
        records = [writer.create(HandleKey(f"h{i}"), handle()) for i in range(9)]

        def told(method: str) -> None:
            calls.append(method)
            if len(calls) == 2:
                writer.commit([Update(r.key, handle(2), r.revision) for r in records])

        calls: list[str] = []
        with closing(EtcdDatastore(EtcdConfig(member.url), on_call=told)) as store:
            assert store.list(Handles()).records == tuple(records)
            assert len(calls) == 2
            assert all(r.value == handle(2) for r in store.list(Handles()).records)


def test_keys_that_are_no_text_are_named(member: EtcdMember) -> None:
    member.put(b"/calico/ipam/v2/handle/\xff", b"{}")
    member.put("/calico/ipam/v2/handle/a/b", b"not json")
    with closing(store_at(member.url)) as store:
        good = store.create(KEY, handle())
        listing = store.list(Handles())
        assert listing.records == (good,)
        assert len(listing.malformed) == 2
        assert any("not UTF-8" in one for one in listing.malformed)
        with pytest.raises(InvalidInput, match="cannot be stored"):
            store.create(HandleKey("\ud800"), handle())
