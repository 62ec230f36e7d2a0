"""The wall clock jumps: revisions, their order, deadlines and watches do not care."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore, Put
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import Conflict, Unavailable
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import IPPool
from libtortie.model.times import rfc3339
from tests.fakes.datastore_race import race
from tests.fakes.etcd_client import BRISK
from tests.fakes.etcd_server import EtcdMember
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.followed import following
from tests.fakes.sqlite_files import heard, worker

YEARS = (2026, 1970, 2100, 2025, 2026, 1999)
POOLS = Resources(Kind.IP_POOL)

Clock = Callable[[], datetime]
Open = Callable[[Clock], Datastore]


class Lent(FaultyStore):
    """A store that its borrower does not close."""

    def close(self) -> None:
        pass


@pytest.fixture(params=["memory", "sqlite", "etcd"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """How to open a store that is told the time; all that it opens share their data."""
    if request.param == "memory":
        kept: list[Datastore] = []

        def memory(now: Clock) -> Datastore:
            if kept:
                return Lent(kept[0])
            kept.append(MemoryDatastore(now=now))
            return kept[0]

        return memory
    if request.param == "sqlite":
        return lambda now: SqliteDatastore(tmp_path / "tortie.db", now=now)
    member: EtcdMember = request.getfixturevalue("member")
    return lambda now: EtcdDatastore(EtcdConfig(member.url), timing=BRISK, now=now)


def jumping() -> Clock:
    years = itertools.cycle(YEARS)
    return lambda: datetime(next(years), 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def wild(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process' wall clock is another at every look. (gRPC looks once for each deadline and
    goes on by a clock that cannot jump, which this would hide: nothing of etcd's is tested so.)
    """
    looks = itertools.cycle([0.0, 4e9, 1.7e9, 1e9])
    monkeypatch.setattr(time, "time", lambda: next(looks))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(looks)) * 10**9)
    yield


def pool(number: int) -> IPPool:
    wire = {"metadata": {"name": f"p{number}"}, "spec": {"cidr": f"10.{number}.0.0/16"}}
    return IPPool.model_validate(wire)


def test_revisions_go_up_and_birthdays_stay(open_store: Open) -> None:
    with closing(open_store(jumping())) as store:
        start = store.list(POOLS).revision
        with following(store, POOLS, start) as follow:
            born = [store.create(pool(number).key, pool(number)) for number in range(12)]
            again = [store.update(one.key, pool(i), one.revision) for i, one in enumerate(born)]
            records = [*born, *again]
            assert follow.take(24) == [Put(record) for record in records]
        revisions = [int(record.revision) for record in records]
        assert revisions == sorted(set(revisions))
        for year, (one, two) in zip(itertools.cycle(YEARS), zip(born, again, strict=True)):
            assert isinstance(one.value, IPPool)
            created = one.value.metadata.creation_timestamp
            assert created == rfc3339(datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC))
            assert two.value == one.value
            with pytest.raises(Conflict):
                store.delete(one.key, one.revision)


def test_writers_and_a_reader_go_on(open_store: Open) -> None:
    with (
        closing(open_store(jumping())) as judge,
        race(lambda: open_store(jumping()), judge) as running,
    ):
        running.progress(100)


@pytest.mark.usefixtures("wild")
@pytest.mark.parametrize("open_store", ["memory", "sqlite"], indirect=True)
def test_no_deadline_of_ours_looks_at_the_wall_clock(open_store: Open) -> None:
    with (
        closing(open_store(jumping())) as judge,
        race(lambda: open_store(jumping()), judge) as running,
    ):
        running.progress(100)
    assert running.doubtful == []


@pytest.mark.usefixtures("wild")
def test_a_lock_is_waited_for_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "tortie.db"
    with closing(SqliteDatastore(path, timeout=0.3)) as store, worker("hold", path) as process:
        assert heard(process) == "held"
        with pytest.raises(Unavailable, match="locked by another process"):
            store.create(pool(1).key, pool(1))
        threading.Timer(0.1, process.kill).start()
        with closing(SqliteDatastore(path, timeout=60)) as patient:
            patient.create(pool(1).key, pool(1))
