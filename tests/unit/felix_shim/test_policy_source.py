"""Kubernetes' policy objects are followed, remembered, and never taken for absent in silence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from felix_shim.events import Event, InSync, Seen, Vanished
from felix_shim.kube_entries import KINDS, PolicyObject
from felix_shim.policy_cache import PolicyCache
from felix_shim.policy_source import PolicySource
from libtortie.errors import TortieError, Unauthorized, Unavailable
from libtortie.kube.objects import Namespace
from libtortie.kube.policies import POLICY_GROUP, AdminNetworkPolicy, KubeNetworkPolicy
from tests.fakes.agent_world import RecordingLog
from tests.fakes.kube import FakeKube

Sources = Callable[..., PolicySource]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)
    return value


class Running:
    """A body on a thread."""

    def __init__(self, body: Any) -> None:
        self.body = body
        self.thread = threading.Thread(target=body.run)
        self.thread.start()

    def stop(self) -> None:
        self.body.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def posted() -> list[Event]:
    return []


def cache_in(directory: Path, *, server: str = "fake://kube", boot: str = "b1") -> PolicyCache:
    return PolicyCache(directory, server, boot, RecordingLog(), pause=0.0)


@pytest.fixture
def source(tmp_path: Path) -> Sources:
    def make(
        api: FakeKube,
        kind: type[PolicyObject],
        posted: list[Event],
        log: RecordingLog | None = None,
        cache: PolicyCache | None = None,
    ) -> PolicySource:
        cache = cache or cache_in(tmp_path)
        return PolicySource(api, kind, posted.append, log or RecordingLog(), cache)

    return make


def policy(name: str = "p", **labels: str) -> KubeNetworkPolicy:
    meta = {"name": name, "namespace": "shop", "labels": labels}
    return KubeNetworkPolicy.model_validate({"metadata": meta, "spec": {"podSelector": {}}})


def test_a_kind_that_policy_is_made_of_and_nobody_serves_has_no_objects(
    posted: list[Event], source: Sources
) -> None:
    api, log = FakeKube(), RecordingLog()
    api.hide(POLICY_GROUP)
    running = Running(source(api, AdminNetworkPolicy, posted, log))
    wait_for(lambda: posted)
    running.stop()
    assert posted == [InSync(AdminNetworkPolicy, frozenset())]
    assert len(log.of("kind_not_served")) == 1


def test_what_the_last_agent_heard_of_a_kind_is_kept_while_it_is_not_served(
    tmp_path: Path, posted: list[Event], source: Sources
) -> None:
    """As by an agent that was not killed: a server that has just begun knows no added kinds."""
    kept = cache_in(tmp_path)
    guard = AdminNetworkPolicy.model_validate({"metadata": {"name": "guard"}, "spec": {}})
    kept.put(AdminNetworkPolicy, [guard])
    kept.stop()
    kept.run()
    api, listing = FakeKube(), ("list", "adminnetworkpolicies")
    api.hide(POLICY_GROUP)
    again = cache_in(tmp_path)
    saver = Running(again)
    running = Running(source(api, AdminNetworkPolicy, posted, cache=again))
    wait_for(lambda: api.calls.count(listing) >= 3)
    running.stop()
    saver.stop()
    assert posted == [Seen(guard), InSync(AdminNetworkPolicy, frozenset({("", "guard")}))]
    assert again.load(AdminNetworkPolicy) == (guard,)


def test_what_was_there_before_a_kind_was_served_no_more_is_kept(
    posted: list[Event], source: Sources
) -> None:
    """A server that does not know it for a while has not told that its objects are gone."""
    api = FakeKube()
    guard = AdminNetworkPolicy.model_validate({"metadata": {"name": "guard"}, "spec": {}})
    api.put(guard)
    running = Running(source(api, AdminNetworkPolicy, posted))
    wait_for(lambda: any(isinstance(event, InSync) for event in posted))
    api.hide(POLICY_GROUP)
    listing = ("list", "adminnetworkpolicies")
    before = api.calls.count(listing)
    cut_until(api, lambda: api.calls.count(listing) > before)
    running.stop()
    kept = [event for event in posted if isinstance(event, InSync | Vanished)]
    assert kept == [InSync(AdminNetworkPolicy, frozenset({("", "guard")}))]


@pytest.mark.parametrize("error", [Unavailable("away"), Unauthorized("forbidden")])
def test_a_kind_that_policy_is_made_of_counts_as_listed_only_when_it_was(
    posted: list[Event], source: Sources, error: TortieError
) -> None:
    """Also a right that is missing is no proof that there are no policies."""
    api, listing = FakeKube(), ("list", "networkpolicies")
    api.fail(error, verb="list", times=100_000)
    running = Running(source(api, KubeNetworkPolicy, posted))
    wait_for(lambda: api.calls.count(listing) >= 2)
    assert posted == []
    api.heal()
    cut_until(api, lambda: sum(isinstance(event, InSync) for event in posted) >= 2)
    running.stop()
    assert set(posted) == {InSync(KubeNetworkPolicy, frozenset())}


def cut_until(api: FakeKube, condition: Callable[[], Any]) -> None:
    """Cut watches again and again: one may be opened only after the first cut."""

    def cut_and_look() -> Any:
        api.cut_watches(Unavailable("cut"))
        return condition()

    wait_for(cut_and_look)


def test_an_agent_that_finds_the_api_away_begins_with_what_the_last_one_heard(
    tmp_path: Path, posted: list[Event], source: Sources
) -> None:
    api, kept = FakeKube(policy("p", a="b"), policy("q")), cache_in(tmp_path)
    saver = Running(kept)
    first = Running(source(api, KubeNetworkPolicy, posted, cache=kept))
    wait_for(lambda: any(isinstance(event, InSync) for event in posted))
    api.remove(KubeNetworkPolicy, "q", "shop")
    wait_for(lambda: any(isinstance(event, Vanished) for event in posted))
    first.stop()
    saver.stop()
    posted.clear()
    api.fail(Unavailable("away"), verb="list", times=100_000)
    second = Running(source(api, KubeNetworkPolicy, posted))
    wait_for(lambda: len(posted) >= 2)
    seen, synced = posted[:2]
    assert isinstance(seen, Seen)
    assert (seen.object.metadata.name, seen.object.metadata.labels) == ("p", {"a": "b"})
    assert getattr(seen.object, "spec", None) == {"podSelector": {}}
    assert synced == InSync(KubeNetworkPolicy, frozenset({("shop", "p")}))
    assert posted.count(synced) == 1
    api.heal()
    api.put(policy("r"))
    everything = InSync(KubeNetworkPolicy, frozenset({("shop", "p"), ("shop", "r")}))
    wait_for(lambda: everything in posted)
    second.stop()


def test_an_api_that_is_slow_is_not_waited_for_and_has_the_last_word(
    tmp_path: Path, posted: list[Event]
) -> None:
    kept = cache_in(tmp_path)
    kept.put(KubeNetworkPolicy, [policy("old")])
    kept.stop()
    kept.run()
    answers = threading.Event()

    def wait_for_it() -> None:
        answers.wait()

    api = FakeKube(policy("new"))
    api.fail(Unavailable("slow"), verb="list", meanwhile=wait_for_it)
    made = PolicySource(
        api, KubeNetworkPolicy, posted.append, RecordingLog(), cache_in(tmp_path), patience=0.0
    )
    running = Running(made)
    old = InSync(KubeNetworkPolicy, frozenset({("shop", "old")}))
    wait_for(lambda: old in posted)
    answers.set()
    new = InSync(KubeNetworkPolicy, frozenset({("shop", "new")}))
    wait_for(lambda: new in posted)
    running.stop()
    assert posted.index(old) < posted.index(new)
    assert posted.count(old) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"server": "fake://other"},
        {"boot": "b2"},
        {"content": b""},
        {"content": b"[]"},
        {"content": b"{"},
        {"content": b'{"format": 2}'},
        {"content": b"[" * 100_000},
        {"directory": True},
    ],
    ids=str,
)
def test_what_is_not_of_this_boot_and_api_or_cannot_be_read_is_not_remembered(
    tmp_path: Path, posted: list[Event], source: Sources, change: dict[str, Any]
) -> None:
    kept = cache_in(tmp_path)
    kept.put(KubeNetworkPolicy, [policy()])
    kept.stop()
    kept.run()
    assert kept.load(KubeNetworkPolicy) is not None
    file = tmp_path / "networkpolicies.json"
    if "content" in change:
        file.write_bytes(change.pop("content"))
    if change.pop("directory", False):
        file.unlink()
        file.mkdir()
    api = FakeKube()
    api.fail(Unavailable("away"), verb="list", times=100_000)
    made = source(api, KubeNetworkPolicy, posted, cache=cache_in(tmp_path, **change))
    running = Running(made)
    wait_for(lambda: api.calls.count(("list", "networkpolicies")) >= 2)
    running.stop()
    assert posted == []


def test_a_disk_that_is_full_is_told_and_nothing_else_suffers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = cache_in(tmp_path / "file" / "below")
    kept.put(KubeNetworkPolicy, [policy()])
    kept.stop()
    kept.run()
    assert isinstance(kept.log, RecordingLog)
    assert len(kept.log.of("policy_not_saved")) == 1
    assert kept.load(KubeNetworkPolicy) is None


def test_what_a_full_disk_did_not_take_is_saved_when_it_has_room(tmp_path: Path) -> None:
    """Else the next agent would go on with what the API said before."""
    place = tmp_path / "place"
    place.write_text("")
    kept = cache_in(place / "below")
    kept.retry = 0.0
    running, log = Running(kept), kept.log
    assert isinstance(log, RecordingLog)
    try:
        kept.put(KubeNetworkPolicy, [policy()])
        wait_for(lambda: log.of("policy_not_saved"))
        place.unlink()
        wait_for(lambda: kept.load(KubeNetworkPolicy) == (policy(),))
    finally:
        running.stop()
    assert len(log.of("policy_not_saved")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_remembered_by_itself_with_what_policy_is_made_of(
    tmp_path: Path, kind: type[PolicyObject]
) -> None:
    kept = cache_in(tmp_path)
    body = {"metadata": {"name": "x", "namespace": "shop", "labels": {"a": "b"}, "uid": "u"}}
    strange: Any = {"strange": [None, {}]}
    parts = dict.fromkeys(("spec", "endpoints", "ports", "status"), strange)
    found = kind.model_validate({**body, **parts})
    kept.put(kind, [found])
    kept.put(Namespace if kind is not Namespace else AdminNetworkPolicy, [])
    kept.stop()
    kept.run()
    (again,) = kept.load(kind) or ()
    assert (again.metadata.namespace, again.metadata.labels) == ("shop", {"a": "b"})
    for field, value in found:
        assert field == "metadata" or getattr(again, field) == value
    assert json.loads((tmp_path / f"{kind.api.plural}.json").read_text())["bootID"] == "b1"


def test_what_is_heard_for_the_first_time_is_saved_at_once(tmp_path: Path) -> None:
    """Only later changes wait for each other: a new agent that is killed leaves nothing unsaid."""
    cache = PolicyCache(tmp_path, "fake://kube", "b1", RecordingLog(), pause=3600.0)
    thread = threading.Thread(target=cache.run)
    thread.start()
    try:
        cache.put(KubeNetworkPolicy, ())
        wait_for(lambda: cache.load(KubeNetworkPolicy) == ())
        cache.put(KubeNetworkPolicy, [policy("later")])
        cache.put(Namespace, ())
        wait_for(lambda: cache.load(Namespace) == ())
        assert cache.load(KubeNetworkPolicy) == (policy("later"),)
    finally:
        cache.stop()
        thread.join(60)
    assert not thread.is_alive()
