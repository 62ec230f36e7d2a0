"""kill -9 of a process at every step of an IPAM operation, on a file and on an etcd.

The process is a real one and kills itself: before and after each call it makes of the store, and
at SQLite's own BEGIN and COMMIT. Then the operation is repeated by another.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.etcd_server import EtcdMember
from tests.fakes.ipam_backends import Backend, SqliteBackend, etcd_backend
from tests.fakes.ipam_operations import (
    BY_NAME,
    EVERYWHERE,
    Operation,
    give_back,
    judge,
    outcome,
    stored,
)
from tests.fakes.mortal_ipam import MortalIpam
from tests.fakes.mortal_parent import KILLED
from tests.property.test_ipam_clients import no_two_holders

MOST_STEPS = 200


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Backend, MortalIpam]]:
    backend = SqliteBackend(tmp_path_factory.mktemp("store"))
    with MortalIpam(tmp_path_factory.mktemp("mortal"), str(backend.path)) as mortal:
        yield backend, mortal


@pytest.fixture(scope="module")
def etcd(
    shared_etcd: EtcdMember, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Backend, MortalIpam]]:
    directory = tmp_path_factory.mktemp("mortal")
    with etcd_backend(shared_etcd) as backend, MortalIpam(directory, shared_etcd.url) as mortal:
        yield backend, mortal


def sweep(backend: Backend, mortal: MortalIpam, operation: Operation) -> list[str]:
    """Kill at one step after another until none is left; the steps that were died at."""
    died: list[str] = []
    results: list[object] = []
    for die_at in range(1, MOST_STEPS):
        with backend.prepared(operation) as world:
            ended = mortal.act(operation.name, world.now(), die_at=die_at)
            world.audit()
            no_two_holders(world)
            before = stored(world, operation.handle) if operation.gives else set()
            if ended.status == KILLED:
                assert len(ended.steps) == die_at
                died.append(ended.steps[-1])
                again = mortal.act(operation.name, world.now())
                assert again.status == 0, mortal.log()
            else:
                assert ended.status == 0, mortal.log()
            judge(operation, world, before)
            results.append(outcome(world))
            give_back(world)
        if ended.status == 0:
            assert list(ended.steps) == died, "every step was died at"
            assert all(result == results[-1] for result in results)
            return died
    raise AssertionError(f"{operation.name} does not end")


@pytest.mark.parametrize("name", EVERYWHERE)
def test_killed_at_every_step_on_a_file(sqlite: tuple[Backend, MortalIpam], name: str) -> None:
    died = sweep(*sqlite, BY_NAME[name])
    for step in ("before commit", "sqlite BEGIN IMMEDIATE", "sqlite COMMIT", "after commit"):
        assert step in died


@pytest.mark.parametrize("name", EVERYWHERE)
def test_killed_at_every_step_on_etcd(etcd: tuple[Backend, MortalIpam], name: str) -> None:
    died = sweep(*etcd, BY_NAME[name])
    for step in ("before commit", "after commit"):
        assert step in died
