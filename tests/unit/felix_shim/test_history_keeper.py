"""Migrations' steps become facts, and the spool is emptied however long the datastore is away."""

from __future__ import annotations

import io
import threading
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from felix_shim.history_keeper import REFUSED_SECONDS, TROUBLE_SECONDS, HistoryKeeper, step_of
from felix_shim.migration_table import Input, State
from felix_shim.model import EndpointId
from felix_shim.telemetry import Telemetry
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Record, Value
from libtortie.errors import TortieError, Unauthorized, Unavailable
from libtortie.history import history, record_name
from libtortie.history_spool import Spool
from libtortie.jsonlog import JsonLog
from libtortie.model.history import Fact, Facts, Step, What
from libtortie.model.keys import History, HistoryKey, Key
from libtortie.past_migrations import migrations
from tests.fakes.agent_world import RecordingLog

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
ENDPOINT = EndpointId("shop", "virt-launcher-db-b")
ADDRESSES = (ip_address("10.65.0.7"),)


class Moody(MemoryDatastore):
    """A store that may be away, and says when it took a record."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: TortieError | None = None
        self.took = threading.Event()

    def create(self, key: Key, value: Value) -> Record:
        if self.trouble is not None:
            raise self.trouble
        made = super().create(key, value)
        self.took.set()
        return made


class Scene:
    def __init__(self, directory: Path, *, prunes: bool = False) -> None:
        self.store = Moody()
        self.told = RecordingLog()
        spool = Spool(directory / "history.spool")
        self.keeper = HistoryKeeper(self.store, spool, "n2", self.told, lambda: NOW, prunes=prunes)
        self.log = JsonLog(io.StringIO(), level="error")
        self.log.listen(self.keeper.hear)

    def facts(self) -> tuple[Fact, ...]:
        self.keeper.attempt()
        return history(self.store).facts

    def add(self, **fields: object) -> None:
        whose = {"vmi": "db", "vmi_uid": "u", "pod_uid": "p", "addresses": ADDRESSES, **fields}
        self.log.info("endpoint_added", endpoint=ENDPOINT, **whose)

    def move(self, before: State, after: State, uid: str = "") -> None:
        self.log.info(
            "migration_transition",
            **{"from": before},
            endpoint=ENDPOINT,
            to=after,
            input=Input.SIGN,
            migration_uid=uid,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_migrations_steps_are_facts(scene: Scene) -> None:
    scene.add()
    scene.move(State.BASE, State.TARGET, "m-1")
    scene.log.info("sign", endpoint=ENDPOINT, kind="rarp")
    scene.log.info("route_raised", endpoint=ENDPOINT, dst="10.65.0.7/32", latency_ms=1.5)
    scene.move(State.TARGET, State.LIVE, "m-1")
    scene.move(State.LIVE, State.TIME_WAIT, "m-1")
    scene.log.info("convergence_held", endpoint=ENDPOINT)
    scene.move(State.TIME_WAIT, State.BASE, "m-1")
    facts = scene.facts()
    assert {one.details["step"] for one in facts} == {
        Step.PREPARED, Step.HEARD, Step.RAISED, Step.CONVERGENCE_HELD, Step.SETTLED,
    }  # fmt: skip
    assert {(one.what, one.vm, one.addresses) for one in facts} == {
        (What.MIGRATION, "db", ADDRESSES)
    }
    (one,) = migrations(facts)
    assert (one.migration_uid, one.target, one.outcome) == ("m-1", "n2", "settled")
    assert one.sign_to_route_ms == 1.5


def test_what_telemetry_measures_of_a_migration_is_a_fact(scene: Scene) -> None:
    telemetry = Telemetry(realtime=lambda: 100.0)
    telemetry.reached = scene.keeper.reached
    scene.log.listen(telemetry.told)

    def arrives() -> None:
        scene.log.info("sign", endpoint=ENDPOINT, kind="rarp", kernel_ns=99_000_000_000)
        scene.log.info("route_raised", endpoint=ENDPOINT, dst="10.65.0.7/32", latency_ms=1.5)

    scene.add()
    arrives()
    assert scene.facts() == (), "of no migration that is known"
    scene.move(State.BASE, State.TARGET, "m-1")
    arrives()
    (one,) = migrations(scene.facts())
    assert (one.downtime_ms, one.sign_to_route_ms) == (1.5, 1.5)


def test_where_bird_is_asked_the_answer_may_be_late(scene: Scene) -> None:
    telemetry = Telemetry()
    telemetry.reached = scene.keeper.reached
    scene.add()
    scene.move(State.BASE, State.TARGET, "m-1")
    scene.move(State.TARGET, State.LIVE, "m-1")
    telemetry.exported(ENDPOINT, heard=99.0, raised=99.5, now=100.0)
    assert migrations(scene.facts())[0].downtime_ms == 1000.0
    scene.log.info("endpoint_removed", endpoint=ENDPOINT)
    telemetry.exported(ENDPOINT, heard=99.0, raised=99.5, now=100.0)
    telemetry.exported("not one of ours", heard=99.0, raised=99.5, now=100.0)
    assert [one.details["step"] for one in scene.facts()].count("reached") == 1


def test_an_agent_that_begins_in_the_middle_knows_the_migration_by_its_next_line(
    scene: Scene,
) -> None:
    scene.add()
    scene.log.info("sign", endpoint=ENDPOINT, kind="rarp")
    assert scene.facts() == (), "of which migration is not known"
    scene.log.info("migration_begun", endpoint=ENDPOINT, state="target", migration_uid="m-1")
    scene.log.info("sign", endpoint=ENDPOINT, kind="rarp")
    assert [one.details["step"] for one in scene.facts()] == ["prepared", "heard"]


def test_a_pod_that_is_no_vms_and_one_that_is_gone_have_no_migrations(scene: Scene) -> None:
    scene.log.info("endpoint_added", endpoint=ENDPOINT, addresses=ADDRESSES)
    scene.move(State.BASE, State.TARGET, "m-1")
    scene.add()
    scene.log.info("endpoint_removed", endpoint=ENDPOINT)
    scene.move(State.BASE, State.TARGET, "m-1")
    scene.log.info("sign", kind="rarp")
    scene.log.info("sign", endpoint="not one of ours", kind="rarp")
    assert scene.facts() == ()
    assert not scene.keeper._known and not scene.keeper._moving


def test_a_step_is_not_written_where_it_is_heard(scene: Scene) -> None:
    """The reconciler's thread does not wait for a disk."""
    scene.add()
    scene.move(State.BASE, State.TARGET, "m-1")
    assert not scene.keeper.spool.path.exists()
    scene.keeper.stop()
    scene.keeper.run()
    assert scene.keeper.spool.path.exists(), "a stop leaves it to the next start"


@pytest.mark.parametrize(
    ("event", "fields", "step"),
    [
        ("migration_begun", {"state": "live"}, None),
        ("migration_transition", {"from": "base", "to": "departed"}, None),
        ("migration_transition", {"from": "target", "to": "suppressed"}, Step.LEFT),
        ("migration_transition", {"from": "target", "to": "refused"}, Step.REFUSED),
        ("migration_transition", {"from": "departed", "to": "base"}, None),
        ("migration_transition", {"from": "live", "to": "time-wait"}, None),
        ("policy_gate_late", {}, Step.GATE_LATE),
        ("policy_gate_held", {}, Step.GATE_HELD),
        ("settings", {}, None),
    ],
)
def test_which_lines_are_steps(event: str, fields: dict[str, object], step: Step | None) -> None:
    assert step_of(event, fields) is step


@pytest.mark.parametrize(
    ("trouble", "pause"),
    [(Unavailable("no answer"), TROUBLE_SECONDS), (Unauthorized("403"), REFUSED_SECONDS)],
)
def test_a_datastore_that_does_not_take_it_is_asked_again_and_told_of_once(
    scene: Scene, trouble: TortieError, pause: float
) -> None:
    scene.keeper.write([Fact(NOW, What.GRANTED, "n2")])
    scene.store.trouble = trouble
    assert [scene.keeper.attempt() for _ in range(3)] == [pause] * 3
    assert len(scene.told.of("history_waits")) == 1
    scene.store.trouble = None
    assert scene.keeper.attempt() == 0
    assert len(scene.facts()) == 1


def test_the_thread_stores_what_comes_and_ends_when_told(scene: Scene) -> None:
    thread = threading.Thread(target=scene.keeper.run)
    thread.start()
    scene.keeper.write([Fact(NOW, What.GRANTED, "n2")])
    assert scene.store.took.wait(60)
    scene.keeper.stop()
    thread.join(60)
    assert not thread.is_alive()
    scene.keeper.write([Fact(NOW, What.RELEASED, "n2")])
    assert len(history(scene.store).facts) == 1, "the rest is in the spool"
    assert len(scene.facts()) == 2


def test_where_nobody_else_prunes_the_agent_does(tmp_path: Path) -> None:
    scene = Scene(tmp_path, prunes=True)
    old = HistoryKey("pod", record_name(datetime(2020, 1, 1, tzinfo=UTC), "x"))
    scene.store.create(old, Facts((Fact(NOW, What.GRANTED, "n2"),)))
    gone = threading.Event()
    real = scene.store.delete

    def delete(key: Key, revision: str | None = None) -> None:
        real(key, revision)
        gone.set()

    scene.store.delete = delete  # type: ignore[method-assign]  # a latch
    thread = threading.Thread(target=scene.keeper.run)
    thread.start()
    assert gone.wait(60)
    scene.keeper.stop()
    thread.join(60)
    assert scene.store.names(History("pod")) == ()
