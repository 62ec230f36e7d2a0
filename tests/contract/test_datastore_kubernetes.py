"""What the Kubernetes datastore promises beside the port: two-phase deletes, groups, faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.port import Check, Create, Delete, Op, Put, Removed, Update
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    PartialCommit,
    Unauthorized,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.model.ipam import BlockAffinity
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    Key,
    Kind,
    ResourceKey,
    Resources,
    Scope,
)
from libtortie.model.resources import IPPool
from tests.fakes.datastore_values import CIDR, block, handle, handle_key
from tests.fakes.followed import DEADLINE, following
from tests.fakes.ipam_world import pool
from tests.fakes.kubernetes_store import kubernetes_api, put_object, stores_of

AFFINITY = AffinityKey("n1", CIDR)
Kept = tuple[Key, Any, Scope]
KEPT: list[Kept] = [
    (BlockKey(CIDR), block(), Blocks(4)),
    (handle_key(), handle(), Handles()),
    (AFFINITY, BlockAffinity(), Affinities("n1")),
]
IDS = ["block", "handle", "affinity"]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        yield running


@pytest.fixture(params=list(Group))
def group(request: pytest.FixtureRequest) -> Group:
    found: Group = request.param
    return found


@pytest.fixture
def store(server: ApiServer, group: Group) -> Iterator[KubernetesDatastore]:
    with stores_of(server, group) as (opened,):
        yield opened


def resource_of(group: Group, key: Key) -> tuple[str, str]:
    """The resource and the object's name, as the server's table has them."""
    plural, name = {
        BlockKey: ("ipamblocks", "10-250-0-4-30"),
        HandleKey: ("ipamhandles", "h1"),
        AffinityKey: ("blockaffinities", "n1-10-250-0-4-30"),
    }[type(key)]
    return f"{plural}.{group.value.partition('/')[0]}", name


def stored(server: ApiServer, group: Group, key: Key) -> dict[str, Any] | None:
    resource, name = resource_of(group, key)
    return server.api.store.get(resource, ("", name))


def mark(server: ApiServer, group: Group, key: Key) -> str:
    """The first half of a deletion, whose writer is killed before the second; its revision."""
    resource, _ = resource_of(group, key)
    body = stored(server, group, key)
    assert body is not None
    as_text = isinstance(key, AffinityKey) and group is Group.V1
    body = {**body, "spec": {**body["spec"], "deleted": "true" if as_text else True}}
    version: str = put_object(server, resource, body)["metadata"]["resourceVersion"]
    return version


# -- deletion in two steps


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_a_delete_marks_and_removes(
    server: ApiServer, group: Group, store: KubernetesDatastore, kept: Kept
) -> None:
    key, value, scope = kept
    made = store.create(key, value)
    with following(store, scope, store.list(scope).revision) as follow:
        store.delete(key, made.revision)
        again = store.create(key, value)
        assert follow.take(2) == [Removed(key), Put(again)]
    resource, _ = resource_of(group, key)
    events, _ = server.api.store.since(resource, 1, 0)
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[1].body["spec"]["deleted"] in (True, "true")


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_a_reader_finishes_a_deletion(
    server: ApiServer, group: Group, store: KubernetesDatastore, kept: Kept
) -> None:
    key, value, scope = kept
    start = store.list(scope).revision
    store.create(key, value)
    mark(server, group, key)
    shown = [record.value for record in store.list(scope).records]
    assert shown == ([] if key == AFFINITY else [replace(value, deleted=True)])
    with following(store, scope, start) as follow:
        assert isinstance(follow.next(), Put)
        assert follow.next() == Removed(key)
        with pytest.raises(NotFound):
            store.get(key)
        assert stored(server, group, key) is None
        again = store.create(key, value)
        assert follow.next() == Put(again)  # its second half was no event


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_a_watch_that_never_saw_the_mark_sees_the_removal(
    server: ApiServer, group: Group, store: KubernetesDatastore, kept: Kept
) -> None:
    key, value, scope = kept
    store.create(key, value)
    mark(server, group, key)
    with following(store, scope, store.list(scope).revision) as follow:
        with pytest.raises(NotFound):
            store.get(key)
        assert follow.next() == Removed(key)


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_what_is_marked_is_in_nobodys_way_and_never_written_to(
    server: ApiServer, group: Group, store: KubernetesDatastore, kept: Kept
) -> None:
    key, value, _ = kept
    first = store.create(key, value)
    marked = mark(server, group, key)
    with pytest.raises(Conflict):
        store.update(key, value, first.revision)
    with pytest.raises(Conflict, match="is being deleted"):
        store.update(key, replace(value, deleted=True), marked)
    assert stored(server, group, key) is None
    second = store.create(key, value)
    mark(server, group, key)
    third = store.create(key, value)
    assert third.value == value
    assert third.revision != second.revision
    with pytest.raises(AlreadyExists):
        store.create(key, value)


@pytest.mark.parametrize("known", ["marked", "before", "none"])
def test_deleting_what_is_marked(
    server: ApiServer, group: Group, store: KubernetesDatastore, known: str
) -> None:
    first = store.create(handle_key(), handle())
    marked = mark(server, group, handle_key())
    if known == "marked":
        store.delete(handle_key(), marked)
    else:
        with pytest.raises(NotFound):
            store.delete(handle_key(), first.revision if known == "before" else None)
    assert stored(server, group, handle_key()) is None


def test_a_reader_who_may_not_delete_sees_nothing_all_the_same(
    server: ApiServer, group: Group, store: KubernetesDatastore
) -> None:
    store.create(handle_key(), handle())
    mark(server, group, handle_key())
    remove = server.faults.add(Fault(Reject(403), verb="delete"))
    with pytest.raises(NotFound):
        store.get(handle_key())
    assert store.commit([Check(handle_key(), None)]) == (None,)
    assert stored(server, group, handle_key()) is not None
    remove()
    with pytest.raises(NotFound):
        store.get(handle_key())
    assert stored(server, group, handle_key()) is None


def test_a_delete_that_was_only_begun_can_be_repeated(
    server: ApiServer, group: Group, store: KubernetesDatastore
) -> None:
    made = store.create(handle_key(), handle())
    server.faults.add(Fault(Reject(503), verb="delete"), times=1)
    with pytest.raises(Unavailable):
        store.delete(handle_key(), made.revision)
    with pytest.raises(NotFound):
        store.delete(handle_key(), made.revision)
    assert stored(server, group, handle_key()) is None


def test_who_writes_over_a_mark_is_not_deleted_with_it(
    server: ApiServer, group: Group, store: KubernetesDatastore
) -> None:
    """Nobody who knows Calico's rules does; another's write must not be lost all the same."""
    made = store.create(handle_key(), handle())

    def revive(verb: str, resource: str, body: dict[str, Any], old: Any) -> dict[str, Any]:
        if verb == "delete" and resource.startswith("ipamhandles"):
            server.api.hooks.clear()
            spec = {**body["spec"], "deleted": False, "block": {str(CIDR): 3}}
            put_object(server, resource, {**body, "spec": spec})
        return body

    server.api.hooks.append(revive)
    with pytest.raises(Conflict):
        store.delete(handle_key(), made.revision)
    assert store.get(handle_key()).value == handle(3)
    store.delete(handle_key())


# -- commits


def test_a_commit_that_stops_says_how_far_it_came(store: KubernetesDatastore) -> None:
    there = store.create(handle_key("there"), handle())
    ops: list[Op] = [
        Check(handle_key("absent"), None),
        Create(handle_key("new"), handle()),
        Delete(handle_key("there"), there.revision),
        Update(handle_key("gone"), handle(2), there.revision),
        Create(handle_key("never"), handle()),
    ]
    with pytest.raises(PartialCommit, match="3 of 5 operations done") as stopped:
        store.commit(ops)
    assert stopped.value.done == 3
    assert isinstance(stopped.value.__cause__, NotFound)
    assert [record.key for record in store.list(Handles()).records] == [handle_key("new")]


def test_requirements_are_looked_at_before_anything_is_written(
    store: KubernetesDatastore,
) -> None:
    store.create(handle_key("there"), handle())
    with pytest.raises(Conflict):
        store.commit([Create(handle_key("new"), handle()), Check(handle_key("there"), "1")])
    with pytest.raises(Conflict):
        store.commit([Create(handle_key("there"), handle()), Create(handle_key("new"), handle())])
    assert len(store.list(Handles()).records) == 1


def test_an_unanswered_first_write_is_unavailable_and_a_later_one_partial(
    server: ApiServer, store: KubernetesDatastore
) -> None:
    server.faults.add(Fault(Reject(503), verb="create"), times=1)
    ops = [Create(handle_key("a"), handle()), Create(BlockKey(CIDR), block())]
    with pytest.raises(Unavailable):
        store.commit(ops)
    plural = "ipamblocks." + store.group.value.partition("/")[0]
    server.faults.add(Fault(Reject(503), verb="create", resource=plural), times=1)
    with pytest.raises(PartialCommit) as stopped:
        store.commit(ops)
    assert stopped.value.done == 1
    assert isinstance(stopped.value.__cause__, Unavailable)


# -- names


def test_handles_that_differ_in_case_alone_are_told_apart(store: KubernetesDatastore) -> None:
    store.create(HandleKey("net.AbC"), handle())
    assert [one.key for one in store.list(Handles()).records] == [HandleKey("net.AbC")]
    with pytest.raises(NotFound):
        store.get(HandleKey("net.abc"))
    with pytest.raises(AlreadyExists, match=r"ipamhandles.*/net\.abc"):
        store.create(HandleKey("net.abc"), handle())
    assert store.get(HandleKey("net.AbC")).value == handle()


def test_what_has_no_name_in_kubernetes_is_absent_and_cannot_be_made(
    store: KubernetesDatastore,
) -> None:
    key = HandleKey("my_net.c1")
    with pytest.raises(NotFound, match="my_net"):
        store.get(key)
    with pytest.raises(InvalidInput, match=r"Kubernetes cannot store the name 'my_net\.c1'"):
        store.create(key, handle())
    with pytest.raises(InvalidInput, match="cannot store"):
        store.commit([Create(handle_key(), handle()), Create(key, handle())])
    assert store.list(Handles()).records == ()


# -- the server


def test_a_missing_crd_is_named_and_nothing_is_taken_for_absent(
    server: ApiServer, group: Group, store: KubernetesDatastore
) -> None:
    name = group.value.partition("/")[0]
    revision = store.list(Handles()).revision
    server.api.catalogue.hide(name)
    missing = rf"does not serve ipamhandles\.{name}: install .*CustomResourceDefinition ipamhandles"
    calls: list[Callable[[], object]] = [
        lambda: store.get(handle_key()),
        lambda: store.list(Handles()),
        lambda: store.create(handle_key(), handle()),
        lambda: store.update(handle_key(), handle(), "5"),
        lambda: store.delete(handle_key()),
        lambda: store.commit([Check(handle_key(), None)]),
        lambda: list(store.watch(Handles(), revision)),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match=missing):
            call()
    server.api.catalogue.offer(name)
    assert store.list(Handles()).records == ()


def test_a_missing_right_names_verb_and_resource(
    server: ApiServer, store: KubernetesDatastore
) -> None:
    server.faults.add(Fault(Reject(403)))
    plural = "ipamhandles." + store.group.value.partition("/")[0].replace(".", r"\.")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.get(handle_key()),
        "list": lambda: store.list(Handles()),
        "create": lambda: store.create(handle_key(), handle()),
        "watch": lambda: list(store.watch(Handles(), "1")),
    }
    for verb, call in calls.items():
        with pytest.raises(Unauthorized, match=rf"{verb} {plural}"):
            call()


def test_the_group_is_the_one_that_is_served(server: ApiServer) -> None:
    with stores_of(server) as (store,):
        assert store.group is Group.V1
    server.api.catalogue.hide("crd.projectcalico.org")
    with stores_of(server) as (store,):
        store.create(handle_key(), handle())
        assert store.group is Group.V3
    assert server.api.store.get("ipamhandles.projectcalico.org", ("", "h1")) is not None


def test_a_server_that_does_not_answer_says_nothing_about_its_groups(server: ApiServer) -> None:
    server.api.catalogue.hide("crd.projectcalico.org")
    with stores_of(server) as (store,):
        server.stop()
        with pytest.raises(Unavailable):
            store.list(Handles())
        server.start()
        store.create(handle_key(), handle())
        assert store.group is Group.V3


@pytest.mark.parametrize("page", [1, 2, 5, 7])
def test_lists_are_read_in_pages(server: ApiServer, page: int) -> None:
    with stores_of(server, Group.V1, page=page) as (store,):
        keys = [handle_key(f"h{number}") for number in range(5)]
        for key in keys:
            store.create(key, handle())
        server.audit.clear()
        assert [record.key for record in store.list(Handles()).records] == keys
        assert store.names(Handles()) == tuple(keys)
        lists = [asked for asked in server.audit if asked.verb == "list"]
        assert len(lists) == 2 * -(-5 // page)


def test_pages_that_expire_are_read_at_once(server: ApiServer) -> None:
    with stores_of(server, Group.V1, page=2) as (store,):
        for number in range(5):
            store.create(handle_key(f"h{number}"), handle())
        gone = Reject(410, "Expired")
        server.faults.add(Fault(gone, verb="list"), times=1)
        assert len(store.list(Handles()).records) == 5


# -- watches


@pytest.mark.parametrize("mid_line", [True, False])
def test_a_broken_stream_is_unavailable_and_nothing_is_deleted(
    server: ApiServer, store: KubernetesDatastore, mid_line: bool
) -> None:
    store.create(handle_key("old"), handle())
    with following(store, Handles(), store.list(Handles()).revision) as follow:
        made = store.create(handle_key(), handle())
        assert follow.next() == Put(made)
        server.cut_watches(mid_line=mid_line)
        assert isinstance(follow.join(), Unavailable)
        assert follow.events == [Put(made)]


def test_a_stream_that_its_server_ends_goes_on(server: ApiServer) -> None:
    with (
        stores_of(server, Group.V1, watch_seconds=1) as (store,),
        following(store, Handles(), store.list(Handles()).revision) as follow,
    ):
        for number in range(3):
            made = store.create(handle_key(f"h{number}"), handle())
            assert follow.next() == Put(made)
            streams, end = watches(server), time.monotonic() + DEADLINE
            while watches(server) == streams:  # the next stream, a second later
                assert time.monotonic() < end, "no stream follows"
                store.get(handle_key(f"h{number}"))


def watches(server: ApiServer) -> int:
    return sum(asked.verb == "watch" for asked in tuple(server.audit))


def test_a_watch_of_an_affinitys_node_asks_for_its_label(
    server: ApiServer, store: KubernetesDatastore
) -> None:
    start = store.list(Affinities("n1")).revision
    with following(store, Affinities("n1"), start) as follow:
        store.create(AffinityKey("n2", CIDR), BlockAffinity())
        mine = store.create(AFFINITY, BlockAffinity())
        assert follow.next() == Put(mine)
    assert [one.key for one in store.list(Affinities("n1")).records] == [AFFINITY]


# -- resources


def test_a_pool_with_a_finalizer_stays_and_says_that_it_goes(
    server: ApiServer, group: Group, store: KubernetesDatastore
) -> None:
    made = store.create(ResourceKey(Kind.IP_POOL, "a"), pool("a", "10.0.0.0/24"))
    resource = f"ippools.{group.value.partition('/')[0]}"
    body = server.api.store.get(resource, ("", "a"))
    assert body is not None
    held = {**body["metadata"], "finalizers": ["projectcalico.org/ippool-finalizer"]}
    put_object(server, resource, {**body, "metadata": held})
    found = store.get(made.key)
    assert isinstance(found.value, IPPool)
    off = found.value.spec.model_copy(update={"disabled": True})
    changed = store.update(
        made.key, pool("a", "10.0.0.0/24").model_copy(update={"spec": off}), found.revision
    )
    store.delete(made.key, changed.revision)
    (left,) = store.list(Resources(Kind.IP_POOL)).records
    assert isinstance(left.value, IPPool)
    assert left.value.spec.disabled
    assert left.value.metadata.deletion_timestamp
    now = server.api.store.get(resource, ("", "a"))
    assert now is not None
    assert now["metadata"]["finalizers"] == held["finalizers"]


def test_a_client_that_is_closed_with_its_store(server: ApiServer) -> None:
    client = HttpKubeClient(direct(server.url))
    closed: list[bool] = []
    with closing(KubernetesDatastore(client, close=lambda: closed.append(True))) as store:
        store.create(handle_key(), handle())
    assert closed == [True]
    client.close()


def test_malformed_objects_are_named_and_others_work(
    server: ApiServer, group: Group, store: KubernetesDatastore
) -> None:
    good = store.create(BlockKey(CIDR), block())
    resource = f"ipamblocks.{group.value.partition('/')[0]}"
    for name, spec in {
        "10-250-0-8-30": {"cidr": "10.250.0.8/30", "allocations": [7, None, None, None]},
        "10-250-0-12-30": {"cidr": "10.250.0.16/30"},
        "10-250-0-13-30": {"cidr": "10.250.0.13/30"},
        "fd00---30": {},
    }.items():
        put_object(server, resource, {"metadata": {"name": name}, "spec": spec})
    put_object(server, resource, {"metadata": {"name": "10-250-0-20-30"}})
    listing = store.list(Blocks(4))
    assert listing.records == (good,)
    assert [text.partition(": ")[0].partition("/")[2] for text in sorted(listing.malformed)] == [
        "10-250-0-12-30",
        "10-250-0-13-30",
        "10-250-0-20-30",
        "10-250-0-8-30",
    ]
    assert store.get(BlockKey(CIDR)) == good
    assert store.names(Blocks(6)) == (BlockKey(ip_network("fd00::/30")),)
