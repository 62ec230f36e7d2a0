"""A pod that is labelled anew is so for policy, too, whichever datastore its endpoint is in."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from felix_shim.cluster import ENDPOINTS
from felix_shim.events import Listed, Stored, Unstored
from felix_shim.pod_labels import PodLabels, relabelled
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Record
from libtortie.errors import Unavailable
from libtortie.kube.objects import Pod
from libtortie.model.keys import Key
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NAMESPACE, NODE, RecordingLog, endpoint_record
from tests.fakes.kube import FakeKube

SPACE = {"projectcalico.org/namespace": NAMESPACE}


def pod(name: str = "web", *, uid: str = "", node: str = NODE, **labels: str) -> Pod:
    meta = {"name": name, "namespace": NAMESPACE, "uid": uid or f"uid-of-{name}", "labels": labels}
    return Pod.model_validate({"metadata": meta, "spec": {"nodeName": node}})


def endpoint(**options: Any) -> WorkloadEndpoint:
    value = endpoint_record("web", vm=False, **options).value
    assert isinstance(value, WorkloadEndpoint)
    return value


def test_an_endpoint_gets_its_pods_labels_and_keeps_what_add_gave_it() -> None:
    own = {**SPACE, "projectcalico.org/serviceaccount": "robot", "app": "web", "old": "x"}
    fresh = relabelled(endpoint(labels=own), pod(app="db", new="y"))
    assert fresh is not None
    assert dict(fresh.metadata.labels) == {
        **SPACE,
        "projectcalico.org/serviceaccount": "robot",
        "app": "db",
        "new": "y",
    }
    assert fresh.spec == endpoint(labels=own).spec
    assert relabelled(fresh, pod(app="db", new="y")) is None, "it has them"


@pytest.mark.parametrize(
    "found",
    [
        None,
        pod(uid="another", app="db"),
        pod(**{"app": "web", "projectcalico.org/namespace": "other"}),
        pod(**{"app": "web", "projectcalico.org/serviceaccount": "admin"}),
    ],
)
def test_another_pod_and_what_is_not_the_pods_to_say_change_nothing(found: Pod | None) -> None:
    assert relabelled(endpoint(labels={"app": "web"}), found) is None


class Site:
    """A datastore with an endpoint, the API, and the keeper between them."""

    def __init__(self) -> None:
        self.store, self.api, self.log = MemoryDatastore(), FakeKube(), RecordingLog()
        self.keeper = PodLabels(self.store, self.api, NODE, NODE, self.log, trouble_seconds=0.01)
        self.threads = [
            threading.Thread(target=body) for body in (self.keeper.run, self.keeper.follow)
        ]
        record = endpoint_record("web", vm=False, labels={"app": "web"})
        self.key: Key = record.key
        self.record = self.store.create(record.key, record.value)

    def labels(self) -> dict[str, str]:
        value = self.store.get(self.key).value
        assert isinstance(value, WorkloadEndpoint)
        return dict(value.metadata.labels)

    def until(self, **labels: str) -> None:
        end = time.monotonic() + 60
        while self.labels() != {**SPACE, **labels}:
            assert time.monotonic() < end, self.labels()
            time.sleep(0.002)

    def tell(self) -> Record:
        self.record = self.store.get(self.key)
        self.keeper.notice(Stored(ENDPOINTS, self.record))
        return self.record


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    for thread in made.threads:
        thread.start()
    try:
        yield made
    finally:
        made.keeper.stop()
        for thread in made.threads:
            thread.join(60)
        made.store.close()
    assert not any(thread.is_alive() for thread in made.threads)


def test_whatever_comes_first(site: Site) -> None:
    site.api.put(pod(app="db"))
    site.keeper.notice(Listed(ENDPOINTS, (site.record,)))
    site.until(app="db")
    site.tell()
    site.api.put(pod(app="cache", tier="x"))
    site.until(app="cache", tier="x")


def test_one_that_is_another_nodes_is_left_to_it() -> None:
    site = Site()
    other = endpoint_record("far", vm=False, node="n2", address="10.65.0.9")
    record = site.store.create(other.key, other.value)
    site.keeper.notice(Listed(ENDPOINTS, (record,)))
    site.keeper._pods[NAMESPACE, "far"] = pod("far", node="n2", app="db")
    assert site.keeper.attempt()
    assert site.store.get(other.key) == record
    site.store.close()


def test_a_datastore_that_is_away_is_tried_again_and_told_of_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, failures = site.store.update, iter(range(5))

    def brittle(key: Key, value: Any, revision: str) -> Record:
        if next(failures, None) is not None:
            raise Unavailable("away")
        return update(key, value, revision)

    monkeypatch.setattr(site.store, "update", brittle)
    site.api.put(pod(app="db"))
    site.tell()
    site.until(app="db")
    assert len(site.log.of("pod_labels_wait")) == 1


def test_somebody_elses_change_is_waited_for_not_overwritten() -> None:
    site = Site()
    site.tell()
    changed = endpoint(labels={"app": "web", "by": "add"}, container="c2")
    site.store.update(site.key, changed, site.record.revision)
    site.keeper._pods[NAMESPACE, "web"] = pod(app="db")
    assert site.keeper.attempt(), "nothing to try again: the change is about to be heard of"
    assert site.labels() == {**SPACE, "app": "web", "by": "add"}
    site.tell()
    assert site.keeper.attempt()
    assert site.labels() == {**SPACE, "app": "db"}
    site.keeper.notice(Unstored(ENDPOINTS, site.key))
    site.store.delete(site.key)
    assert site.keeper.attempt()
    site.store.close()
