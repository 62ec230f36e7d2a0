"""One suite for every `KubeClient`: the fake, and the real one over HTTP and over TLS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.apiserver.api import Api
from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer, Tls
from libtortie.errors import (
    AlreadyExists,
    Compacted,
    Conflict,
    InvalidInput,
    NotFound,
    Unauthorized,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig, Material, direct
from libtortie.kube.objects import (
    KubeNode,
    KubeObject,
    Namespace,
    Pod,
    VirtualMachine,
    VirtualMachineInstance,
)
from libtortie.kube.port import Applied, Bookmark, Gone, Overloaded, PatchType
from tests.fakes.certificates import Authority
from tests.fakes.kube import FakeKube

Client = FakeKube | HttpKubeClient
TOKEN = "s3cret-token"

PROMPT = 45.0
"""Seconds; a watch that was not told to stop would take a minute at least."""


class World:
    """A client, and the API behind it as its administrator sees it."""

    def __init__(self, client: Client, api: Api, server: ApiServer | None) -> None:
        self.client, self.api, self.server = client, api, server

    def make(self, model: type[KubeObject], name: str, namespace: str = "", **body: Any) -> Any:
        """Create an object behind the client's back."""
        api = model.api
        kind = self.api.kind(api.group, api.version, api.plural)
        meta = {"name": name, **body.pop("metadata", {})}
        return self.api.create(kind, namespace, {"metadata": meta, **body})

    def cut(self) -> None:
        """End every open watch, quietly or not."""
        if isinstance(self.client, FakeKube):
            self.client.cut_watches(Unavailable("cut"))
        else:
            assert self.server is not None
            self.server.cut_watches(mid_line=True)

    def compact(self) -> None:
        """Forget history."""
        if self.server is not None:
            self.server.compact()
        else:
            self.api.store.compact()


def _tls_world(directory: Path) -> tuple[ApiServer, KubeConfig]:
    authority = Authority(directory)
    pair = authority.server("server")
    user = authority.client("node-1", "system:nodes")
    server = ApiServer(
        tokens={TOKEN: "alice"},
        tls=Tls(pair.cert, pair.key, authority.cert),
        bookmark_interval=0.05,
    ).start()
    config = KubeConfig(
        server.url,
        ca=Material(path=authority.cert),
        client_cert=Material(path=user.cert),
        client_key=Material(path=user.key),
    )
    return server, config


@pytest.fixture(params=["fake", "http", "https"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "fake":
        fake = FakeKube()
        fake.api.bootstrap()
        yield World(fake, fake.api, None)
        return
    if request.param == "http":
        server = ApiServer(tokens={TOKEN: "alice"}, bookmark_interval=0.05).start()
        config = direct(server.url, TOKEN)
    else:
        server, config = _tls_world(tmp_path)
    client = HttpKubeClient(config)
    try:
        yield World(client, server.api, server)
    finally:
        client.close()
        server.close()
        assert server.crashes == []


class Stream:
    """A watch consumed on its own thread."""

    def __init__(self, events: Callable[[threading.Event], Iterator[Any]]) -> None:
        self.stop = threading.Event()
        self.seen: list[Any] = []
        self.error: Exception | None = None
        self._grown = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(events,), daemon=True)
        self._thread.start()

    def _run(self, events: Callable[[threading.Event], Iterator[Any]]) -> None:
        try:
            for event in events(self.stop):
                with self._grown:
                    self.seen.append(event)
                    self._grown.notify_all()
        except Exception as error:
            self.error = error

    def until(self, wanted: Callable[[list[Any]], bool], seconds: float = 60.0) -> list[Any]:
        with self._grown:
            assert self._grown.wait_for(lambda: wanted(self.seen), seconds), self.seen
            return list(self.seen)

    def end(self, seconds: float = 60.0) -> float:
        """Stop; returns how long it took."""
        began = time.monotonic()
        self.stop.set()
        self.joined(seconds)
        return time.monotonic() - began

    def joined(self, seconds: float = 60.0) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream did not end"


def names(events: list[Any]) -> list[str]:
    """`+web` for applied, `-web` for gone; bookmarks left out."""
    marks = {Applied: "+", Gone: "-"}
    return [marks[type(e)] + e.object.metadata.name for e in events if not isinstance(e, Bookmark)]


def watching(world: World, version: str, **options: Any) -> Stream:
    return Stream(
        lambda stop: world.client.watch(Pod, resource_version=version, stop=stop, **options)
    )


# --- get, list, create, delete -----------------------------------------------------------------


def test_get_returns_the_view(world: World) -> None:
    made = world.make(
        Pod, "web", "default", spec={"nodeName": "n1"}, metadata={"labels": {"a": "b"}}
    )
    pod = world.client.get(Pod, "web", "default")
    assert pod.spec.node_name == "n1"
    assert pod.metadata.labels == {"a": "b"}
    assert pod.metadata.uid == made["metadata"]["uid"]
    assert pod.metadata.resource_version == made["metadata"]["resourceVersion"]


def test_get_of_nothing_names_it(world: World) -> None:
    with pytest.raises(NotFound, match=r"get pods.*web.* at \S+://"):
        world.client.get(Pod, "web", "default")


def test_list_is_by_namespace_or_all_and_has_a_version(world: World) -> None:
    world.make(Namespace, "shop")
    world.make(Pod, "a", "default")
    last = world.make(Pod, "b", "shop")
    everything, version = world.client.list(Pod)
    assert [(p.metadata.namespace, p.metadata.name) for p in everything] == [
        ("default", "a"),
        ("shop", "b"),
    ]
    assert version == last["metadata"]["resourceVersion"]
    assert [p.metadata.name for p in world.client.list(Pod, "shop")[0]] == ["b"]


def test_list_of_nothing_has_a_version_to_watch_from(world: World) -> None:
    found, version = world.client.list(VirtualMachine)
    assert found == ()
    assert int(version) > 0


def test_list_selects_by_label_and_field(world: World) -> None:
    world.make(Pod, "a", "default", spec={"nodeName": "n1"}, metadata={"labels": {"app": "x"}})
    world.make(Pod, "b", "default", spec={"nodeName": "n2"}, metadata={"labels": {"app": "y"}})
    world.make(Pod, "c", "default")

    def listed(**selectors: str) -> list[str]:
        return [p.metadata.name for p in world.client.list(Pod, **selectors)[0]]

    assert listed(label_selector="app in (x,y)") == ["a", "b"]
    assert listed(label_selector="app!=x") == ["b", "c"]
    assert listed(field_selector="spec.nodeName=n2") == ["b"]
    assert listed(label_selector="app", field_selector="spec.nodeName!=n2") == ["a"]


def test_a_bad_selector_is_invalid(world: World) -> None:
    with pytest.raises(InvalidInput):
        world.client.list(Pod, label_selector="a in b")
    with pytest.raises(InvalidInput):
        world.client.list(Pod, field_selector="spec.colour=red")


def test_create_twice(world: World) -> None:
    body = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"nodeName": "n1"}}
    assert world.client.create(Pod, body).status.phase == "Pending"
    with pytest.raises(AlreadyExists, match="web"):
        world.client.create(Pod, body)


def test_delete_is_bound_to_the_uid(world: World) -> None:
    made = world.make(Pod, "web", "default")
    with pytest.raises(Conflict, match="UID"):
        world.client.delete(Pod, "web", "default", uid="another")
    world.client.delete(Pod, "web", "default", uid=made["metadata"]["uid"])
    with pytest.raises(NotFound):
        world.client.delete(Pod, "web", "default")


def test_a_finalizer_keeps_a_deleted_object(world: World) -> None:
    world.make(Pod, "web", "default", metadata={"finalizers": ["x/y"]})
    world.client.delete(Pod, "web", "default")
    assert world.client.get(Pod, "web", "default").metadata.deleting
    world.client.patch(Pod, "web", "default", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        world.client.get(Pod, "web", "default")


# --- patch and update --------------------------------------------------------------------------


def test_patch_status_leaves_spec_and_the_reverse(world: World) -> None:
    world.make(Pod, "web", "default", spec={"nodeName": "n1"})
    pod = world.client.patch(
        Pod,
        "web",
        "default",
        {"spec": {"nodeName": "n2"}, "status": {"phase": "Running"}},
        subresource="status",
    )
    assert (pod.spec.node_name, pod.status.phase) == ("n1", "Running")
    pod = world.client.patch(
        Pod, "web", "default", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}}
    )
    assert (pod.metadata.labels, pod.status.phase) == ({"a": "b"}, "Running")


def test_the_plugins_patch_sets_annotations_through_status(world: World) -> None:
    world.make(Pod, "web", "default")
    pod = world.client.patch(
        Pod,
        "web",
        "default",
        {"metadata": {"annotations": {"cni.projectcalico.org/podIP": "10.0.0.1/32"}}},
        patch_type=PatchType.STRATEGIC,
        subresource="status",
    )
    assert pod.metadata.annotations == {"cni.projectcalico.org/podIP": "10.0.0.1/32"}


def test_patch_with_an_old_version_or_uid_conflicts(world: World) -> None:
    made = world.make(Pod, "web", "default")
    old = made["metadata"]["resourceVersion"]
    change: dict[str, Any] = {"metadata": {"resourceVersion": old, "labels": {"n": "1"}}}
    world.client.patch(Pod, "web", "default", change)
    with pytest.raises(Conflict, match="modified"):
        world.client.patch(Pod, "web", "default", change)
    with pytest.raises(Conflict, match="UID"):
        world.client.patch(Pod, "web", "default", {"metadata": {"uid": "another"}})


def test_json_patch_and_its_failure(world: World) -> None:
    world.make(Pod, "web", "default", metadata={"labels": {"a": "1"}})
    test = {"op": "test", "path": "/metadata/labels/a", "value": "1"}
    change = {"op": "replace", "path": "/metadata/labels/a", "value": "2"}
    pod = world.client.patch(Pod, "web", "default", [test, change], patch_type=PatchType.JSON)
    assert pod.metadata.labels == {"a": "2"}
    with pytest.raises(InvalidInput):
        world.client.patch(Pod, "web", "default", [test, change], patch_type=PatchType.JSON)


def test_update_needs_the_version_read(world: World) -> None:
    world.make(VirtualMachine, "vm", "default", spec={"running": True})
    seen = world.client.get(VirtualMachine, "vm", "default").metadata
    body = {
        "metadata": {
            "name": "vm",
            "namespace": "default",
            "resourceVersion": seen.resource_version,
        },
        "spec": {"running": False},
    }
    world.client.update(VirtualMachine, body)
    with pytest.raises(Conflict):
        world.client.update(VirtualMachine, body)
    del body["metadata"]["resourceVersion"]  # type: ignore[attr-defined]  # a literal of our own
    with pytest.raises(InvalidInput, match="resourceVersion"):
        world.client.update(VirtualMachine, body)


def test_custom_resources_take_no_strategic_patch(world: World) -> None:
    world.make(VirtualMachineInstance, "vm", "default")
    with pytest.raises(InvalidInput, match="unknown format"):
        world.client.patch(
            VirtualMachineInstance, "vm", "default", {}, patch_type=PatchType.STRATEGIC
        )


# --- watch -------------------------------------------------------------------------------------


def test_watch_tells_what_happens_after_the_list(world: World) -> None:
    world.make(Pod, "old", "default")
    _, version = world.client.list(Pod)
    stream = watching(world, version)
    world.make(Pod, "new", "default")
    world.client.patch(Pod, "old", "default", {"metadata": {"labels": {"a": "b"}}})
    world.client.delete(Pod, "new", "default")
    seen = stream.until(lambda s: len(names(s)) == 3)
    assert names(seen) == ["+new", "+old", "-new"]
    versions = [
        int(e.object.metadata.resource_version) for e in seen if not isinstance(e, Bookmark)
    ]
    assert versions == sorted(versions) and versions[0] > int(version)
    stream.end()
    assert stream.error is None


def test_watch_resumes_without_loss_or_repeat(world: World) -> None:
    _, version = world.client.list(Pod)
    world.make(Pod, "a", "default")
    middle = world.make(Pod, "b", "default")["metadata"]["resourceVersion"]
    world.make(Pod, "c", "default")
    stream = watching(world, middle)
    assert names(stream.until(lambda s: len(names(s)) == 1)) == ["+c"]
    stream.end()
    stream = watching(world, version)
    assert names(stream.until(lambda s: len(names(s)) == 3)) == ["+a", "+b", "+c"]
    stream.end()


def test_watch_through_a_selector_sees_objects_come_and_go(world: World) -> None:
    _, version = world.client.list(Pod)
    stream = watching(world, version, label_selector="app=x")
    world.make(Pod, "a", "default")
    world.client.patch(Pod, "a", "default", {"metadata": {"labels": {"app": "x"}}})
    world.client.patch(Pod, "a", "default", {"metadata": {"labels": {"app": "y"}}})
    world.client.patch(Pod, "a", "default", {"metadata": {"labels": {"app": "z"}}})
    world.client.delete(Pod, "a", "default")
    world.make(Pod, "b", "default", metadata={"labels": {"app": "x"}})
    world.client.delete(Pod, "b", "default")
    assert names(stream.until(lambda s: len(names(s)) >= 4)) == ["+a", "-a", "+b", "-b"]
    stream.end()


def test_watch_of_a_namespace(world: World) -> None:
    world.make(Namespace, "shop")
    _, version = world.client.list(Pod, "shop")
    stream = watching(world, version, namespace="shop")
    world.make(Pod, "a", "default")
    world.make(Pod, "b", "shop")
    assert names(stream.until(lambda s: len(names(s)) == 1)) == ["+b"]
    stream.end()


def test_bookmarks_move_the_version_on(world: World) -> None:
    _, version = world.client.list(Pod)
    stream = watching(world, version)
    other = world.make(KubeNode, "n1")["metadata"]["resourceVersion"]
    stream.until(lambda s: any(e == Bookmark(other) for e in s))
    stream.end()
    assert names(stream.seen) == []


def test_stop_ends_an_open_watch_promptly(world: World) -> None:
    _, version = world.client.list(Pod)
    stream = watching(world, version)
    stream.until(lambda s: len(s) > 0)  # it is open: a bookmark came
    assert stream.end() < PROMPT
    assert stream.error is None


def test_compacted_history_is_said_so(world: World) -> None:
    _, version = world.client.list(Pod)
    world.make(Pod, "a", "default")
    world.compact()
    stream = watching(world, version)
    stream.joined()
    assert isinstance(stream.error, Compacted)
    assert stream.seen == []


def test_a_version_of_the_future_is_unavailable(world: World) -> None:
    stream = watching(world, "999999")
    stream.joined()
    assert isinstance(stream.error, Unavailable)


def test_a_cut_stream_is_unavailable(world: World) -> None:
    _, version = world.client.list(Pod)
    stream = watching(world, version)
    stream.until(lambda s: len(s) > 0)
    world.cut()
    stream.joined()
    assert isinstance(stream.error, Unavailable)
    assert names(stream.seen) == []


def test_a_kind_that_is_not_served_is_not_found(world: World) -> None:
    world.api.catalogue.hide("kubevirt.io")
    with pytest.raises(NotFound):
        world.client.list(VirtualMachine)
    with pytest.raises(NotFound):
        next(iter(world.client.watch(VirtualMachine, resource_version="1")))
    world.api.catalogue.offer("kubevirt.io")
    assert world.client.list(VirtualMachine)[0] == ()


def test_one_unreadable_field_does_not_hide_the_others(world: World) -> None:
    world.make(VirtualMachineInstance, "good", "default")
    world.make(VirtualMachineInstance, "odd", "default", spec={"networks": "x", "domain": {}})
    found, _ = world.client.list(VirtualMachineInstance)
    assert [vmi.metadata.name for vmi in found] == ["good", "odd"]
    assert found[1].spec.networks == ()


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (403, Unauthorized),
        (401, Unauthorized),
        (409, Conflict),
        (410, Compacted),
        (422, InvalidInput),
        (429, Overloaded),
        (500, Unavailable),
        (503, Overloaded),
    ],
)
def test_codes_become_typed_errors(code: int, kind: type[Exception]) -> None:
    with ApiServer(tokens={TOKEN: "alice"}) as server:
        client = HttpKubeClient(direct(server.url, TOKEN))
        server.faults.add(Fault(Reject(code, message=f"no, {TOKEN}")), times=2)
        with pytest.raises(kind) as caught:
            client.get(Pod, "web", "default")
        text = str(caught.value)
        assert "get pods default/web" in text
        assert server.url in text
        assert TOKEN not in text
        client.close()
