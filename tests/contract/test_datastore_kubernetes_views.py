"""What the Kubernetes datastore makes of objects that others own: pods, Nodes, namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Interface
from typing import Any

import pytest

from cni_plugin import endpoint as endpoints
from felix_shim.node import NodeFacts, register
from ipam.attempts import DEFAULT_RETRY, Attempts
from ipam.configure import Change, configure
from ipam.persistence import persistence
from ipam.settings import CONFIGURATION, read_config
from ipam.transaction import Transaction
from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.port import Check, Create, Put, Removed, Update
from libtortie.errors import (
    AlreadyExists,
    Compacted,
    Conflict,
    InvalidInput,
    NotFound,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import KubeNode, Namespace, Pod, ServiceAccount
from libtortie.kube.port import PatchType
from libtortie.model import names
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Kind, ResourceKey, Resources
from libtortie.model.resources import IPAMConfiguration, Node, WorkloadEndpoint
from tests.fakes.followed import following
from tests.fakes.kubernetes_store import kubernetes_api, stores_of

WEB = ResourceKey(Kind.WORKLOAD_ENDPOINT, "n1-k8s-web-eth0", "shop")
ENDPOINTS = Resources(Kind.WORKLOAD_ENDPOINT)
NODE = ResourceKey(Kind.NODE, "n1")
PROFILES = Resources(Kind.PROFILE)
CONFIGURATIONS = {
    Group.V1: "/apis/crd.projectcalico.org/v1/ipamconfigs/default",
    Group.V3: "/apis/projectcalico.org/v3/ipamconfigurations/default",
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[HttpKubeClient]:
    made = HttpKubeClient(direct(server.url))
    yield made
    made.close()


@pytest.fixture(params=list(Group))
def store(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[KubernetesDatastore]:
    with stores_of(server, request.param) as (opened,):
        yield opened


def run_pod(client: HttpKubeClient, **spec: Any) -> Pod:
    """A pod that a scheduler has put on n1."""
    meta = {"name": "web", "namespace": "shop", "labels": {"app": "web"}}
    return client.create(Pod, {"metadata": meta, "spec": {"nodeName": "n1", **spec}})


def added(pod: Pod, *addresses: str, container: str = "c1") -> WorkloadEndpoint:
    """What ADD writes."""
    notes = {names.ANNOTATION_POD_UID: pod.metadata.uid}
    meta = {"name": WEB.name, "namespace": "shop", "annotations": notes}
    spec: dict[str, Any] = {"node": "n1", "pod": "web", "containerID": container}
    spec |= {"mac": "02:00:00:00:00:01", "ipNetworks": addresses or ("10.0.0.1/32",)}
    return WorkloadEndpoint.model_validate({"metadata": meta, "spec": spec})


# -- endpoints


def test_the_life_of_an_endpoint(client: HttpKubeClient, store: KubernetesDatastore) -> None:
    pod = run_pod(client)
    start = store.list(ENDPOINTS)
    assert start.records == ()
    with pytest.raises(NotFound):
        store.get(WEB)
    with following(store, ENDPOINTS, start.revision) as follow:
        made = store.create(WEB, added(pod, "10.0.0.1/32", "fd00::1/128"))
        assert isinstance(made.value, WorkloadEndpoint)
        assert made.value.spec.ip_networks == ("10.0.0.1/32", "fd00::1/128")
        assert made.value.metadata.uid == pod.metadata.uid
        assert store.get(WEB) == made
        assert store.list(ENDPOINTS).records == store.list(WEB).records == (made,)
        assert store.names(Resources(Kind.WORKLOAD_ENDPOINT, "shop")) == (WEB,)
        assert store.names(Resources(Kind.WORKLOAD_ENDPOINT, "ns")) == ()
        with pytest.raises(AlreadyExists):
            store.create(WEB, added(pod))
        again = store.update(WEB, added(pod, container="c2"), made.revision)
        with pytest.raises(Conflict):
            store.update(WEB, added(pod), made.revision)
        store.delete(WEB, again.revision)
        with pytest.raises(NotFound):
            store.delete(WEB)
        last = store.create(WEB, added(pod, container="c3"))
        assert follow.take(4) == [Put(made), Put(again), Removed(WEB), Put(last)]
        client.delete(Pod, "web", "shop", grace_seconds=0)
        assert follow.next() == Removed(WEB)
    assert store.list(ENDPOINTS).records == ()


def test_del_leaves_the_containers_annotation(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    pod = run_pod(client)
    store.create(WEB, added(pod))
    store.delete(WEB)
    notes = client.get(Pod, "web", "shop").metadata.annotations
    assert notes["cni.projectcalico.org/podIP"] == notes["cni.projectcalico.org/podIPs"] == ""
    assert notes["cni.projectcalico.org/containerID"] == "c1"


def test_an_endpoint_of_another_pod_of_the_name_is_refused(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    old = run_pod(client)
    client.delete(Pod, "web", "shop", grace_seconds=0)
    with pytest.raises(NotFound):
        store.create(WEB, added(old))
    new = run_pod(client)
    with pytest.raises(NotFound, match="the one that was meant is gone"):
        store.create(WEB, added(old))
    made = store.create(WEB, added(new))
    with pytest.raises(NotFound):
        store.update(WEB, added(old), made.revision)
    assert store.get(WEB) == made


def test_a_pod_of_another_node_is_no_place_for_an_endpoint(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    pod = run_pod(client, nodeName="n2")
    with pytest.raises(NotFound, match="another node"):
        store.create(WEB, added(pod))
    with pytest.raises(NotFound):
        store.get(WEB)


def test_a_kubelet_that_writes_at_the_same_time_is_no_obstacle(
    server: ApiServer, client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    pod = run_pod(client)
    conflict = Fault(Reject(409, "Conflict"), verb="patch", resource="pods/status")
    server.faults.add(conflict, times=2)
    made = store.create(WEB, added(pod))
    server.faults.add(conflict)
    with pytest.raises(Conflict):
        store.update(WEB, added(pod), made.revision)


def test_a_pod_that_ends_ends_its_endpoint(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    made = store.create(WEB, added(run_pod(client)))
    with following(store, ENDPOINTS, store.list(ENDPOINTS).revision) as follow:
        status = {"status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}}
        client.patch(Pod, "web", "shop", status, subresource="status")
        assert isinstance(put := follow.next(), Put)
        assert isinstance(made.value, WorkloadEndpoint)
        assert isinstance(put.record.value, WorkloadEndpoint)
        assert put.record.value.spec.ip_networks == made.value.spec.ip_networks
        status = {"status": {"phase": "Failed"}}
        client.patch(Pod, "web", "shop", status, subresource="status")
        assert follow.next() == Removed(WEB)
        with pytest.raises(NotFound):
            store.get(WEB)


def test_pods_without_an_endpoint_are_no_events(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    with following(store, ENDPOINTS, store.list(ENDPOINTS).revision) as follow:
        meta = {"name": "host", "namespace": "shop"}
        client.create(Pod, {"metadata": meta, "spec": {"nodeName": "n1", "hostNetwork": True}})
        pod = run_pod(client)
        client.patch(Pod, "web", "shop", {"metadata": {"labels": {"more": "labels"}}})
        made = store.create(WEB, added(pod))
        assert follow.next() == Put(made)


def test_the_plugins_own_write_and_remove(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    pod = run_pod(client)
    complaints: list[str] = []

    def log(event: str, /, **_: object) -> None:
        complaints.append(event)

    for container in ("c1", "c2"):
        endpoints.write(store, WEB, added(pod, container=container), log)
    endpoints.remove(store, WEB, "c1")
    assert [one.spec.container_id for one in endpoints.of_node(store, "n1")] == ["c2"]
    endpoints.remove(store, WEB, "c2")
    assert [*endpoints.of_node(store, "n1")] == []
    assert complaints == []


# -- nodes


def test_an_agent_registers_itself_on_the_core_node(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    facts = NodeFacts("n1", IPv4Interface("192.0.2.11/24"), as_number=64512, kube_node="n1")
    with pytest.raises(Unavailable, match=r"nodes/n1 does not exist: .*its kubelet registers"):
        register(store, facts)
    client.create(KubeNode, {"metadata": {"name": "n1", "labels": {"zone": "a"}}})
    with following(store, Resources(Kind.NODE), store.list(Resources(Kind.NODE)).revision) as f:
        assert register(store, facts)
        assert not register(store, facts)
        put = f.next()
        assert isinstance(put, Put)
        assert put.record == store.get(NODE)
    node = put.record.value
    assert isinstance(node, Node)
    assert node.spec.bgp is not None
    assert (node.spec.bgp.ipv4_address, node.spec.bgp.as_number) == ("192.0.2.11/24", 64512)
    notes = client.get(KubeNode, "n1").metadata.annotations
    assert notes["projectcalico.org/IPv4Address"] == "192.0.2.11/24"
    assert "projectcalico.org/labels" not in notes
    assert "projectcalico.org/kube-labels" not in notes
    with pytest.raises(AlreadyExists):
        store.create(NODE, node)
    with pytest.raises(InvalidInput, match="kubectl delete node n1"):
        store.delete(NODE)


def test_a_node_that_the_kubelet_changed_meanwhile(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    client.create(KubeNode, {"metadata": {"name": "n1"}})
    before = store.get(NODE)
    client.patch(KubeNode, "n1", "", {"metadata": {"labels": {"new": "label"}}})
    assert isinstance(before.value, Node)
    with pytest.raises(Conflict):
        store.update(NODE, before.value, before.revision)
    after = store.get(NODE)
    assert isinstance(after.value, Node)
    labels = after.value.metadata.labels | {"ours": "x"}
    meta = after.value.metadata.model_copy(update={"labels": labels})
    done = store.update(NODE, after.value.model_copy(update={"metadata": meta}), after.revision)
    assert isinstance(done.value, Node)
    assert done.value.metadata.labels == {"new": "label", "ours": "x"}
    client.patch(KubeNode, "n1", "", {"metadata": {"labels": {"new": None}}})
    gone = store.get(NODE).value
    assert isinstance(gone, Node)
    assert gone.metadata.labels == {"ours": "x"}


# -- profiles


def test_profiles_follow_namespaces_and_accounts(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    account = {"metadata": {"name": "web", "namespace": "shop"}}
    client.create(ServiceAccount, account)
    listing = store.list(PROFILES)
    found = {record.key.name for record in listing.records if isinstance(record.key, ResourceKey)}
    assert {"kns.shop", "kns.default", "ksa.shop.web"} <= found
    assert listing.revision.count("/") == 1
    with following(store, PROFILES, listing.revision) as follow:
        client.create(Namespace, {"metadata": {"name": "bank"}})
        put = follow.next()
        assert isinstance(put, Put)
        assert put.record == store.get(ResourceKey(Kind.PROFILE, "kns.bank"))
        client.delete(ServiceAccount, "web", "shop")
        assert follow.next() == Removed(ResourceKey(Kind.PROFILE, "ksa.shop.web"))
    with following(store, PROFILES, "1") as follow:
        assert isinstance(follow.join(), Compacted)
    with pytest.raises(InvalidInput, match="namespaces and service accounts"):
        store.update(put.record.key, put.record.value, put.record.revision)


# -- the IPAM configuration: one object, two keys


def test_record_and_resource_are_one(store: KubernetesDatastore) -> None:
    made = store.create(IPAMConfigKey(), IPAMConfig(strict_affinity=True, max_blocks_per_host=3))
    seen = store.get(CONFIGURATION)
    assert isinstance(seen.value, IPAMConfiguration)
    assert seen.revision == made.revision
    assert (seen.value.spec.strict_affinity, seen.value.spec.max_blocks_per_host) == (True, 3)
    assert store.list(Resources(Kind.IPAM_CONFIGURATION)).records == (seen,)
    off = seen.value.spec.model_copy(update={"kubevirt_persistence": "Disabled"})
    changed = store.update(
        CONFIGURATION, seen.value.model_copy(update={"spec": off}), seen.revision
    )
    again = store.get(IPAMConfigKey())
    assert again.revision == changed.revision
    assert again.value == IPAMConfig(
        strict_affinity=True, max_blocks_per_host=3, kubevirt_persistence=Persistence.DISABLED
    )
    with pytest.raises(AlreadyExists):
        store.create(CONFIGURATION, seen.value)
    store.delete(CONFIGURATION, changed.revision)
    with pytest.raises(NotFound):
        store.get(IPAMConfigKey())


def test_a_commit_of_both_names_writes_the_one_object_twice(store: KubernetesDatastore) -> None:
    resource = IPAMConfiguration.model_validate({"metadata": {"name": "default"}})
    checks = [Check(IPAMConfigKey(), None), Check(CONFIGURATION, None)]
    store.commit(checks)
    store.commit([Create(IPAMConfigKey(), IPAMConfig()), Create(CONFIGURATION, resource)])
    record, view = store.get(IPAMConfigKey()), store.get(CONFIGURATION)
    strict = IPAMConfig(strict_affinity=True)
    assert isinstance(view.value, IPAMConfiguration)
    spec = view.value.spec.model_copy(update={"strict_affinity": True})
    store.commit(
        [
            Update(IPAMConfigKey(), strict, record.revision),
            Update(CONFIGURATION, view.value.model_copy(update={"spec": spec}), view.revision),
        ]
    )
    assert store.get(IPAMConfigKey()).value == strict


@pytest.mark.parametrize("there", [False, True])
def test_every_way_of_setting_persistence_takes_effect(
    client: HttpKubeClient, store: KubernetesDatastore, there: bool
) -> None:
    """`kubectl patch`, our own `ipam configure`, and what allocation reads, with and without
    the API asked beside the store."""
    if there:
        store.create(IPAMConfigKey(), IPAMConfig())
    attempts = Attempts(store, DEFAULT_RETRY, lambda: 0.0, lambda seconds: None)
    for value in (Persistence.DISABLED, Persistence.ENABLED):
        configure(store, client, Change(persistence=value), attempts)
        assert persistence(store, client).value is value
        assert persistence(store, None).value is value
        assert read_config(Transaction(store)).kubevirt_persistence is value


def test_kubectl_patch_takes_effect(client: HttpKubeClient, store: KubernetesDatastore) -> None:
    store.create(IPAMConfigKey(), IPAMConfig())
    with following(store, IPAMConfigKey(), store.list(IPAMConfigKey()).revision) as follow:
        patch = {"spec": {"kubeVirtVMAddressPersistence": "Disabled"}}
        client.raw("PATCH", CONFIGURATIONS[store.group], patch, content_type=PatchType.MERGE.value)
        put = follow.next()
        assert isinstance(put, Put)
        assert put.record == store.get(IPAMConfigKey())
    off = read_config(Transaction(store))
    assert off == IPAMConfig(kubevirt_persistence=Persistence.DISABLED)


def test_a_users_metadata_outlives_our_write(
    client: HttpKubeClient, store: KubernetesDatastore
) -> None:
    store.create(IPAMConfigKey(), IPAMConfig())
    group, plural = (
        store.group.value,
        "ipamconfig" + ("s" if store.group is Group.V1 else "urations"),
    )
    path = f"/apis/{group}/{plural}/default"
    labels = {"metadata": {"labels": {"owner": "ops"}, "finalizers": ["a/b"]}}
    client.raw("PATCH", path, labels, content_type=PatchType.MERGE.value)
    record = store.get(IPAMConfigKey())
    store.update(IPAMConfigKey(), IPAMConfig(cooldown_seconds=5), record.revision)
    seen = store.get(CONFIGURATION).value
    assert isinstance(seen, IPAMConfiguration)
    assert seen.metadata.labels == {"owner": "ops"}
    assert client.raw("GET", path)["metadata"]["finalizers"] == ["a/b"]
