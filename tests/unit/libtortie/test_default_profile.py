"""The profile that always is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from libtortie.datastore import gojson
from libtortie.datastore.codec import encode
from libtortie.datastore.default_profile import KEY, RECORD, WithDefaultProfile
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Create, Datastore, Delete, Update
from libtortie.errors import InvalidInput, NotFound
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import Resource, Tier, parse_resource

PROFILES = Resources(Kind.PROFILE)


def profile(name: str) -> Resource:
    return parse_resource(Kind.PROFILE, {"kind": "Profile", "metadata": {"name": name}})


@pytest.fixture
def store() -> WithDefaultProfile:
    inner = MemoryDatastore()
    for name in ("kns.shop", "z"):
        inner.create(ResourceKey(Kind.PROFILE, name), profile(name))
    return WithDefaultProfile(inner)


def test_it_allows_everything() -> None:
    assert gojson.loads(encode(KEY, RECORD.value)) == {
        "kind": "Profile",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "projectcalico-default-allow"},
        "spec": {"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]},
    }
    assert RECORD.revision == "1"


def test_it_is_read_wherever_it_could_be(store: WithDefaultProfile) -> None:
    assert store.get(KEY) == RECORD
    names = ["kns.shop", KEY.name, "z"]
    listed = store.list(PROFILES).records
    assert [getattr(one.key, "name", "") for one in listed] == names
    assert [getattr(one, "name", "") for one in store.names(PROFILES)] == names
    assert store.list(KEY).records == (RECORD,)
    assert store.names(KEY) == (KEY,)
    whole = store.snapshot([KEY, ResourceKey(Kind.PROFILE, "z")], [PROFILES])
    assert whole.records[KEY] == RECORD
    assert len(whole.records) == 2
    assert whole.listings[PROFILES].records == listed
    assert KEY not in store.snapshot([], []).records


def test_other_scopes_and_keys_are_the_stores(store: WithDefaultProfile) -> None:
    tiers = Resources(Kind.TIER)
    assert store.list(tiers).records == ()
    assert store.names(tiers) == ()
    tier = Tier.model_validate({"metadata": {"name": "t"}})
    born = store.create(tier.key, tier)
    assert store.get(tier.key) == born == store.inner.get(tier.key)
    changed = store.update(tier.key, tier, born.revision)
    store.commit((Update(tier.key, tier, changed.revision),))
    store.delete(tier.key)
    with pytest.raises(NotFound):
        store.get(tier.key)
    with store.watch(tiers, store.list(tiers).revision) as watch:
        watch.close()
    assert store.atomic is store.inner.atomic


WRITES: dict[str, Callable[[Datastore], object]] = {
    "Create": lambda store: store.create(KEY, RECORD.value),
    "Update": lambda store: store.update(KEY, RECORD.value, "1"),
    "Delete": lambda store: store.delete(KEY),
    "Create in a commit": lambda store: store.commit((Create(KEY, RECORD.value),)),
    "Update in a commit": lambda store: store.commit((Update(KEY, RECORD.value, "1"),)),
    "Delete in a commit": lambda store: store.commit((Delete(KEY, "1"),)),
}


@pytest.mark.parametrize("write", WRITES)
def test_it_is_never_stored(store: WithDefaultProfile, write: str) -> None:
    text = rf"operation {write.split(maxsplit=1)[0]} is not supported on Profile\({KEY.name}\)"
    with pytest.raises(InvalidInput, match=text):
        WRITES[write](store)
    with pytest.raises(NotFound):
        store.inner.get(KEY)


def test_one_that_somebody_stored_is_not_shown_twice(store: WithDefaultProfile) -> None:
    store.inner.create(KEY, profile(KEY.name))
    assert [one.key for one in store.list(PROFILES).records].count(KEY) == 1
    assert store.names(PROFILES).count(KEY) == 1
    assert store.get(KEY) == RECORD
