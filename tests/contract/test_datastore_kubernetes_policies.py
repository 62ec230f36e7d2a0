"""Policies that Calico before v3.32 stored: `default.<name>`, in every operation under their name.

Older programs go on working with the object, so it stays where it is and as they know it. Calico's
controller renames it: new object first, then the old one's removal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.port import Check, Create, Delete, Put, Record, Unchanged, Update
from libtortie.errors import AlreadyExists, Conflict, Malformed, NotFound, Unavailable
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import Resource, parse_resource
from tests.fakes.followed import following
from tests.fakes.kubernetes_store import kubernetes_api, put_object, stores_of

PACKED = "projectcalico.org/metadata"
KINDS = {Kind.NETWORK_POLICY: "shop", Kind.GLOBAL_NETWORK_POLICY: ""}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        yield running


@pytest.fixture
def store(server: ApiServer) -> Iterator[KubernetesDatastore]:
    with stores_of(server, Group.V1) as (opened,):
        yield opened


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def key_of(kind: Kind, name: str = "allow-web") -> ResourceKey:
    return ResourceKey(kind, name, KINDS[kind])


def put(server: ApiServer, kind: Kind, name: str, packed: str | None = "{}", **spec: Any) -> None:
    """An object as Calico itself stores it."""
    meta: dict[str, Any] = {"name": name, "namespace": KINDS[kind]}
    if packed is not None:
        meta["annotations"] = {PACKED: packed}
    put_object(server, resource(kind), {"metadata": meta, "spec": {"order": 10, **spec}})


def resource(kind: Kind) -> str:
    return f"{kind.plural}.crd.projectcalico.org"


def stored(server: ApiServer, kind: Kind, name: str) -> dict[str, Any] | None:
    return server.api.store.get(resource(kind), (KINDS[kind], name))


def policy(kind: Kind, name: str = "allow-web", **spec: Any) -> Resource:
    meta = {"name": name, **({"namespace": KINDS[kind]} if KINDS[kind] else {})}
    return parse_resource(kind, {"kind": kind.value, "metadata": meta, "spec": spec})


def with_order(record: Record, order: int, **spec: Any) -> Resource:
    assert isinstance(record.value, Resource)
    wire = record.value.to_wire()
    return parse_resource(
        record.value.key.kind, {**wire, "spec": {**wire["spec"], "order": order, **spec}}
    )


def order_of(record: Record) -> Any:
    assert isinstance(record.value, Resource)
    return record.value.to_wire()["spec"]["order"]


@pytest.mark.parametrize("tier", [{}, {"tier": ""}, {"tier": "default"}])
@pytest.mark.parametrize("packed", ["{}", None, '{"labels":{"a":"b"}}'])
def test_what_a_list_shows_can_be_read_and_replaced(
    server: ApiServer, store: KubernetesDatastore, kind: Kind, tier: Any, packed: str | None
) -> None:
    put(server, kind, "default.allow-web", packed, **tier)
    (shown,) = store.list(Resources(kind)).records
    assert shown.key == key_of(kind)
    assert store.get(shown.key) == shown
    assert store.names(Resources(kind)) == (shown.key,)
    changed = store.update(shown.key, with_order(shown, 20), shown.revision)
    assert store.get(shown.key) == changed
    assert order_of(changed) == 20
    assert stored(server, kind, "allow-web") is None
    body = stored(server, kind, "default.allow-web")
    assert body is not None
    assert "name" not in json.loads(body["metadata"]["annotations"][PACKED])
    with pytest.raises(Conflict):
        store.update(shown.key, with_order(shown, 30), shown.revision)
    with pytest.raises(AlreadyExists, match=r"default\.allow-web"):
        store.create(shown.key, policy(kind, order=1))
    store.delete(shown.key, changed.revision)
    assert store.list(Resources(kind)).records == ()
    with pytest.raises(NotFound):
        store.get(shown.key)


def test_in_commits_snapshots_and_scopes_of_one(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    put(server, kind, "default.allow-web")
    key = key_of(kind)
    record = store.get(key)
    taken = store.snapshot([key], [key])
    assert taken.records == {key: record}
    assert taken.listings[key].records == (record,)
    store.commit([Check(key, record.revision), Unchanged(key, taken.listings[key].revision)])
    (after,) = store.commit([Update(key, with_order(record, 11), record.revision)])
    assert after is not None
    with pytest.raises(Conflict):
        store.commit([Unchanged(key, taken.listings[key].revision)])
    with pytest.raises(Conflict):
        store.commit([Create(key, policy(kind, order=1))])
    with pytest.raises(Conflict):
        store.commit([Delete(key, record.revision)])
    store.commit([Delete(key, after.revision)])
    assert store.list(key).records == ()


def test_a_watch_of_one_sees_it_under_its_name(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    key = key_of(kind)
    with following(store, key, store.list(key).revision) as follow:
        put(server, kind, "default.other")
        put(server, kind, "default.allow-web")
        event = follow.next()
        assert isinstance(event, Put)
        assert event.record == store.get(key)


def test_it_may_move_to_another_tier(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    """Then the old name would say another name: from now on its own is stored."""
    put(server, kind, "default.allow-web")
    record = store.get(key_of(kind))
    for order, tier in enumerate(("ops", "ops", "default", "ops")):
        record = store.update(record.key, with_order(record, order, tier=tier), record.revision)
        assert store.get(record.key) == record
        assert [one.key for one in store.list(Resources(kind)).records] == [record.key]
    store.delete(record.key, record.revision)
    assert store.list(Resources(kind)).records == ()


@pytest.mark.parametrize("packed", ["{}", '{"name":"default.a"}'])
def test_what_no_older_release_named_so_has_its_own_name(
    server: ApiServer, store: KubernetesDatastore, kind: Kind, packed: str
) -> None:
    """Of another tier, or with a name that was stored with it."""
    put(server, kind, "default.a", packed, tier="ops" if packed == "{}" else "")
    (shown,) = store.list(Resources(kind)).records
    assert shown.key == key_of(kind, "default.a")
    assert store.get(shown.key) == shown
    changed = store.update(shown.key, with_order(shown, 3), shown.revision)
    assert store.get(shown.key) == changed
    with pytest.raises(NotFound):
        store.get(key_of(kind, "a"))
    with pytest.raises(NotFound):
        store.delete(key_of(kind, "a"))
    beside = store.create(key_of(kind, "a"), policy(kind, "a", order=1))
    assert list(store.list(Resources(kind)).records) == [beside, changed]
    store.delete(shown.key)
    assert list(store.list(Resources(kind)).records) == [beside]


def test_by_the_name_of_its_object_it_is_nowhere(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    put(server, kind, "default.allow-web")
    (shown,) = store.list(Resources(kind)).records
    other = key_of(kind, "default.allow-web")
    with pytest.raises(NotFound):
        store.get(other)
    with pytest.raises(NotFound):
        store.update(other, policy(kind, "default.allow-web", order=9), shown.revision)
    with pytest.raises(NotFound):
        store.delete(other)
    with pytest.raises(NotFound):
        store.delete(other, shown.revision)
    for revision in ("", "x", "1"):
        with pytest.raises(Conflict):
            store.delete(shown.key, revision)
    assert list(store.list(Resources(kind)).records) == [shown]


def test_so_has_one_of_ours_whose_name_begins_like_that(
    store: KubernetesDatastore, kind: Kind
) -> None:
    made = [store.create(key_of(kind, n), policy(kind, n, order=1)) for n in ("a", "default.a")]
    assert list(store.list(Resources(kind)).records) == made
    assert [store.get(one.key) for one in made] == made


def test_ours_are_made_under_their_own_names(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    key = key_of(kind)
    made = store.create(key, policy(kind, order=1))
    assert stored(server, kind, "allow-web") is not None
    server.audit.clear()
    assert store.get(key) == made
    assert len(server.audit) == 1, "one request where there is nothing old"
    store.delete(key)
    with pytest.raises(NotFound):
        store.delete(key)


def renamed(server: ApiServer, kind: Kind) -> None:
    """Calico's controller was stopped between its two steps."""
    put(server, kind, "default.allow-web", order=1)
    put(server, kind, "allow-web", '{"name":"allow-web"}', order=2)


def test_half_renamed_it_is_the_new_one(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    renamed(server, kind)
    key = key_of(kind)
    (shown,) = store.list(Resources(kind)).records
    assert store.names(Resources(kind)) == (key,)
    assert store.get(key) == shown
    assert order_of(shown) == 2
    store.update(key, with_order(shown, 3), shown.revision)
    old = stored(server, kind, "default.allow-web")
    assert old is not None
    assert old["spec"]["order"] == 1


@pytest.mark.parametrize("both", [True, False])
def test_the_removal_of_an_old_name_is_no_removal_of_the_policy(
    server: ApiServer, store: KubernetesDatastore, kind: Kind, both: bool
) -> None:
    """A watch can't tell whether the new one is there: it says so, the list tells."""
    put(server, kind, "default.allow-web", order=1)
    before = store.list(Resources(kind))
    with following(store, Resources(kind), before.revision) as follow:
        if both:
            renamed(server, kind)
        server.api.delete(
            server.api.kind("crd.projectcalico.org", "v1", kind.plural),
            KINDS[kind],
            "default.allow-web",
        )
        assert isinstance(follow.join(), Unavailable)
        assert all(isinstance(event, Put) for event in follow.events)
    assert len(store.list(Resources(kind)).records) == both


@pytest.mark.parametrize("name", ["default.allow-web", "allow-web"])
def test_one_that_cannot_be_read_is_named_and_hides_no_other(
    server: ApiServer, store: KubernetesDatastore, kind: Kind, name: str
) -> None:
    put(server, kind, name, "{")
    put(server, kind, "default.fine")
    listing = store.list(Resources(kind))
    assert [one.key for one in listing.records] == [key_of(kind, "fine")]
    assert len(listing.malformed) == 1
    assert name in listing.malformed[0]
    with pytest.raises(Malformed, match=name):
        store.get(key_of(kind))
    with pytest.raises(AlreadyExists, match=name):
        store.create(key_of(kind), policy(kind, order=1))
    store.delete(key_of(kind))
    assert store.list(Resources(kind)).malformed == ()


def test_in_the_younger_group_a_name_is_a_name(server: ApiServer, kind: Kind) -> None:
    with stores_of(server, Group.V3) as (store,):
        key = key_of(kind, "default.allow-web")
        made = store.create(key, policy(kind, "default.allow-web", order=1))
        assert store.get(key) == made
        with pytest.raises(NotFound):
            store.get(key_of(kind))
