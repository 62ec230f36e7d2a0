"""The plugin and the agent's start-up with all their data in Kubernetes: pods, VMs, a migration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from felix_shim.endpoints import parse_endpoint
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.open import DatastoreConfig, open_datastore
from libtortie.datastore.port import Datastore
from libtortie.errors import InvalidInput, Unavailable
from libtortie.kube.config import direct
from libtortie.kube.objects import KubeNode, Pod
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import ClusterInformation, Node
from tests.fakes.agent_world import RecordingLog
from tests.fakes.cni_steps import CountedStore
from tests.fakes.cni_world import CniWorld
from tests.fakes.kubernetes_store import kubernetes_api
from tests.fakes.starting_node import Machine


class KubernetesWorld(CniWorld):
    """A world whose API holds the data, too: the same objects, over HTTP for the datastore."""

    def __init__(self, directory: Path, server: ApiServer, store: Datastore) -> None:
        super().__init__(directory)
        self.kube.api = server.api
        self.memory = cast(MemoryDatastore, store)  # its methods are the port's
        self.store = CountedStore(self.memory, self.step)
        self.pool("pool-4", "10.65.0.0/24")

    def run(self, pod: str) -> Pod:
        """A pod that a scheduler has put on the first node."""
        return self.put_pod(pod, spec={"nodeName": "node1"})


@pytest.fixture(params=list(Group))
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KubernetesWorld]:
    with kubernetes_api() as server:
        group: Group = request.param
        config = DatastoreConfig(
            type="kubernetes", kube=direct(server.url), calico_api_group=group.value
        )
        with closing(open_datastore(config)) as store:
            yield KubernetesWorld(tmp_path, server, store)


def test_the_life_of_a_pod(world: KubernetesWorld) -> None:
    node, pod = world.node(), world.run("web")
    result = node.add("web", "c1", uid=pod.metadata.uid)
    (address,) = result.addresses
    assert node.add("web", "c1", uid=pod.metadata.uid) == result
    assert world.allocated() == {str(address.ip): "k8s-pod-network.c1"}
    (stored,) = world.endpoints()
    seen = parse_endpoint(stored)
    assert [str(one) for one in seen.addresses] == [str(address.ip)]
    assert (seen.container_id, seen.pod_uid) == ("c1", pod.metadata.uid)
    assert seen.mac == result.interfaces[1].mac
    notes = world.kube.get(Pod, "web", "default").metadata.annotations
    assert notes["cni.projectcalico.org/podIPs"] == f"{address.ip}/32"
    node.delete("web", "c1")
    node.delete("web", "c1")
    assert world.nothing_left()


def test_a_new_sandbox_of_the_same_pod(world: KubernetesWorld) -> None:
    node, pod = world.node(), world.run("web")
    node.add("web", "c1", uid=pod.metadata.uid)
    node.add("web", "c2", uid=pod.metadata.uid)
    node.delete("web", "c1")
    (stored,) = world.endpoints()
    assert stored.spec.container_id == "c2"
    assert list(world.allocated().values()) == ["k8s-pod-network.c2"]
    node.delete("web", "c2")
    assert world.nothing_left()


def test_gc_finds_what_its_runtime_forgot(world: KubernetesWorld) -> None:
    node = world.node()
    for name in ("web", "old"):
        pod = world.run(name)
        node.add(name, f"c-{name}", uid=pod.metadata.uid)
    world.clock.sleep(3600.0)
    node.gc(("c-web", "eth0"))
    assert [one.spec.container_id for one in world.endpoints()] == ["c-web"]
    assert list(world.allocated().values()) == ["k8s-pod-network.c-web"]


def test_a_vm_keeps_its_address_when_it_moves(world: KubernetesWorld) -> None:
    first, second = world.node(), world.node("node2")
    world.put_vm()
    source = world.put_launcher("virt-launcher-db-1", spec={"nodeName": "node1"})
    got = first.add("virt-launcher-db-1", "c1", uid=source.metadata.uid)
    world.put_migration("move")
    target = world.put_launcher("virt-launcher-db-2", migration="move", spec={"nodeName": "node2"})
    moved = second.add("virt-launcher-db-2", "c2", uid=target.metadata.uid)
    assert moved.addresses == got.addresses
    seen = {one.spec.container_id: parse_endpoint(one) for one in world.endpoints()}
    assert seen["c2"].migration_uid == "vmim-move"
    handle = "k8s-pod-network.vmi.default.db"
    for one in seen.values():
        assert one.vm is not None
        assert (one.vm.vmi_name, one.vm.handle_id) == ("db", handle)
    (held,) = second.ipam.by_handle(handle)
    assert second.ipam.promote(handle, held.alternate)
    world.kube.remove(Pod, "virt-launcher-db-1", "default")
    first.delete("virt-launcher-db-1", "c1")
    assert [one.spec.node for one in world.endpoints()] == ["node2"]
    assert list(world.allocated().values()) == [handle]


def test_a_runtime_without_pods_or_with_other_interfaces_is_refused(
    world: KubernetesWorld,
) -> None:
    node, pod = world.node(), world.run("web")
    with pytest.raises(InvalidInput, match="keeps endpoints on pods"):
        node.add("web", "c1", uid=pod.metadata.uid, ifname="net1")
    with pytest.raises(InvalidInput, match="keeps endpoints on pods"):
        node.add("", "c2")
    assert world.nothing_left()
    node.add("web", "c1", uid=pod.metadata.uid)
    before = world.left()
    node.delete("web", "c1", ifname="net1")  # what a runtime asks for after a refusal
    node.delete("", "c2")
    assert world.left() == before


def test_an_agent_starts_on_a_cluster_that_has_nothing_yet(
    world: KubernetesWorld, tmp_path: Path
) -> None:
    store = cast(KubernetesDatastore, world.memory)
    options = f"datastore_type: kubernetes\ncalico_api_group: {store.group.value}"

    class Kubelet(RecordingLog):
        """Registers the node once the agent has said that it waits for that."""

        def warning(self, event: str, **fields: object) -> None:
            super().warning(event, **fields)
            if "its kubelet registers" in str(fields.get("reason")):
                world.kube.put({"metadata": {"name": "node-1"}}, KubeNode)

    machine = Machine(tmp_path, store, options=options, kube=world.kube, log=Kubelet())
    machine.boot()
    assert len(machine.complaints()) == 1
    node = store.get(ResourceKey(Kind.NODE, "node-1")).value
    assert isinstance(node, Node)
    assert node.spec.bgp is not None
    assert node.spec.bgp.ipv4_address == "192.0.2.11/24"
    cluster = store.get(ResourceKey(Kind.CLUSTER_INFORMATION, "default")).value
    assert isinstance(cluster, ClusterInformation)
    assert cluster.spec.cluster_type == "k8s,bgp,kdd"
    for kind in (Kind.TIER, Kind.FELIX_CONFIGURATION, Kind.IPAM_CONFIGURATION):
        assert store.list(Resources(kind)).records
    before = {kind: store.list(Resources(kind)).records for kind in Kind}
    machine.boot()  # a restart finds everything as it should be
    assert {kind: store.list(Resources(kind)).records for kind in Kind} == before


def test_a_store_without_a_server_is_one_message() -> None:
    with pytest.raises(InvalidInput, match="set kubeconfig or k8s_api_root"):
        open_datastore(DatastoreConfig(type="kubernetes"))
    with pytest.raises(InvalidInput, match="calico_api_group is for type kubernetes"):
        open_datastore(DatastoreConfig(type="memory", calico_api_group="projectcalico.org/v3"))
    with (
        closing(
            open_datastore(DatastoreConfig(type="kubernetes", kube=direct("http://127.0.0.1:1")))
        ) as store,
        pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"),
    ):
        store.list(Resources(Kind.IP_POOL))
