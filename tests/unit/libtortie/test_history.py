"""What the history says, how much of it there is, and how it gets there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from libtortie.datastore.history_codec import facts_from_wire
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore, Record, Value
from libtortie.errors import Malformed, Unavailable
from libtortie.history import (
    PORTION,
    Bounds,
    Direct,
    history,
    keep,
    outdated,
    prune,
    pruned,
    record_name,
    sentence,
    time_of,
)
from libtortie.history_spool import Spool, read_facts
from libtortie.model.history import Fact, Facts, Lane, Step, What, from_wire, to_wire
from libtortie.model.keys import History, HistoryKey, Key
from libtortie.past_migrations import migrations
from tests.fakes.agent_world import RecordingLog

NOW = datetime(2026, 8, 22, 13, 30, 0, 125000, tzinfo=UTC)
ADDRESS = ip_address("10.65.0.7")


def fact(what: What = What.GRANTED, *, after: float = 0.0, **fields: Any) -> Fact:
    given = {"addresses": (ADDRESS,), "namespace": "shop", "vm": "db", "pod": "l-a", "node": "n1"}
    return Fact(NOW + timedelta(seconds=after), what, "n1", **{**given, **fields})


def step(step: Step, after: float, node: str = "n2", **details: str) -> Fact:
    more = {"step": step.value, "migration_uid": "m1", **details}
    return fact(What.MIGRATION, after=after, pod="l-b", node=node, details=more)


class Refusing(MemoryDatastore):
    """Takes so many records and then is away."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.takes = takes

    def create(self, key: Key, value: Value) -> Record:
        if not self.takes:
            raise Unavailable("no answer")
        self.takes -= 1
        return super().create(key, value)


# -- the values


def test_a_fact_reads_back_as_it_was() -> None:
    full = fact(handle_id="k8s.vmi.shop.db", before="l-0", details={"migration_uid": "m1"})
    assert from_wire("x", json.loads(json.dumps(to_wire(full)))) == full
    bare = Fact(NOW, What.RELEASED, "n1")
    assert from_wire("x", to_wire(bare)) == bare


def test_fields_of_another_version_are_passed_over() -> None:
    wire = {**to_wire(fact()), "colour": "red", "details": {"new": 1}}
    assert from_wire("x", wire).details == {"new": "1"}


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        {},
        {"at": "yesterday", "what": "granted"},
        {"at": "2026-08-22T13:30:00Z", "what": "stolen"},
        {"at": "2026-08-22T13:30:00Z", "what": "granted", "addresses": ["10.65.0.777"]},
        {"at": "2026-08-22T13:30:00Z", "what": "granted", "addresses": 7},
        {"at": "2026-08-22T13:30:00Z", "what": "granted", "details": "x"},
    ],
)
def test_what_is_no_fact_is_malformed(wire: object) -> None:
    with pytest.raises(Malformed, match=r"^here: "):
        from_wire("here", wire)


def test_texts_from_outside_are_cut() -> None:
    wire = to_wire(fact(pod="p" * 5000, details={"reason": "r" * 5000}))
    assert len(wire["pod"]) == len(wire["details"]["reason"]) == 1024


# -- reading


def told(store: Datastore, **about: Any) -> list[What]:
    return [one.what for one in history(store, **about).facts]


def test_facts_are_found_by_vm_address_and_time() -> None:
    store = MemoryDatastore()
    other = ip_address("10.65.0.8")
    keep(store, [fact(after=5, what=What.RELEASED), fact()], "a")
    keep(store, [fact(What.PROMOTED, vm="web", addresses=(other,))], "b")
    keep(store, [fact(What.HANDED_OVER, vm="", after=9)], "c")
    assert told(store, vm=("shop", "db")) == [What.GRANTED, What.RELEASED]
    assert told(store, vm=("other", "db")) == []
    assert told(store, address=other) == [What.PROMOTED]
    assert told(store, address=ADDRESS) == [What.GRANTED, What.RELEASED, What.HANDED_OVER]
    assert told(store, since=NOW + timedelta(seconds=5)) == [What.RELEASED, What.HANDED_OVER]
    assert told(store, vm=("shop", "db"), since=NOW + timedelta(seconds=5)) == [What.RELEASED]


def test_a_record_that_cannot_be_read_is_named_and_hides_nothing() -> None:
    store = MemoryDatastore()
    keep(store, [fact()], "a")
    with store._writing() as rows:
        rows.put("/tortie/v1/history/vm/0000000000001-0123456789ab", b'{"facts": 7}')
    found = history(store)
    assert [one.what for one in found.facts] == [What.GRANTED]
    (text,) = found.unreadable
    assert text == "/tortie/v1/history/vm/0000000000001-0123456789ab: facts: not a list"


def test_a_kind_of_facts_that_a_newer_program_knows_hides_no_others() -> None:
    newer = {"at": "2026-08-22T13:30:00Z", "what": "of-a-newer-agent"}
    assert facts_from_wire("here", {"facts": [newer, to_wire(fact())]}) == Facts((fact(),))
    with pytest.raises(
        Malformed, match="only of kinds unknown to this version: 'of-a-newer-agent'"
    ):
        facts_from_wire("here", {"facts": [newer]})
    with pytest.raises(Malformed, match=r"facts\[0\]"):
        facts_from_wire("here", {"facts": [{"at": newer["at"]}, to_wire(fact())]})


def test_repeating_what_was_kept_changes_nothing() -> None:
    store = MemoryDatastore()
    facts = [fact(after=n) for n in range(PORTION + 1)] + [fact(vm="")]
    for _ in range(2):
        keep(store, facts, "n1")
    assert len(history(store).facts) == PORTION + 2
    assert [len(store.names(History(lane))) for lane in Lane] == [2, 1]


# -- bounds


def test_names_sort_by_time_and_tell_it() -> None:
    names = [record_name(NOW + timedelta(days=n), "x") for n in range(3)]
    assert names == sorted(names)
    assert time_of(names[0]) == NOW
    for name in ("", "x", "1-2", "١٢٣٤٥٦٧٨٩٠١٢٣-x", "1787405400125-"):
        assert time_of(name) is None


def test_too_old_and_too_many_go_the_oldest_first() -> None:
    names = [record_name(NOW - timedelta(days=n), "x") for n in (40, 3, 2, 1)]
    assert outdated(names, NOW, timedelta(days=30), 10) == (names[0],)
    assert outdated(names[::-1], NOW, timedelta(days=30), 2) == tuple(names[:2])
    assert outdated([*names, "foreign"], NOW, timedelta(days=99), 4) == ()


def test_a_record_of_the_future_counts_by_number_alone() -> None:
    future = record_name(NOW + timedelta(days=999), "x")
    assert outdated([future], NOW, timedelta(days=30), 1) == ()
    assert outdated([future], NOW, timedelta(days=30), 0) == (future,)


def test_pruning_keeps_each_lane_by_itself() -> None:
    store = MemoryDatastore()
    for number in range(4):
        keep(store, [fact(after=number), fact(after=number, vm="")], str(number))
    assert prune(store, NOW, Bounds(vm=3, pod=1)) == 4
    assert [len(store.names(History(lane))) for lane in Lane] == [3, 1]
    assert prune(store, NOW, Bounds(vm=3, pod=1)) == 0
    assert history(store, vm=("shop", "db")).facts[0].at == NOW + timedelta(seconds=1)


def test_a_store_that_is_away_fails_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryDatastore()

    def names(_: object) -> Any:
        raise Unavailable("no answer")

    monkeypatch.setattr(store, "names", names)
    assert pruned(store, NOW) == "no answer"


# -- a program's own


def test_a_program_keeps_what_it_gathered_when_it_flushes() -> None:
    store = MemoryDatastore()
    direct = Direct(store, "tortiectl")
    direct.write([fact()])
    assert not history(store).facts
    direct.flush()
    direct.write([fact()])
    direct.flush()
    assert len(history(store).facts) == 2
    direct.write([fact()] * PORTION)
    assert len(history(store).facts) == PORTION + 2


def test_a_refusal_is_remembered_and_raised_to_nobody() -> None:
    direct = Direct(Refusing(0), "tortiectl")
    direct.write([fact()])
    direct.flush()
    assert direct.trouble == "no answer"


# -- the spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "history.spool")


def test_what_is_appended_is_stored_and_gone(spool: Spool) -> None:
    store = MemoryDatastore()
    assert spool.drain(store) == 0
    spool.append([fact(), fact(What.RELEASED)])
    Spool(spool.path).append([fact(What.PROMOTED)])  # another process
    assert spool.drain(store) == 3
    assert told(store) == [What.GRANTED, What.RELEASED, What.PROMOTED]
    assert not list(spool.path.parent.glob("*"))


def test_a_datastore_that_is_away_leaves_all_of_it_here(spool: Spool) -> None:
    spool.append([fact(after=n) for n in range(PORTION + 1)])
    store = Refusing(1)
    with pytest.raises(Unavailable):
        spool.drain(store)
    spool.append([fact(What.RELEASED, after=PORTION + 1)])
    with pytest.raises(Unavailable):
        spool.drain(store)
    store.takes = 99
    spool.drain(store)
    found = history(store).facts
    assert [one.at for one in found] == [NOW + timedelta(seconds=n) for n in range(PORTION + 2)]


def test_a_kill_before_the_file_is_removed_stores_nothing_twice(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryDatastore()
    spool.append([fact()])

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            spool.drain(store)
    assert Spool(spool.path).drain(store) == 1
    assert len(history(store).facts) == 1


def test_a_line_that_was_cut_short_spoils_no_other(spool: Spool) -> None:
    spool.append([fact()])
    with spool.path.open("ab") as file:
        file.write(b'{"at": "2026-08-22T13:')
    spool.append([fact(What.RELEASED)])
    store = MemoryDatastore()
    spool.drain(store)
    assert told(store) == [What.GRANTED, What.RELEASED]


@pytest.mark.parametrize("data", [b"\xff\xfe\n", b"[]\n", b"[" * 100_000, b"7\nnull\n", b"\0\0\n"])
def test_a_spool_of_anything_is_read(data: bytes) -> None:
    assert read_facts(data) == ()


def test_a_full_spool_takes_nothing_more_and_counts(tmp_path: Path) -> None:
    log = RecordingLog()
    spool = Spool(tmp_path / "history.spool", most=1000, log=log)
    for _ in range(100):
        spool.append([fact()])
    assert spool.path.stat().st_size <= 1000
    assert 0 < spool.lost < 100
    (told,) = log.of("history_lost")
    assert told["file"] == str(spool.path)
    spool.drain(MemoryDatastore())
    spool.append([fact()] * 99)
    assert len(log.of("history_lost")) == 1, "the same trouble"
    spool.append([fact()])
    spool.append([fact()] * 99)
    assert len(log.of("history_lost")) == 2


def test_a_directory_that_is_not_there_raises_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "no" / "history.spool")
    spool.append([fact()])
    assert spool.lost == 1
    assert spool.drain(MemoryDatastore()) == 0


def test_who_has_a_renamed_file_open_appends_to_the_new_one(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed between another's open and its lock: what it appends must not go down with it."""
    store = MemoryDatastore()
    spool.append([fact()])
    real, opened = os.open, []

    def open_and_lose(path: Any, *words: Any) -> int:
        file = real(path, *words)
        opened.append(file)
        if len(opened) == 1:
            Path(path).rename(f"{path}.sealed")
        return file

    monkeypatch.setattr("libtortie.history_spool.os.open", open_and_lose)
    spool.append([fact(What.RELEASED, after=1)])
    monkeypatch.undo()
    assert len(opened) == 2
    spool.drain(store)
    assert told(store) == [What.GRANTED, What.RELEASED]


# -- migrations and words


MOVE = (
    fact(What.TARGETED, pod="l-b", node="n2", details={"source": "n1", "migration_uid": "m1"}),
    step(Step.PREPARED, 1),
    step(Step.HEARD, 2, sign="rarp"),
    step(Step.RAISED, 2.01, latency_ms="1.25"),
    fact(
        What.PROMOTED,
        after=3,
        pod="l-b",
        node="n2",
        details={"source": "n1", "migration_uid": "m1"},
    ),
    step(Step.SETTLED, 33),
)


@pytest.mark.parametrize("order", [MOVE, MOVE[::-1]])
def test_a_migration_is_put_together_of_its_facts(order: Sequence[Fact]) -> None:
    (one,) = migrations([*order, fact()])
    assert (one.vm, one.source, one.target, one.outcome) == ("db", "n1", "n2", "settled")
    assert (one.prepared, one.sign_to_route_ms, one.downtime_ms) == (NOW, 1.25, None)
    assert one.ended == NOW + timedelta(seconds=33)
    assert one.addresses == (ADDRESS,)


def test_how_a_migration_ends() -> None:
    assert migrations(MOVE[:3])[0].outcome == "running"
    assert migrations([*MOVE[:2], step(Step.LEFT, 4)])[0].outcome == "lost"
    assert migrations([*MOVE[:2], step(Step.REFUSED, 4)])[0].outcome == "refused"


def chain(hours: float) -> list[Fact]:
    """From n1 to n2 and, a minute later, on to n3, whose clock is so wrong."""
    details = {"source": "n2", "migration_uid": "m2"}
    to_n3: dict[str, Any] = {"pod": "l-c", "node": "n3", "before": "l-b", "details": details}
    return [
        *MOVE,
        fact(What.TARGETED, after=60 + 3600 * hours, **to_n3),
        fact(What.PROMOTED, after=63 + 3600 * hours, **to_n3),
    ]


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_migrations_of_a_vm_are_in_the_order_of_its_pods(hours: float) -> None:
    newest, oldest = migrations(chain(hours))
    assert (newest.migration_uid, oldest.migration_uid) == ("m2", "m1")
    apart = 3540 if hours < 0 else 0
    assert (round(newest.apart.total_seconds()), oldest.apart) == (apart, timedelta(0))


def test_pods_that_follow_each_other_in_a_circle_end_nothing() -> None:
    circle = [
        fact(What.TARGETED, pod=pod, before=before, details={"migration_uid": uid})
        for pod, before, uid in (("a", "b", "m1"), ("b", "a", "m2"), ("c", "c", "m3"))
    ]
    assert {one.migration_uid for one in migrations(circle)} == {"m1", "m2", "m3"}


def test_a_vm_that_moved_on_had_come() -> None:
    assert migrations([*MOVE, step(Step.LEFT, 99)])[0].outcome == "settled"
    assert migrations([*MOVE, step(Step.LEFT, 99)])[0].ended == NOW + timedelta(seconds=33)
    assert migrations([*MOVE[:5], step(Step.LEFT, 4)])[0].outcome == "settled"


def test_the_networks_downtime_is_what_the_first_arrival_took() -> None:
    measured = step(Step.REACHED, 4, downtime_ms="17.5")
    again = step(Step.REACHED, 9, downtime_ms="3")
    ends = step(Step.SETTLED, 33)
    for found in ([*MOVE[:2], measured, again, ends], [again, ends, measured, *MOVE[:2]]):
        (one,) = migrations(found)
        assert (one.downtime_ms, one.outcome) == (17.5, "settled")
    (one,) = migrations([step(Step.REACHED, 4, downtime_ms="soon")])
    assert one.downtime_ms is None
    assert sentence(measured).endswith(": reached, ms of network downtime 17.5")


def test_the_newest_migration_is_first() -> None:
    later = [fact(What.TARGETED, after=99, details={"migration_uid": "m2"})]
    assert [one.migration_uid for one in migrations([*MOVE, *later])] == ["m2", "m1"]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (fact(), "10.65.0.7 granted to shop/l-a of VM db on n1"),
        (fact(vm="", pod="", handle_id="t"), "10.65.0.7 granted to t on n1"),
        (fact(What.RELEASED), "10.65.0.7 released, last held by shop/l-a of VM db on n1"),
        (fact(What.HANDED_OVER, pod=""), "10.65.0.7 kept for shop/db, which is stopped"),
        (MOVE[3], "migration to shop/l-b of VM db on n2: raised, ms from sign to route 1.25"),
    ],
)
def test_a_fact_in_words(one: Fact, words: str) -> None:
    assert sentence(one) == words


@pytest.mark.parametrize("what", What)
def test_every_kind_has_words(what: What) -> None:
    assert sentence(Fact(NOW, what, "n1"))


def test_a_key_has_a_path_of_its_own() -> None:
    store = MemoryDatastore()
    store.create(HistoryKey("vm", "1-a"), Facts((fact(),)))
    assert store.names(History("vm")) == (HistoryKey("vm", "1-a"),)
    assert store.names(History("pod")) == ()


@pytest.mark.parametrize("end", ["\x0b", "\x1c", "\x85", "\u2028", "\u2029", "\r", "\n", "\0"])
def test_a_text_with_ends_of_lines_in_it_is_one_fact(spool: Spool, end: str) -> None:
    step = {"step": Step.REFUSED.value, "migration_uid": "m", "reason": f"one{end}two"}
    spool.append([fact(What.MIGRATION, details=step)])
    (read,) = read_facts(spool.path.read_bytes())
    assert read.details["reason"] == f"one{end}two"


def test_what_a_disk_took_half_of_is_counted_as_lost(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    spool.append([fact(What.GRANTED)])
    assert spool.lost == 1
    monkeypatch.setattr(os, "write", write)
    spool.append([fact(What.PROMOTED)])
    assert [one.what for one in read_facts(spool.path.read_bytes())] == [What.PROMOTED]


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999", "x", ""])
def test_a_number_that_is_none_is_not_known(text: str) -> None:
    raised = {"step": Step.RAISED.value, "migration_uid": "m", "latency_ms": text}
    ended = {"step": Step.REACHED.value, "migration_uid": "m", "downtime_ms": text}
    (one,) = migrations([fact(What.MIGRATION, details=raised), fact(What.MIGRATION, details=ended)])
    assert one.sign_to_route_ms is None and one.downtime_ms is None
