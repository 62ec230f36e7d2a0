"""Garbage collection: what is planned for an object, and the collector over a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.apiserver.api import Api
from lab.apiserver.errors import ApiError
from lab.apiserver.gc import Collector
from lab.apiserver.ownership import (
    Delete,
    DropOwners,
    Graph,
    Node,
    Owner,
    OwnerState,
    RemoveFinalizer,
    Unblock,
    node_of,
    plan,
)
from lab.apiserver.store import Event

Json = dict[str, Any]


def stored(name: str, *owners: str, **meta: Any) -> Event:
    """An object in namespace `a` owned by pods of these names (their UIDs are `u-<name>`)."""
    references = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": owner,
            "uid": f"u-{owner}",
            "blockOwnerDeletion": True,
        }
        for owner in owners
    ]
    metadata = {"name": name, "uid": f"u-{name}", "ownerReferences": references, **meta}
    return Event(
        1, "ADDED", "pods", (meta.get("namespace", "a"), name), {"metadata": metadata}, None
    )


def graph_of(*events: Event) -> Graph:
    graph = Graph()
    for event in events:
        graph.apply(event)
    return graph


def planned(graph: Graph, uid: str, **states: OwnerState) -> list[Any]:
    def resolve(_: Node, owner: Owner) -> OwnerState:
        return states[owner.name]

    node = graph.node(uid)
    assert node is not None
    return list(plan(node, graph, resolve))


FOREGROUND: dict[str, Any] = {"deletionTimestamp": "now", "finalizers": ["foregroundDeletion"]}


def test_an_object_goes_when_its_last_owner_is_gone() -> None:
    graph = graph_of(stored("web", "one", "two"))
    web = graph.node("u-web")
    assert planned(graph, "u-web", one="solid", two="solid") == []
    assert planned(graph, "u-web", one="absent", two="solid") == [
        DropOwners(web, frozenset({"u-one"}))  # type: ignore[arg-type]  # it is there
    ]
    (action,) = planned(graph, "u-web", one="absent", two="absent")
    assert isinstance(action, Delete) and action.policy == "Background"


def test_nothing_happens_while_an_owner_cannot_be_judged() -> None:
    graph = graph_of(stored("web", "one", "two"))
    assert planned(graph, "u-web", one="unknown", two="absent") == []


def test_what_is_being_deleted_is_left_alone() -> None:
    graph = graph_of(stored("web", "one", deletionTimestamp="now", finalizers=["a/b"]))
    assert planned(graph, "u-web", one="absent") == []


def test_a_waiting_owner_hands_its_policy_down() -> None:
    graph = graph_of(stored("top", **FOREGROUND), stored("mid", "top"), stored("leaf", "mid"))
    (mid,) = planned(graph, "u-mid", top="waiting")
    assert (mid.node.uid, mid.policy) == ("u-mid", "Foreground")
    (leaf,) = planned(graph, "u-leaf", mid="waiting")
    assert leaf.policy == "Background"
    assert planned(graph, "u-top") == []


def test_owners_in_a_circle_do_not_wait_for_each_other() -> None:
    graph = graph_of(stored("one", "two", **FOREGROUND), stored("two", "one"))
    unblock, delete = planned(graph, "u-two", one="waiting")
    assert isinstance(unblock, Unblock) and isinstance(delete, Delete)


def test_the_foreground_finalizer_goes_when_nobody_blocks() -> None:
    owner = stored("one", **FOREGROUND)
    graph = graph_of(owner, stored("web", "one"))
    assert planned(graph, "u-one") == []
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": "u-one"}
    lenient = stored("web", ownerReferences=[reference])
    graph.apply(lenient)
    (action,) = planned(graph, "u-one")
    assert action == RemoveFinalizer(graph.node("u-one"), "foregroundDeletion")  # type: ignore[arg-type]  # it is there


def test_orphans_lose_this_owner_before_it_goes() -> None:
    graph = graph_of(
        stored("one", deletionTimestamp="now", finalizers=["orphan"]), stored("web", "one", "two")
    )
    drop, remove = planned(graph, "u-one")
    assert isinstance(drop, DropOwners) and drop.uids == {"u-one"}
    assert isinstance(remove, RemoveFinalizer) and remove.finalizer == "orphan"


def test_dependents_are_looked_for_in_the_owners_namespace() -> None:
    far = stored("far", "one", namespace="b")
    graph = graph_of(stored("one"), stored("near", "one"), far)
    one = graph.node("u-one")
    assert one is not None
    assert [node.uid for node in graph.dependents(one)] == ["u-near"]


def test_the_graph_says_whom_a_write_concerns() -> None:
    graph = graph_of(stored("web", "one"))
    assert graph.apply(stored("one")) == {"u-one"}
    assert graph.apply(stored("one", **FOREGROUND)) == {"u-one", "u-web"}
    gone = stored("one")
    assert "u-web" in graph.apply(Event(2, "DELETED", "pods", gone.key, gone.body, None))
    assert graph.node("u-one") is None
    assert "u-one" in graph.apply(stored("web"))  # the reference was removed
    assert "u-web" not in graph.apply(stored("one"))


def test_the_node_of_an_object_without_metadata_fields() -> None:
    node = node_of("pods", ("a", "x"), {"metadata": {"uid": "u"}})
    assert not node.concerned and node.owners == ()


# --- the collector -----------------------------------------------------------------------------


@pytest.fixture
def crashes() -> list[str]:
    return []


@pytest.fixture
def api(crashes: list[str]) -> Iterator[Api]:
    made = Api()
    made.bootstrap()
    collector = Collector(made, lambda: crashes.append("crashed"), patience=0)
    collector.start()
    yield made
    collector.stop()
    assert crashes == []


def make(api: Api, plural: str, name: str, *owners: Json, namespace: str = "default") -> Json:
    kind = next(k for k in api.catalogue.kinds if k.plural == plural)
    references = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        for owner in owners
    ]
    body: Json = {"metadata": {"name": name, "ownerReferences": references}}
    return api.create(kind, namespace if kind.namespaced else "", body)


def eventually(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(api: Api, resource: str = "pods") -> list[str]:
    return [body["metadata"]["name"] for body in api.store.list(resource)[0]]


def settle(api: Api) -> None:
    """Wait until the collector has seen everything: it collects a canary made after it."""
    owner: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "no", "uid": "no"}}
    make(api, "configmaps", "canary", owner)
    eventually(lambda: "canary" not in names(api, "configmaps"))


def test_chains_are_collected(api: Api) -> None:
    vm = make(api, "virtualmachines", "vm")
    vmi = make(api, "virtualmachineinstances", "vm", vm)
    launcher = make(api, "pods", "launcher", vmi)
    make(api, "pods", "volume", launcher)
    settle(api)
    assert names(api) == ["launcher", "volume"]
    api.delete(api.kind("kubevirt.io", "v1", "virtualmachines"), "default", "vm")
    eventually(lambda: names(api) == [])


def test_an_owner_of_another_uid_or_namespace_is_none(api: Api) -> None:
    make(api, "namespaces", "shop")
    owner = make(api, "pods", "owner")
    impostor: Json = {**owner, "metadata": {**owner["metadata"], "uid": "other"}}
    make(api, "pods", "forged", impostor)
    make(api, "pods", "far", owner, namespace="shop")
    make(api, "pods", "near", owner)
    settle(api)
    assert names(api) == ["near", "owner"]


def test_owners_that_cannot_be_looked_up_keep_their_dependents(api: Api) -> None:
    """A cluster-wide object cannot have a namespaced owner, and an unknown kind is not absent."""
    vmi = make(api, "virtualmachineinstances", "vm")
    make(api, "nodes", "node1", vmi)
    gadget: Json = {"apiVersion": "x/v1", "kind": "Gadget", "metadata": {"name": "g", "uid": "g"}}
    make(api, "pods", "web", gadget)
    api.delete(api.kind("kubevirt.io", "v1", "virtualmachineinstances"), "default", "vm")
    settle(api)
    assert (names(api), names(api, "nodes")) == (["web"], ["node1"])


def test_admission_that_refuses_is_asked_again(api: Api) -> None:
    asked: list[str] = []

    def hook(verb: str, resource: str, body: Json, old: Json | None) -> Json:
        if verb == "delete" and resource == "pods":
            asked.append(body["metadata"]["name"])
            if len(asked) == 1:
                raise ApiError(429, "TooManyRequests", "not yet")
        return body

    api.hooks.append(hook)
    owner = make(api, "configmaps", "owner")
    make(api, "pods", "web", owner)
    api.delete(api.kind("", "v1", "configmaps"), "default", "owner")
    eventually(lambda: names(api) == [])
    assert asked == ["web", "web"]


def test_a_collector_that_starts_late_finds_everything(crashes: list[str]) -> None:
    api = Api()
    api.bootstrap()
    owner = make(api, "pods", "owner")
    make(api, "pods", "web", owner)
    api.delete(api.kind("", "v1", "pods"), "default", "owner")
    collector = Collector(api, lambda: crashes.append("crashed"), patience=0)
    collector.start()
    try:
        eventually(lambda: names(api) == [])
    finally:
        collector.stop()
    assert crashes == []


@pytest.mark.parametrize("patience", [3600.0, 0.3])
def test_an_owner_nobody_saw_has_time_to_turn_up(crashes: list[str], patience: float) -> None:
    """A witnessed deletion counts at once; a forged or early reference after the patience."""
    api = Api()
    api.bootstrap()
    collector = Collector(api, lambda: crashes.append("crashed"), patience=patience)
    collector.start()
    try:
        absent: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "uid": "x"}}
        make(api, "pods", "forged", absent)
        owner = make(api, "configmaps", "owner")
        make(api, "pods", "web", owner)
        api.delete(api.kind("", "v1", "configmaps"), "default", "owner")
        eventually(lambda: "web" not in names(api))
        if patience > 1:
            assert names(api) == ["forged"]
        else:
            eventually(lambda: names(api) == [])
    finally:
        collector.stop()
    assert crashes == []
