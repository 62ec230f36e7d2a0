"""Settings of a running lab that a test changes and puts back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lab.cluster import until
from lab.datastore import with_store
from libtortie.datastore.port import Datastore, Record
from libtortie.errors import NotFound
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Resource, parse_resource
from tests.fakes.running_lab import Lab


@contextmanager
def resource(lab: Lab, kind: Kind, name: str, spec: Mapping[str, Any]) -> Iterator[None]:
    """A resource with these fields of its spec, beside those it has; afterwards it is as before."""
    key, datastore = ResourceKey(kind, name), lab.state.read().datastore
    found = with_store(lab.state, datastore, lambda store: _found(store, key))
    before = None if found is None else found.value
    assert before is None or isinstance(before, Resource)
    old: dict[str, Any] = {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind.value,
        "metadata": {"name": name},
        "spec": {},
    }
    if before is not None:
        old = before.to_wire()
    fresh = parse_resource(kind, {**old, "spec": {**old["spec"], **spec}})
    with_store(lab.state, datastore, lambda store: _put(store, key, fresh))
    try:
        yield
    finally:
        with_store(lab.state, datastore, lambda store: _put(store, key, before))


def _found(store: Datastore, key: ResourceKey) -> Record | None:
    try:
        return store.get(key)
    except NotFound:
        return None


def _put(store: Datastore, key: ResourceKey, value: Resource | None) -> None:
    known = _found(store, key)
    if value is None:
        store.delete(key)
    elif known is None:
        store.create(key, value)
    else:
        store.update(key, value, known.revision)


@contextmanager
def persistence(lab: Lab, value: str) -> Iterator[None]:
    """Address persistence in the resource that the nodes made."""
    with resource(lab, Kind.IPAM_CONFIGURATION, "default", {"kubeVirtVMAddressPersistence": value}):
        yield


@contextmanager
def convergence(lab: Lab, node: str, seconds: int) -> Iterator[None]:
    """A node's own convergence time, from when its agent knows it.

    Afterwards it is taken away again; an agent that lives learns of that a little later.
    """
    told = {"liveMigrationRouteConvergenceTime": f"{seconds}s"}
    with resource(lab, Kind.FELIX_CONFIGURATION, f"node.{node}", told):
        until(lambda: convergence_of(lab, node) == seconds, f"{node} does not hear of it")
        yield


def convergence_of(lab: Lab, node: str) -> float | None:
    """The convergence time in seconds that a node's agent has last taken over."""
    text = (lab.state.node(node, "log") / "node.log").read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()  # the last line may be half written
    lines = [json.loads(line) for line in whole if '"settings"' in line]
    told = [line["convergence_seconds"] for line in lines if line["event"] == "settings"]
    return float(told[-1]) if told else None
