"""One setting in several places: who decides, what is written where, what is never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ipam.attempts import Attempts, Retry
from ipam.configure import Change, changed, configure
from ipam.persistence import persistence
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import (
    InvalidInput,
    Malformed,
    NotFound,
    TortieError,
    Unauthorized,
    Unavailable,
)
from libtortie.kube.objects import IPAMSettings, IPAMSettingsV1
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Kind, ResourceKey
from libtortie.model.resources import IPAMConfiguration
from tests.fakes.faulty_store import Fault, FaultyStore
from tests.fakes.ipam_world import World
from tests.fakes.kube import FakeKube

ON, OFF = Persistence.ENABLED, Persistence.DISABLED
V3, V1 = "projectcalico.org", "crd.projectcalico.org"
RESOURCE = ResourceKey(Kind.IPAM_CONFIGURATION, "default")
GETS = [("get", "ipamconfigurations"), ("get", "ipamconfigs")]


def api(kube: FakeKube, spec: Any, kind: type[IPAMSettings] = IPAMSettings) -> FakeKube:
    kube.put({"metadata": {"name": "default"}, "spec": spec}, kind)
    return kube


def setting(value: str | None) -> dict[str, Any]:
    """A spec with what the older group requires."""
    required = {"strictAffinity": False, "autoAllocateBlocks": True}
    return {**required, "kubeVirtVMAddressPersistence": value}


def unserved() -> FakeKube:
    kube = FakeKube()
    kube.hide(V3)
    kube.hide(V1)
    return kube


def absent_and_v1_not_served() -> FakeKube:
    kube = FakeKube()
    kube.hide(V1)
    return kube


def only_v1(value: str | None) -> FakeKube:
    kube = api(FakeKube(), setting(value), IPAMSettingsV1)
    kube.hide(V3)
    return kube


SILENT: dict[str, Callable[[], FakeKube | None]] = {
    "no API": lambda: None,
    "not served": unserved,
    "absent": FakeKube,
    "absent, v3 only": absent_and_v1_not_served,
    "not set": lambda: api(FakeKube(), {"strictAffinity": True}),
    "null": lambda: api(FakeKube(), setting(None)),
    "empty": lambda: api(FakeKube(), setting("")),
    "no spec": lambda: api(FakeKube(), None),
    "v1 not set": lambda: only_v1(None),
    "not set, whatever v1 says": lambda: api(
        api(FakeKube(), setting("Disabled"), IPAMSettingsV1), setting(None)
    ),
}
STORES: dict[str, tuple[Persistence | None, Persistence | None, Persistence]] = {
    "nothing": (None, None, ON),
    "record on": (ON, None, ON),
    "record off": (OFF, None, OFF),
    "resource off": (None, OFF, OFF),
    "only the resource off": (ON, OFF, OFF),
    "only the record off": (OFF, ON, OFF),
    "both on": (ON, ON, ON),
}


def store_with(record: Persistence | None, resource: Persistence | None) -> MemoryDatastore:
    world = World(MemoryDatastore())
    if record is not None:
        world.config(kubevirt_persistence=record)
    if resource is not None:
        world.resource(Kind.IPAM_CONFIGURATION, "default", setting(resource.value))
    assert isinstance(world.store, MemoryDatastore)
    return world.store


@pytest.mark.parametrize("stored", STORES)
@pytest.mark.parametrize("word", SILENT)
def test_where_the_api_says_nothing_the_datastore_decides(word: str, stored: str) -> None:
    record, resource, expected = STORES[stored]
    found = persistence(store_with(record, resource), SILENT[word]())
    assert found.value is expected
    assert ("datastore" in found.place) is (stored != "nothing")


@pytest.mark.parametrize("stored", STORES)
@pytest.mark.parametrize("value", list(Persistence))
@pytest.mark.parametrize("kind", [IPAMSettings, IPAMSettingsV1])
def test_what_the_api_sets_wins(kind: type[IPAMSettings], value: Persistence, stored: str) -> None:
    record, resource, _ = STORES[stored]
    kube = api(FakeKube(), setting(value.value), kind)
    found = persistence(store_with(record, resource), kube)
    assert found.value is value
    assert found.place == f"{kind.api.plural}.{kind.api.group}/default"


def test_one_read_where_the_object_is() -> None:
    kube = api(FakeKube(), setting("Disabled"))
    persistence(MemoryDatastore(), kube)
    assert kube.calls == GETS[:1]
    kube = api(FakeKube(), setting(None))
    persistence(MemoryDatastore(), kube)
    assert kube.calls == GETS[:1]
    kube = only_v1("Disabled")
    persistence(MemoryDatastore(), kube)
    assert kube.calls == GETS


def test_v3_comes_before_v1() -> None:
    kube = api(api(FakeKube(), setting("Disabled"), IPAMSettingsV1), setting("Enabled"))
    assert persistence(MemoryDatastore(), kube).value is ON


@pytest.mark.parametrize("stored", STORES)
@pytest.mark.parametrize(
    "error", [Unauthorized("HTTP 403"), Unavailable("refused"), Malformed("not JSON")]
)
@pytest.mark.parametrize("plural", ["ipamconfigurations", "ipamconfigs"])
def test_an_api_that_cannot_be_read_is_no_answer(
    plural: str, error: TortieError, stored: str
) -> None:
    record, resource, _ = STORES[stored]
    kube = FakeKube()
    kube.fail(error, verb="get", plural=plural)
    with pytest.raises(type(error)):
        persistence(store_with(record, resource), kube)


@pytest.mark.parametrize(
    "spec", ["x", ["x"], setting("disabled"), {"kubeVirtVMAddressPersistence": False}, setting("x")]
)
def test_a_value_nobody_can_read_is_no_answer(spec: Any) -> None:
    kube = api(FakeKube(), spec)
    with pytest.raises(Malformed, match=r"ipamconfigurations\.projectcalico\.org/default"):
        persistence(store_with(ON, ON), kube)


def test_a_datastore_that_cannot_be_read_is_no_answer() -> None:
    closed = MemoryDatastore()
    closed.close()
    with pytest.raises(Unavailable):
        persistence(closed, FakeKube())


# --- setting it ------------------------------------------------------------------------------


def run(store: Any, kube: FakeKube | None, **change: Any) -> str:
    attempts = Attempts(store, Retry(attempts=3, seconds=60), lambda: 0.0, lambda seconds: None)
    return configure(store, kube, Change(**change), attempts).api_place


def resource_of(store: MemoryDatastore) -> IPAMConfiguration:
    value = store.get(RESOURCE).value
    assert isinstance(value, IPAMConfiguration)
    return value


@pytest.mark.parametrize("value", list(Persistence))
@pytest.mark.parametrize("stored", STORES)
@pytest.mark.parametrize("word", SILENT)
def test_setting_it_sets_it_everywhere(word: str, stored: str, value: Persistence) -> None:
    record, resource, _ = STORES[stored]
    store, kube = store_with(record, resource), SILENT[word]()
    place = run(store, kube, persistence=value)
    assert persistence(store, kube).value is value
    assert persistence(store, None).value is value
    config = store.get(IPAMConfigKey()).value
    assert isinstance(config, IPAMConfig)
    assert config.kubevirt_persistence is value
    assert resource_of(store).spec.kubevirt_persistence == value
    assert bool(place) is (word not in ("no API", "not served"))
    if kube is not None and place:
        assert persistence(MemoryDatastore(), kube).value is value
    run(store, kube, persistence=value)
    assert persistence(store, kube).value is value


def test_what_else_the_objects_say_stays() -> None:
    store = MemoryDatastore()
    world = World(store).config(strict_affinity=True, max_blocks_per_host=4, extra={"new": 1})
    world.resource(Kind.IPAM_CONFIGURATION, "default", {"later": "x"})
    kube = api(FakeKube(), {"strictAffinity": True, "maxBlocksPerHost": 7})
    run(store, kube, persistence=OFF, cooldown_seconds=9)
    config = store.get(IPAMConfigKey()).value
    assert config == IPAMConfig(True, True, 4, OFF, 9, extra={"new": 1})
    assert resource_of(store).to_wire()["spec"] == {
        "strictAffinity": True,
        "autoAllocateBlocks": True,
        "maxBlocksPerHost": 4,
        "kubeVirtVMAddressPersistence": "Disabled",
        "ipCooldownSeconds": 9,
        "later": "x",
    }
    spec = kube.get(IPAMSettings, "default").spec
    assert (spec["strictAffinity"], spec["maxBlocksPerHost"]) == (True, 7)
    assert spec["kubeVirtVMAddressPersistence"] == "Disabled"


def test_a_new_object_of_the_api_has_what_the_older_group_requires() -> None:
    kube = FakeKube()
    kube.hide(V3)
    store = store_with(None, None)
    assert run(store, kube, strict_affinity=True, persistence=OFF) == (
        "ipamconfigs.crd.projectcalico.org/default"
    )
    assert kube.get(IPAMSettingsV1, "default").spec == {
        "strictAffinity": True,
        "autoAllocateBlocks": True,
        "kubeVirtVMAddressPersistence": "Disabled",
    }


def test_other_settings_are_the_datastores() -> None:
    kube = api(FakeKube(), setting("Disabled"))
    store = store_with(None, None)
    assert run(store, kube, strict_affinity=True, max_blocks_per_host=2) == ""
    assert kube.calls == []
    assert resource_of(store).spec.kubevirt_persistence is None
    assert resource_of(store).spec.max_blocks_per_host == 2


def test_an_unreadable_value_in_the_api_is_repaired() -> None:
    kube = api(FakeKube(), setting("disabled"))
    run(MemoryDatastore(), kube, persistence=ON)
    assert persistence(MemoryDatastore(), kube).value is ON


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_an_api_that_refuses_changes_nothing(verb: str) -> None:
    kube, store = api(FakeKube(), setting("Enabled")), MemoryDatastore()
    kube.fail(Unauthorized("HTTP 403: cannot patch"), verb=verb)
    with pytest.raises(Unauthorized, match="403"):
        run(store, kube, persistence=OFF)
    with pytest.raises(NotFound):
        store.get(IPAMConfigKey())


def test_a_datastore_that_fails_after_the_api_was_written() -> None:
    kube, store = FakeKube(), FaultyStore(MemoryDatastore(), [Fault.UNAVAILABLE_BEFORE] * 3)
    with pytest.raises(TortieError, match=r"is Disabled in .*/default, which decides, but the da"):
        run(store, kube, persistence=OFF)
    assert persistence(store, kube).value is OFF
    assert persistence(store, None).value is ON
    run(store, kube, persistence=OFF)
    assert persistence(store, None).value is OFF


def test_another_writer_between_is_not_overwritten() -> None:
    inner = MemoryDatastore()

    def first(ops: object) -> None:
        if store.commits[1:]:
            return
        run(inner, None, strict_affinity=True)

    store = FaultyStore(inner, before_commit=first)
    run(store, None, cooldown_seconds=5)
    assert inner.get(IPAMConfigKey()).value == IPAMConfig(True, cooldown_seconds=5)


@pytest.mark.parametrize(
    ("before", "change", "words"),
    [
        (IPAMConfig(), Change(max_blocks_per_host=3), "maxBlocksPerHost 3 needs strictAffinity"),
        (IPAMConfig(True, True, 3), Change(strict_affinity=False), "needs strictAffinity"),
        (IPAMConfig(True, False), Change(strict_affinity=False), "cannot both be false"),
        (IPAMConfig(), Change(cooldown_seconds=1201), "ipCooldownSeconds is 1201; want 0 to 1200"),
        (IPAMConfig(), Change(cooldown_seconds=-1), "want 0 to 1200"),
        (IPAMConfig(True), Change(max_blocks_per_host=-1), "want 0 to 1000000"),
        (IPAMConfig(True), Change(max_blocks_per_host=1_000_001), "want 0 to 1000000"),
    ],
)
def test_what_calico_refuses_is_refused(before: IPAMConfig, change: Change, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        changed(before, change)


def test_a_refused_change_writes_nothing_anywhere() -> None:
    kube, store = FakeKube(), MemoryDatastore()
    with pytest.raises(InvalidInput):
        run(store, kube, persistence=OFF, max_blocks_per_host=3)
    assert kube.calls == []
    with pytest.raises(NotFound):
        store.get(RESOURCE)


def test_settings_that_fit_together_may_be_changed_together() -> None:
    store = MemoryDatastore()
    run(store, None, strict_affinity=True, max_blocks_per_host=3, cooldown_seconds=1200)
    assert store.get(IPAMConfigKey()).value == IPAMConfig(True, True, 3, ON, 1200)
    run(store, None, strict_affinity=False, max_blocks_per_host=0, cooldown_seconds=0)
    assert store.get(IPAMConfigKey()).value == IPAMConfig()
