"""Warnings become Kubernetes Events, and nothing waits for them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from felix_shim.endpoints import parse_endpoint
from felix_shim.kube_events import MESSAGE_MAX, MOST_WAITING, EventRecorder, KubeEvent, event_body
from felix_shim.model import Endpoint
from libtortie.errors import Unauthorized
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NAMESPACE, RecordingLog, endpoint_record
from tests.fakes.kube import FakeKube

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)


def endpoint(pod: str = "web") -> Endpoint:
    value = endpoint_record(pod).value
    assert isinstance(value, WorkloadEndpoint)
    return parse_endpoint(value)


def events(kube: FakeKube) -> list[dict[str, Any]]:
    found, _ = kube.list(KubeEvent)
    kind = kube._kind(KubeEvent)
    return [kube.api.get(kind, one.metadata.namespace, one.metadata.name) for one in found]


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


@pytest.fixture
def recorder(kube: FakeKube, log: RecordingLog) -> EventRecorder:
    numbers = iter(f"{number:016x}" for number in range(1000))
    return EventRecorder(kube, "n1", log, lambda: NOW, lambda: next(numbers))


def test_each_kind_of_event_has_its_reason(kube: FakeKube, recorder: EventRecorder) -> None:
    recorder.warn(endpoint("vm"), "still announced")
    recorder.closed(endpoint("web"), "NetworkPolicy shop/p cannot be obeyed")
    recorder.create_next()
    recorder.create_next()
    told = {event["involvedObject"]["name"]: event["reason"] for event in events(kube)}
    assert told == {"vm": "LiveMigrationWarning", "web": "PolicyNotObeyed"}


def test_an_event_names_the_pod_and_the_node(kube: FakeKube, recorder: EventRecorder) -> None:
    recorder.warn(endpoint(), "still announced")
    assert kube.calls == [], "not on the caller's thread"
    recorder.create_next()
    (event,) = events(kube)
    assert event["metadata"]["namespace"] == NAMESPACE
    assert event["metadata"]["name"] == "web." + "0" * 16
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "web",
        "namespace": NAMESPACE,
        "uid": "uid-of-web",
    }
    assert (event["type"], event["reason"]) == ("Warning", "LiveMigrationWarning")
    assert (event["message"], event["count"]) == ("still announced", 1)
    assert event["source"] == {"component": "tortie-node", "host": "n1"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-08-22T13:30:00Z"


def test_names_and_messages_fit() -> None:
    body = event_body(endpoint("p" * 253), "x" * 5000, node="n1", now=NOW, suffix="0" * 16)
    assert len(body["metadata"]["name"]) <= 253
    assert len(body["message"]) == MESSAGE_MAX


def test_a_failure_is_logged_and_the_next_one_goes_out(
    kube: FakeKube, recorder: EventRecorder, log: RecordingLog
) -> None:
    kube.fail(Unauthorized("create events: 403"), verb="create")
    recorder.warn(endpoint(), "one")
    recorder.warn(endpoint(), "two")
    recorder.create_next()
    recorder.create_next()
    recorder.create_next()
    assert [line["reason"] for line in log.of("event_failed")] == ["create events: 403"]
    assert [event["message"] for event in events(kube)] == ["two"]


def test_more_than_the_api_takes_are_dropped_oldest_first(
    kube: FakeKube, recorder: EventRecorder
) -> None:
    for number in range(MOST_WAITING + 3):
        recorder.warn(endpoint(), str(number))
    assert recorder.dropped == 3
    recorder.create_next()
    assert [event["message"] for event in events(kube)] == ["3"]


def test_the_thread_creates_and_stops(kube: FakeKube, recorder: EventRecorder) -> None:
    created = threading.Event()
    real = kube.create

    def create(*words: Any) -> Any:
        try:
            return real(*words)
        finally:
            created.set()

    kube.create = create  # type: ignore[assignment, method-assign]  # a latch
    thread = threading.Thread(target=recorder.run)
    thread.start()
    recorder.warn(endpoint(), "text")
    assert created.wait(60)
    recorder.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert len(events(kube)) == 1
