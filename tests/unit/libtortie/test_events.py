"""What is sent of what is told: client-go's limits, and nothing that fails for an Event's sake."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from libtortie.errors import NotFound, Unauthorized, Unavailable
from libtortie.events import (
    BURST,
    COMBINED,
    MESSAGE_MAX,
    MOST_WAITING,
    REFILL_SECONDS,
    SIMILAR,
    SIMILAR_SECONDS,
    Correlator,
    EventSender,
    KubeEvent,
    Notice,
    Recent,
    Severity,
    Skip,
    Subject,
    Told,
    event_body,
    instance,
    pod,
)
from tests.fakes.agent_world import RecordingLog
from tests.fakes.kube import FakeKube

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
VM = instance("shop", "db", "uid-1")
RAISED = Notice(VM, "RouteRaised", "route to 10.65.0.7 raised")


def correlator() -> Correlator:
    numbers = count()
    return Correlator(lambda: f"{next(numbers):016x}")


def told(found: Told | Skip) -> Told:
    assert isinstance(found, Told)
    return found


def events(kube: FakeKube) -> list[dict[str, Any]]:
    found, _ = kube.list(KubeEvent)
    kind = kube._kind(KubeEvent)
    return [kube.api.get(kind, one.metadata.namespace, one.metadata.name) for one in found]


def test_the_same_again_counts_up_one_event() -> None:
    sends = correlator()
    first = told(sends.decide(RAISED, NOW, 0.0))
    again = told(sends.decide(RAISED, NOW + timedelta(seconds=9), 9.0))
    assert (first.series.count, again.series.count) == (1, 2)
    assert again.series.name == first.series.name
    assert again.series.first == NOW


def test_what_differs_in_subject_reason_or_severity_is_not_the_same() -> None:
    sends = correlator()
    others = (
        Notice(pod("shop", "db"), RAISED.reason, RAISED.message),
        Notice(VM, "RouteReverted", RAISED.message),
        Notice(VM, RAISED.reason, RAISED.message, Severity.WARNING),
        Notice(instance("shop", "db", "uid-2"), RAISED.reason, RAISED.message),
    )
    names = {told(sends.decide(one, NOW, 0.0)).series.name for one in (RAISED, *others)}
    assert len(names) == 5


def test_one_object_has_a_burst_and_then_one_each_five_minutes() -> None:
    sends = correlator()
    found = [sends.decide(RAISED, NOW, 0.0) for _ in range(BURST + 3)]
    assert [isinstance(one, Told) for one in found] == [True] * BURST + [False] * 3
    assert sends.decide(RAISED, NOW, REFILL_SECONDS - 1) is Skip.SPAM
    assert isinstance(sends.decide(RAISED, NOW, REFILL_SECONDS), Told)
    assert sends.decide(RAISED, NOW, REFILL_SECONDS) is Skip.SPAM


def test_one_objects_spam_is_not_anothers() -> None:
    sends = correlator()
    for _ in range(BURST + 1):
        sends.decide(RAISED, NOW, 0.0)
    other = Notice(pod("shop", "web"), "RouteRaised", "x")
    assert isinstance(sends.decide(other, NOW, 0.0), Told)


def test_a_bucket_that_rested_for_long_holds_no_more_than_a_burst() -> None:
    sends = correlator()
    sends.decide(RAISED, NOW, 0.0)
    later = 1000 * REFILL_SECONDS
    found = [sends.decide(RAISED, NOW, later) for _ in range(BURST + 1)]
    assert found[-1] is Skip.SPAM


def test_many_that_differ_in_their_message_become_one() -> None:
    sends = correlator()
    notices = [Notice(VM, "NetworkRefused", f"attempt {n}") for n in range(SIMILAR + 3)]
    found = [told(sends.decide(one, NOW, 0.0)) for one in notices]
    assert [one.series.count for one in found] == [1] * (SIMILAR + 1) + [2, 3]
    assert found[-1].notice.message == f"{COMBINED}attempt {SIMILAR + 2}"
    assert len({one.series.name for one in found}) == SIMILAR + 1


def test_what_was_similar_is_told_singly_again_after_a_while() -> None:
    sends = correlator()
    for n in range(SIMILAR + 1):
        sends.decide(Notice(VM, "NetworkRefused", f"attempt {n}"), NOW, 0.0)
    later = told(sends.decide(Notice(VM, "NetworkRefused", "new"), NOW, SIMILAR_SECONDS + 1))
    assert later.notice.message == "new"


def test_what_is_remembered_is_bounded() -> None:
    held: Recent[int, str] = Recent(2)
    for number in range(3):
        held.put(number, str(number))
        held.get(1)
    assert (len(held), held.get(0), held.get(1), held.get(2)) == (2, None, "1", "2")


def test_a_body_is_what_the_api_takes() -> None:
    notice = Notice(pod("shop", "p" * 253, "uid"), "Reason", "x" * 5000, Severity.WARNING)
    found = told(correlator().decide(notice, NOW, 0.0))
    body = event_body(found, component="tortie-node", instance="n1", host="n1")
    assert len(body["metadata"]["name"]) <= 253
    assert len(body["message"]) == MESSAGE_MAX
    assert body["involvedObject"]["namespace"] == body["metadata"]["namespace"] == "shop"
    assert body["source"] == {"component": "tortie-node", "host": "n1"}
    assert (body["type"], body["count"]) == ("Warning", 1)
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2026-08-22T13:30:00Z"


def test_a_cluster_wide_object_is_told_of_in_the_default_namespace() -> None:
    notice = Notice(Subject("Node", "n1"), "Reason", "x")
    body = event_body(told(correlator().decide(notice, NOW, 0.0)), component="c", instance="i")
    assert body["metadata"]["namespace"] == "default"
    assert "namespace" not in body["involvedObject"]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


@pytest.fixture
def sender(kube: FakeKube, log: RecordingLog, monkeypatch: pytest.MonkeyPatch) -> EventSender:
    monkeypatch.setattr("libtortie.events.RETRY_SECONDS", 0.0)
    clock = count()
    return EventSender(
        kube, "tortie-node", "n1", log, lambda: NOW, lambda: float(next(clock)), "n1", correlator()
    )


def test_a_repeat_changes_the_event_that_is_there(kube: FakeKube, sender: EventSender) -> None:
    for _ in range(3):
        sender.tell(RAISED)
    assert kube.calls == [], "not on the caller's thread"
    for _ in range(4):
        sender.send_next()
    (event,) = events(kube)
    assert (event["count"], event["reason"], event["message"]) == (3, "RouteRaised", RAISED.message)
    assert sender.sent == 3


def test_an_event_that_expired_is_made_anew(kube: FakeKube, sender: EventSender) -> None:
    sender.tell(RAISED)
    sender.send_next()
    (first,) = events(kube)
    kube.delete(KubeEvent, first["metadata"]["name"], "shop")
    for _ in range(2):
        sender.tell(RAISED)
        sender.send_next()
    (second,) = events(kube)
    assert second["metadata"]["name"] != first["metadata"]["name"]
    assert second["count"] == 2


def test_a_refusal_is_logged_once_and_counted(
    kube: FakeKube, sender: EventSender, log: RecordingLog
) -> None:
    for _ in range(3):
        kube.fail(Unauthorized("create events: 403"), verb="create")
    for number in range(4):
        sender.tell(Notice(VM, "Reason", str(number)))
        sender.send_next()
    assert [line["reason"] for line in log.of("event_failed")] == ["create events: 403"]
    assert (sender.failed, sender.sent) == (3, 1)
    kube.fail(Unauthorized("again"), verb="create")
    sender.tell(Notice(VM, "Reason", "4"))
    sender.send_next()
    assert len(log.of("event_failed")) == 2, "after it worked, it is news again"


def test_what_was_refused_is_made_and_not_counted_up(kube: FakeKube, sender: EventSender) -> None:
    kube.fail(Unauthorized("create events: 403"), verb="create")
    for _ in range(2):
        sender.tell(RAISED)
        sender.send_next()
    assert [event["count"] for event in events(kube)] == [1]


def test_a_silent_api_is_tried_again(
    kube: FakeKube, sender: EventSender, log: RecordingLog
) -> None:
    for _ in range(2):
        kube.fail(Unavailable("no answer"), verb="create")
    sender.tell(RAISED)
    sender.send_next()
    assert (sender.sent, log.lines) == (1, [])


@pytest.mark.parametrize("repeat", [False, True])
def test_an_attempt_whose_answer_was_lost_is_not_told_twice(
    kube: FakeKube, sender: EventSender, repeat: bool
) -> None:
    if repeat:  # of one that has expired
        sender.tell(RAISED)
        sender.send_next()
        kube.delete(KubeEvent, events(kube)[0]["metadata"]["name"], "shop")
    real = kube.create

    def create(*words: Any) -> Any:
        kube.create = real  # type: ignore[method-assign]  # once
        real(*words)
        raise Unavailable("the answer was lost")

    kube.create = create  # type: ignore[assignment, method-assign]  # it is stored, and not heard of
    sender.tell(RAISED)
    sender.send_next()
    assert [event["count"] for event in events(kube)] == [1]
    assert sender.failed == 0


def test_a_namespace_that_is_gone_fails_nothing(kube: FakeKube, sender: EventSender) -> None:
    kube.fail(NotFound('namespaces "shop" not found'), verb="create")
    sender.tell(RAISED)
    sender.send_next()
    assert sender.failed == 1


def test_more_than_the_api_takes_are_dropped_oldest_first(
    kube: FakeKube, sender: EventSender
) -> None:
    for number in range(MOST_WAITING + 3):
        sender.tell(Notice(VM, "Reason", str(number)))
    assert sender.dropped == 3
    sender.send_next()
    assert [event["message"] for event in events(kube)] == ["3"]


def test_the_thread_sends_and_stops(kube: FakeKube, sender: EventSender) -> None:
    sent = threading.Event()
    real = kube.create

    def create(*words: Any) -> Any:
        try:
            return real(*words)
        finally:
            sent.set()

    kube.create = create  # type: ignore[assignment, method-assign]  # a latch
    thread = threading.Thread(target=sender.run)
    thread.start()
    sender.tell(RAISED)
    assert sent.wait(60)
    sender.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert len(events(kube)) == 1


def test_a_stop_does_not_wait_for_another_attempt(
    kube: FakeKube, sender: EventSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libtortie.events.RETRY_SECONDS", 3600.0)
    asked = threading.Event()

    def create(*_: Any) -> Any:
        asked.set()
        raise Unavailable("no answer")

    kube.create = create  # type: ignore[assignment, method-assign]  # an API that is away
    thread = threading.Thread(target=sender.run)
    thread.start()
    sender.tell(RAISED)
    assert asked.wait(60)
    sender.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("end", ["-", ".", "-.-"])
def test_an_events_name_is_one_for_the_api_where_its_objects_is_cut(end: str) -> None:
    name = f"{'a' * (230 - len(end))}{end}{'b' * 20}"
    notice = Notice(pod("shop", name), "Reason", "text")
    found = told(correlator().decide(notice, NOW, 0.0)).series.name
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", found)
