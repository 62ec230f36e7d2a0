"""The store did what it was asked and its answer is lost, at every write of every operation.

An operation that may try again finds its own work. One that may not says so; then another
handle is never given what was stored for the first, and a repeat is given exactly that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from ipam.client import Retry
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.errors import TortieError, Unavailable
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.ipam_backends import Backend, MemoryBackend, etcd_backend
from tests.fakes.ipam_operations import (
    BY_NAME,
    CLIENTS,
    V4,
    Operation,
    give_back,
    judge,
    outcome,
    stored,
)
from tests.fakes.ipam_world import World, plain_pod
from tests.fakes.mortal_store import Outage, told
from tests.fakes.tcp_proxy import TcpProxy, tcp_proxy
from tests.property.test_ipam_clients import no_two_holders

ONCE = Retry(attempts=1)


def straight(backend: Backend, operation: Operation) -> tuple[int, object]:
    """How many writes an undisturbed operation makes, and what it leaves."""
    with backend.prepared(operation) as world:
        outage = Outage()
        operation.act(world, backend.mortal(world, outage))
        judge(operation, world, set())
        return outage.writes, outcome(world)


def judge_repeat(backend: Backend, operation: Operation, world: World) -> None:
    """Another handle comes first, then the same operation again."""
    world.audit(exact=backend.exact)
    no_two_holders(world)
    before = stored(world, operation.handle)
    world.client("n1", backend.seen(world)).assign("other", plain_pod("other"), V4)
    others = stored(world, "other")
    assert others
    assert others.isdisjoint(before)
    operation.act(world, backend.seen(world))
    assert others.isdisjoint(stored(world, operation.handle))
    judge(operation, world, before if operation.gives else set())
    give_back(world)


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_operation_that_tries_again_finds_its_own_work(stepwise: bool, name: str) -> None:
    backend, operation = MemoryBackend(stepwise), BY_NAME[name]
    writes, wanted = straight(backend, operation)
    assert writes
    for nth in range(1, writes + 1):
        with backend.prepared(operation) as world:
            outage = Outage(nth)
            operation.act(world, backend.mortal(world, outage))
            assert outage.writes >= nth
            judge(operation, world, set())
            if operation.settles:
                assert outcome(world) == wanted
            give_back(world)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("name", CLIENTS)
def test_caller_that_was_told_unavailable_repeats(stepwise: bool, lasting: bool, name: str) -> None:
    """`lasting`: the clean-up of a failed allocation has nobody to talk to, either."""
    backend, operation = MemoryBackend(stepwise), BY_NAME[name]
    writes, _ = straight(backend, operation)
    refused = 0
    for nth in range(1, writes + 1):
        with backend.prepared(operation) as world:
            store = backend.mortal(world, Outage(nth, lasting=lasting))
            try:
                operation.work(world.client(operation.node, store, retry=ONCE))
            except Unavailable:
                refused += 1
            judge_repeat(backend, operation, world)
    assert refused == writes


@pytest.fixture(scope="module")
def etcd(shared_etcd: EtcdMember) -> Iterator[Backend]:
    with etcd_backend(shared_etcd) as backend:
        yield backend


@pytest.fixture
def proxy(shared_etcd: EtcdMember) -> Iterator[TcpProxy]:
    with tcp_proxy(shared_etcd.port) as made:
        yield made


class Swallowing:
    """Lets a proxy lose the answer of commit number `nth`: it cuts once etcd has done it."""

    def __init__(self, member: EtcdMember, proxy: TcpProxy, nth: int) -> None:
        self.commits = 0
        self._member = member
        self._proxy = proxy
        self._nth = nth
        self._answered = threading.Event()
        self._cutter: threading.Thread | None = None

    def __call__(self, what: str) -> None:
        if what == "before commit":
            self.commits += 1
            if self.commits == self._nth:
                self._proxy.losing_replies.set()
                self._cutter = threading.Thread(target=self._cut, args=[_revision(self._member)])
                self._cutter.start()
        elif what == "after commit" and self._cutter is not None:
            self._answered.set()
            self._cutter.join()
            self._cutter = None
            self._proxy.losing_replies.clear()

    def _cut(self, before: int) -> None:
        while not self._answered.is_set():
            if _revision(self._member) > before:
                self._proxy.cut()
                return


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("name", CLIENTS)
def test_answer_of_etcd_is_lost_on_the_way(
    etcd: Backend, shared_etcd: EtcdMember, proxy: TcpProxy, name: str, patient: bool
) -> None:
    operation = BY_NAME[name]
    writes, wanted = straight(etcd, operation)
    assert writes
    for nth in range(1, writes + 1):
        config = EtcdConfig(proxy.url)
        with etcd.prepared(operation) as world, closing(EtcdDatastore(config)) as far:
            before = _revision(shared_etcd)
            swallowing = Swallowing(shared_etcd, proxy, nth)
            store = told(far, swallowing)
            if patient:
                operation.act(world, store)
                judge(operation, world, set())
                assert outcome(world) == wanted
            else:
                with pytest.raises(TortieError, match="gave up"):
                    operation.work(world.client(operation.node, store, retry=ONCE))
                judge_repeat(etcd, operation, world)
            assert swallowing.commits >= nth
            assert _revision(shared_etcd) >= before + nth, "etcd carried it out"


def _revision(member: EtcdMember) -> int:
    return int(member.ask("kv/range", {"key": "AA=="})["header"]["revision"])
