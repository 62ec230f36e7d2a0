"""What only etcd has: transactions, pages, deadlines, fail-over, lost answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig, Timing
from libtortie.datastore.port import Check, Create, Delete, Update
from libtortie.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    TortieError,
    Unavailable,
)
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey, Handles, Kind, ResourceKey, parse_path, path_of
from libtortie.model.resources import IPPool
from tests.fakes.calico_texts import changed, changed_text, stored_texts
from tests.fakes.certificates import Authority
from tests.fakes.etcd_client import BRISK, DEADLINE, KEY, eventually, handle, retime, store_at
from tests.fakes.etcd_server import EtcdMember, etcd_members
from tests.fakes.patience import CALM
from tests.fakes.tcp_proxy import silent_server, tcp_proxy

HASTY = Timing(call=0.6, attempt=0.3, silence=0.2, patience=0.5)


def counted(url: str) -> tuple[EtcdDatastore, list[str]]:
    calls: list[str] = []
    return EtcdDatastore(EtcdConfig(url), on_call=calls.append), calls


# -- transactions


def test_a_commit_is_one_round_trip(member: EtcdMember) -> None:
    store, calls = counted(member.url)
    with closing(store):
        first = store.create(KEY, handle())
        store.get(KEY)
        calls.clear()
        store.commit(
            [
                Update(KEY, handle(2), first.revision),
                Create(HandleKey("h2"), handle()),
                Check(HandleKey("h3"), None),
            ]
        )
        assert calls == ["/etcdserverpb.KV/Txn"]


def test_an_update_of_a_resource_without_marks_reads_them_first(member: EtcdMember) -> None:
    store, calls = counted(member.url)
    pool = IPPool.model_validate({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16"}})
    with closing(store):
        born = store.create(pool.key, pool)
        calls.clear()
        again = store.update(pool.key, pool, born.revision)
        assert len(calls) == 2
        assert again.value == born.value
        calls.clear()
        store.update(pool.key, again.value, again.revision)
        assert len(calls) == 1


def test_a_commit_holds_128_operations_and_no_more(member: EtcdMember) -> None:
    with closing(store_at(member.url)) as store:
        ops = [Create(HandleKey(f"h{i}"), handle()) for i in range(129)]
        with pytest.raises(InvalidInput, match="129 operations: etcd takes at most 128"):
            store.commit(ops)
        assert store.list(Handles()).records == ()
        assert len(store.commit(ops[:128])) == 128
        assert len(store.list(Handles()).records) == 128


def test_the_servers_own_limit_is_named(tmp_path: Path) -> None:
    with (
        etcd_members(tmp_path, arguments=["--max-txn-ops=2"]) as (one,),
        closing(store_at(one.url)) as store,
        pytest.raises(InvalidInput, match="too many operations"),
    ):
        store.commit([Create(HandleKey(f"h{i}"), handle()) for i in range(3)])


def test_a_value_that_is_too_large_is_refused(member: EtcdMember) -> None:
    blocks = {ip_network((i * 4, 30)): 10**18 for i in range(60_000)}
    with closing(store_at(member.url)) as store:
        with pytest.raises(InvalidInput, match=r"too large|larger than max"):
            store.create(KEY, Handle(blocks))
        assert store.list(Handles()).records == ()


@pytest.mark.parametrize("revision", ["", "0", "-1", "01", "9" * 30, "x", "\u0663"])
def test_a_revision_that_etcd_never_gives_matches_nothing(
    member: EtcdMember, revision: str
) -> None:
    """Revision 0 is what etcd says of a key that is not there: an update must not create it."""
    absent = HandleKey("absent")
    with closing(store_at(member.url)) as store:
        store.create(KEY, handle())
        for op in (
            Update(absent, handle(9), revision),
            Delete(absent, revision),
            Check(absent, revision),
            Update(KEY, handle(9), revision),
            Delete(KEY, revision),
            Check(KEY, revision),
        ):
            with pytest.raises(Conflict):
                store.commit([op])
        assert [record.value for record in store.list(Handles()).records] == [handle()]


def test_revisions_are_mod_revisions_and_the_bytes_calicos(member: EtcdMember) -> None:
    with closing(store_at(member.url)) as store:
        one = store.create(KEY, handle())
        two = store.create(HandleKey("h2"), handle(7))
        three = store.update(KEY, handle(3), one.revision)
        stored = member.read("/calico/ipam/v2/handle/h1")
        assert stored is not None
        assert stored["value"] == b'{"block":{"10.250.0.4/30":3},"deleted":false}'
        assert str(stored["mod_revision"]) == three.revision
        assert int(one.revision) < int(two.revision) < int(three.revision)
        listing = store.list(Handles())
        assert listing.records == (three, two)
        assert listing.revision == three.revision


def test_what_calico_stores_is_rewritten_byte_for_byte_but_for_what_changed(
    member: EtcdMember,
) -> None:
    texts = stored_texts("calico_etcd_unknown.txt")
    with closing(store_at(member.url)) as store:
        for path, text in texts.items():
            member.put(path, text.encode())
            read = store.get(parse_path(path))
            store.update(read.key, changed(read.value), read.revision)
            stored = member.read(path)
            assert stored is not None
            assert stored["value"].decode() == changed_text(text)
            assert stored["version"] == 2


def test_an_update_gives_what_older_writers_left_without_a_birthday_one(
    member: EtcdMember,
) -> None:
    path = path_of(ResourceKey(Kind.IP_POOL, "pool-a"))
    text = stored_texts("calico_etcd.txt")[path].replace('"2026-08-22T13:30:00Z"', "null")
    member.put(path, text.encode())
    now = datetime(2026, 9, 1, tzinfo=UTC)
    config = EtcdConfig(member.url)
    with closing(EtcdDatastore(config, now=lambda: now)) as store:
        read = store.get(ResourceKey(Kind.IP_POOL, "pool-a"))
        store.update(read.key, read.value, read.revision)
    stored = member.read(path)
    assert stored is not None
    assert stored["value"].decode() == text.replace("null", '"2026-09-01T00:00:00Z"')


# -- deadlines, fail-over


class Attempt:
    """A call on a thread of its own, and the error that it ends with."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: TortieError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except TortieError as error:
            self._error = error

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def error(self) -> TortieError | None:
        self._thread.join(DEADLINE)
        assert self.is_over()
        return self._error


def each_call(store: EtcdDatastore) -> list[Callable[[], object]]:
    return [
        lambda: store.get(KEY),
        lambda: store.list(Handles()),
        lambda: store.create(KEY, handle()),
        lambda: store.update(KEY, handle(), "1"),
        lambda: store.delete(KEY),
        lambda: store.delete(KEY, "1"),
        lambda: store.commit([Check(KEY, None)]),
        lambda: list(store.watch(Handles(), "1")),
    ]


@pytest.mark.parametrize("call", range(8))
@pytest.mark.parametrize("secure", [False, True])
def test_a_silent_server_costs_a_deadline_and_no_more(
    tmp_path: Path, call: int, secure: bool
) -> None:
    scheme, more = "http", {}
    if secure:
        scheme, more = "https", {"ca_cert_file": str(Authority(tmp_path).cert)}
    with (
        silent_server() as port,
        closing(store_at(f"{scheme}://127.0.0.1:{port}", timing=HASTY, **more)) as store,
    ):
        error = Attempt(each_call(store)[call]).error()
        assert isinstance(error, Unavailable)
        assert f"127.0.0.1:{port}" in str(error)


def test_a_server_that_is_no_etcd_is_unavailable() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with closing(store_at(f"http://127.0.0.1:{server.server_port}", timing=HASTY)) as store:
            for call in each_call(store):
                with pytest.raises(Unavailable):
                    call()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE)


def test_dead_and_silent_endpoints_are_passed_over(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_server() as port, tcp_proxy(port) as dead:
        dead.close()
        urls = [dead.url, f"http://127.0.0.1:{port}", member.url]
        for first in range(3):
            for ordered in (urls[first:] + urls[:first], urls[::-1]):
                with closing(store_at(*ordered, timing=replace(CALM, attempt=0.7))) as store:
                    written = store.create(KEY, handle())  # also a write, as the first call
                    assert store.get(KEY) == written
                    store.delete(KEY)


def test_the_runtimes_web_proxy_is_not_asked(
    member: EtcdMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with closing(store_at(member.url)) as store:
        assert store.list(Handles()).records == ()


# -- lost answers


def revision_of(member: EtcdMember) -> int:
    return int(member.ask("kv/range", {"key": "AA=="})["header"]["revision"])


@pytest.mark.parametrize("cut", [True, False], ids=["connection cut", "deadline"])
def test_an_answer_lost_after_the_commit_is_unavailable_and_nothing_is_sent_twice(
    member: EtcdMember, cut: bool
) -> None:
    with (
        tcp_proxy(member.port) as proxy,
        closing(store_at(proxy.url)) as store,
        closing(store_at(member.url)) as direct,
    ):
        first = store.create(KEY, handle(1))
        retime(store, call=CALM.call if cut else BRISK.call)
        for lost in (
            lambda: store.update(KEY, handle(2), first.revision),
            lambda: store.create(HandleKey("new"), handle()),
            lambda: store.commit([Create(HandleKey("new2"), handle())]),
            lambda: store.delete(KEY),
        ):
            before = revision_of(member)
            proxy.losing_replies.set()
            attempt = Attempt(lost)
            end = time.monotonic() + DEADLINE
            while (after := revision_of(member)) == before:
                assert time.monotonic() < end, "never committed"
                if attempt.is_over() and revision_of(member) == before:
                    attempt = Attempt(lost)  # its time was over before it was sent
            if cut:
                proxy.cut()
            error = attempt.error()
            proxy.losing_replies.clear()
            proxy.cut()
            assert type(error) is Unavailable
            assert "outcome unknown" in str(error)
            eventually(lambda: store.list(Handles()))
            assert after == before + 1
            assert revision_of(member) == after
        with pytest.raises(NotFound):
            direct.get(KEY)
        assert len(direct.list(Handles()).records) == 2


def test_a_broken_connection_costs_a_read_nothing(member: EtcdMember) -> None:
    with tcp_proxy(member.port) as proxy, closing(store_at(proxy.url)) as store:
        record = store.create(KEY, handle())
        for _ in range(5):
            proxy.cut()
            assert store.get(KEY) == record
        assert proxy.accepted >= 5
