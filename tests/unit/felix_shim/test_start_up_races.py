"""Nodes that start at once, stores that fail, processes killed anywhere in a start."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from libtortie.datastore.port import KeyOp, Op
from libtortie.errors import Unavailable
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import FelixConfiguration, Node
from tests.fakes.faulty_store import Fault, FaultyStore, Killed, StepwiseStore
from tests.fakes.kernel import FakeKernel
from tests.fakes.starting_node import (
    POOL,
    Machine,
    everything,
    lock,
    memory,
    pool_cidr,
    put,
    text,
)

# -- faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultyStore, StepwiseStore])
@pytest.mark.parametrize("fault", [one for one in Fault if one is not Fault.NONE])
@pytest.mark.parametrize("place", range(11))
def test_any_write_may_fail_and_any_step_be_killed(
    tmp_path: Path, kind: type[FaultyStore], fault: Fault, place: int
) -> None:
    whole, inner = memory(), memory()
    options = "default_pools: {ipv6: {cidr: 'fd00::/48'}}"
    Machine(tmp_path, whole, options=options).boot()
    store = kind(inner, [Fault.NONE] * place + [fault])
    machine = Machine(tmp_path, store, options=options)
    machine.over.wait = lambda timeout=None: False  # type: ignore[method-assign]  # no waiting
    try:
        machine.boot()
    except Killed:
        machine.boot()
    assert everything(inner) == everything(whole)


def test_a_store_that_is_away_is_waited_for_until_the_end(tmp_path: Path) -> None:
    class Away(FaultyStore):
        def get(self, key: Any) -> Any:
            raise Unavailable("no answer")

    machine = Machine(tmp_path, Away(memory()))
    waits = []

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        if len(waits) == 3:
            machine.over.set()
        return machine.over.is_set()

    machine.over.wait = wait  # type: ignore[method-assign]  # instead of waiting
    assert not machine.start().begin()
    assert len(waits) == 3
    assert len(machine.complaints()) == 1, "said once"


# -- races ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(10))
def test_another_node_may_start_between_any_two_writes(tmp_path: Path, place: int) -> None:
    """The other one runs from beginning to end just before the first one's write `place`."""
    inner = memory()
    other = Machine(tmp_path, inner, "node-2", "192.0.2.12/24")

    def before(ops: Sequence[Op]) -> None:
        if len(store.commits) == place + 1:
            other.boot()

    store = FaultyStore(inner, before_commit=before)
    first = Machine(tmp_path, store)
    assert first.boot().complete
    assert other.complaints() == first.complaints() == []
    found = everything(inner)
    assert {"Node node-1", "Node node-2"} < set(found)
    assert sum(key.startswith("IPPool") for key in found) == 2
    assert sum(key.startswith("ClusterInformation") for key in found) == 1


def test_many_nodes_at_once_on_threads(tmp_path: Path) -> None:
    inner = memory()
    machines = [
        Machine(tmp_path, inner, f"node-{n}", f"192.0.2.{n}/24", kernel=FakeKernel())
        for n in range(1, 9)
    ]
    threads = [threading.Thread(target=each.boot) for each in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    found = everything(inner)
    assert sum(key.startswith("Node ") for key in found) == 8
    assert sum(key.startswith("IPPool") for key in found) == 2
    assert [one.complaints() for one in machines] == [[]] * 8


def test_an_own_pool_made_just_before_the_default_one_wins(tmp_path: Path) -> None:
    inner = memory()

    def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, KeyOp) and op.key == POOL for op in ops):
            store.before_commit = lambda ops: None
            put(inner, Kind.IP_POOL, POOL.name, {"cidr": "10.65.0.0/16"})

    store = FaultyStore(inner, before_commit=before)
    Machine(tmp_path, store).boot()
    assert pool_cidr(inner) == "10.65.0.0/16"


def test_after_a_conflict_pools_are_looked_for_again(tmp_path: Path) -> None:
    inner = memory()

    def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, KeyOp) and op.key == POOL for op in ops):
            store.before_commit = lambda ops: None
            put(inner, Kind.IP_POOL, "mine", {"cidr": "10.65.0.0/16"})
            lock(inner, True)

    store = FaultyStore(inner, before_commit=before)
    Machine(tmp_path, store).boot()
    pools = {key for key in everything(inner) if key.startswith("IPPool")}
    assert pools == {"IPPool mine", "IPPool default-ipv6-ippool"}


def test_what_another_writer_adds_meanwhile_survives(tmp_path: Path) -> None:
    inner = memory()
    Machine(tmp_path, inner).boot()

    def label(ops: Sequence[Op]) -> None:
        store.before_commit = lambda ops: None
        key = ResourceKey(Kind.NODE, "node-1")
        record = inner.get(key)
        assert isinstance(record.value, Node)
        meta = record.value.metadata.model_copy(update={"labels": {"rack": "r1"}})
        inner.update(key, record.value.model_copy(update={"metadata": meta}), record.revision)

    store = FaultyStore(inner, before_commit=label)
    Machine(tmp_path, store, options="as_number: 65009").boot()
    stored = text(inner, Kind.NODE, "node-1")
    assert '"labels":{"rack":"r1"}' in stored
    assert '"asNumber":65009' in stored


def test_a_felix_configuration_deleted_meanwhile_is_made_anew(tmp_path: Path) -> None:
    inner = memory()
    key = ResourceKey(Kind.FELIX_CONFIGURATION, "default")
    put(inner, Kind.FELIX_CONFIGURATION, "default", {"reportingInterval": "1s"})

    def before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, KeyOp) and op.key == key for op in ops):
            store.before_commit = lambda ops: None
            inner.delete(key)

    store = FaultyStore(inner, before_commit=before)
    Machine(tmp_path, store).boot()
    found = inner.get(key).value
    assert isinstance(found, FelixConfiguration)
    assert found.spec.reporting_interval == "0s"
