"""Settings of a running lab that a test changes and puts back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from lab.cluster import until
from lab.datastore import with_store
from libtortie.datastore.port import Datastore
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import (
    IPAMConfiguration,
    IPAMConfigurationSpec,
    parse_resource,
)
from tests.fakes.running_lab import Lab


@contextmanager
def persistence(lab: Lab, value: str) -> Iterator[None]:
    """Set the toggle in the resource that the nodes made, and enable it again."""
    key = ResourceKey(Kind.IPAM_CONFIGURATION, "default")

    def toggle(wanted: str) -> None:
        def work(store: Datastore) -> None:
            record = store.get(key)
            assert isinstance(record.value, IPAMConfiguration)
            spec = record.value.spec.to_wire() | {"kubeVirtVMAddressPersistence": wanted}
            fresh = IPAMConfigurationSpec.model_validate(spec)
            store.update(key, record.value.model_copy(update={"spec": fresh}), record.revision)

        with_store(lab.state, lab.state.read().datastore, work)

    toggle(value)
    try:
        yield
    finally:
        toggle("Enabled")


@contextmanager
def convergence(lab: Lab, node: str, seconds: int) -> Iterator[None]:
    """A node's own convergence time, from when its agent knows it.

    Afterwards it is taken away again; an agent that lives learns of that a little later.
    """
    kind, name = Kind.FELIX_CONFIGURATION, f"node.{node}"
    body = {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind.value,
        "metadata": {"name": name},
        "spec": {"liveMigrationRouteConvergenceTime": f"{seconds}s"},
    }
    key, datastore = ResourceKey(kind, name), lab.state.read().datastore
    with_store(lab.state, datastore, lambda store: store.create(key, parse_resource(kind, body)))
    try:
        until(lambda: convergence_of(lab, node) == seconds, f"{node} does not hear of it")
        yield
    finally:
        with_store(lab.state, datastore, lambda store: store.delete(key))


def convergence_of(lab: Lab, node: str) -> float | None:
    """The convergence time in seconds that a node's agent has last taken over."""
    text = (lab.state.node(node, "log") / "node.log").read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()  # the last line may be half written
    lines = [json.loads(line) for line in whole if '"settings"' in line]
    told = [line["convergence_seconds"] for line in lines if line["event"] == "settings"]
    return float(told[-1]) if told else None
