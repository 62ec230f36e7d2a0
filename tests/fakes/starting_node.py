"""A node about to start, over fakes, and what it stored, byte for byte."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from felix_shim.config import NodeConfig, parse_config
from felix_shim.startup import StartUp
from libtortie.datastore.codec import encode
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import ClusterInformation, IPPool, Resource, parse_resource
from tests.fakes.agent_world import RecordingLog
from tests.fakes.kernel import FakeKernel
from tests.fakes.kube import FakeKube

UID = "3f2b1c9e-7d4a-4e6b-9a51-0c8e2f7d6b14"
META = f'"uid":"{UID}","creationTimestamp":"2026-08-22T13:30:00Z"'
GUID = "5b0e0c8a4f6d4f3e9d2a7c1b8e6f4a21"
CLUSTER = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
POOL = ResourceKey(Kind.IP_POOL, "default-ipv4-ippool")


def memory() -> MemoryDatastore:
    return MemoryDatastore(
        now=lambda: datetime(2026, 8, 22, 13, 30, tzinfo=UTC), new_uid=lambda: UID
    )


@dataclass
class Machine:
    """One node about to start."""

    root: Path
    store: Datastore
    name: str = "node-1"
    address: str = "192.0.2.11/24"
    options: str = ""
    kube: FakeKube | None = None
    kernel: FakeKernel = field(default_factory=FakeKernel)
    log: RecordingLog = field(default_factory=RecordingLog)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.kernel.link("eth0") is None:
            self.kernel.add_link("eth0")
            self.kernel.ensure_address("eth0", ip_interface(self.address))

    @property
    def config(self) -> NodeConfig:
        api = "k8s_api_root: http://api\n" if self.kube is not None else ""
        text = (
            f"nodename: {self.name}\nnodename_file: {self.root}/{self.name}/nodename\n"
            f"state_dir: {self.root}/{self.name}\ncalico_version: v3.33.0\n{api}{self.options}"
        )
        return parse_config(text, "node.yaml")

    def start(self) -> StartUp:
        """A new process."""
        return StartUp(
            self.config,
            self.kernel,
            self.store,
            self.kube,
            self.log,
            self.over,
            guid=lambda: GUID,
        )

    def boot(self) -> StartUp:
        """A new process, as far as the agent waits for it."""
        started = self.start()
        assert started.begin()
        return started

    def complaints(self) -> list[str]:
        return [
            f"{line['step']}: {line['reason']}"
            for event in ("start_up_failed", "start_up_waits")
            for line in self.log.of(event)
        ]


def text(store: Datastore, kind: Kind, name: str = "default") -> str:
    """What is stored, as Calico would read it."""
    key = ResourceKey(kind, name)
    return encode(key, store.get(key).value).decode()


def everything(store: Datastore) -> dict[str, str]:
    """All resources, by kind and name."""
    found = {}
    for kind in Kind:
        for record in store.list(Resources(kind)).records:
            assert isinstance(record.value, Resource)
            found[f"{kind} {record.value.metadata.name}"] = encode(
                record.key, record.value
            ).decode()
    return found


def resource(kind: Kind, name: str, spec: dict[str, Any]) -> Resource:
    body = {"kind": kind.value, "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}}
    return parse_resource(kind, body | {"spec": spec})


def put(store: Datastore, kind: Kind, name: str, spec: dict[str, Any]) -> None:
    store.create(ResourceKey(kind, name), resource(kind, name, spec))


def lock(store: Datastore, ready: bool) -> None:
    record = store.get(CLUSTER)
    assert isinstance(record.value, ClusterInformation)
    spec = record.value.spec.model_copy(update={"datastore_ready": ready})
    store.update(CLUSTER, record.value.model_copy(update={"spec": spec}), record.revision)


def head(kind: str, name: str) -> str:
    return (
        f'{{"kind":"{kind}","apiVersion":"projectcalico.org/v3",'
        f'"metadata":{{"name":"{name}",{META}}},"spec":'
    )


def pool_cidr(store: Datastore) -> str:
    found = store.get(POOL).value
    assert isinstance(found, IPPool)
    return found.spec.cidr
