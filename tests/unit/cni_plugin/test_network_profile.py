"""The profile that lets attachments without a pod talk where no policy decides."""

from __future__ import annotations

import pytest

from cni_plugin.profile import ensure, of_network
from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import AlreadyExists, InvalidInput
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.policy_wire import read_profile

KEY = ResourceKey(Kind.PROFILE, "podman")


def test_it_allows_those_of_its_network_to_come_and_everybody_to_be_reached() -> None:
    found = read_profile(of_network("podman"))
    assert not found.problem
    assert [rule.source.selector for rule in found.ingress] == ["has(podman)"]
    assert dict(found.labels) == {"podman": ""}
    (out,) = found.egress
    assert not out.destination.selector


def test_the_first_attachment_makes_it_and_what_others_made_of_it_is_kept() -> None:
    store = MemoryDatastore()
    ensure(store, "podman")
    made = store.get(KEY)
    assert made.value == of_network("podman").model_copy(
        update={"metadata": made.value.metadata}  # type: ignore[union-attr]  # a resource
    )
    edited = of_network("other").model_copy(update={"metadata": made.value.metadata})
    store.update(KEY, edited, made.revision)
    before = store.get(KEY)
    ensure(store, "podman")
    assert store.get(KEY) == before


@pytest.mark.parametrize(
    "error",
    [AlreadyExists("made a moment ago"), InvalidInput("profiles are namespaces and accounts")],
)
def test_another_attachment_may_be_first_and_kubernetes_has_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried: list[object] = []

    def create(*given: object) -> None:
        tried.append(given[0])
        raise error

    store = MemoryDatastore()
    monkeypatch.setattr(store, "create", create)
    ensure(store, "podman")
    assert tried == [KEY]
