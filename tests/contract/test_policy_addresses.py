"""Whose an address is in rules: a pod that has none any more, although its object lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from felix_shim.cluster import ENDPOINTS
from felix_shim.events import Listed, Stored, Unstored
from felix_shim.policy_desk import PolicyDesk
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.port import Put, Record
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Pod
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import RecordingLog
from tests.fakes.followed import following
from tests.fakes.kubernetes_store import kubernetes_api, stores_of
from tests.fakes.policy_worlds import resource

ADDRESS = "10.0.0.9"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[HttpKubeClient]:
    made = HttpKubeClient(direct(server.url))
    yield made
    made.close()


@pytest.fixture
def store(server: ApiServer) -> Iterator[KubernetesDatastore]:
    with stores_of(server, Group.V3) as (opened,):
        yield opened


def attach(client: HttpKubeClient, store: KubernetesDatastore, name: str) -> ResourceKey:
    """A pod with the address, as scheduler and ADD leave it, and the kubelet's word for it."""
    meta = {"name": name, "namespace": "shop", "labels": {"app": name}, "finalizers": ["a/b"]}
    client.create(Pod, {"metadata": meta, "spec": {"nodeName": "n1"}})
    key = ResourceKey(Kind.WORKLOAD_ENDPOINT, f"n1-k8s-{name}-eth0", "shop")
    body = {
        "metadata": {"name": key.name, "namespace": "shop"},
        "spec": {"node": "n1", "pod": name, "containerID": name, "ipNetworks": [f"{ADDRESS}/32"]},
    }
    store.create(key, WorkloadEndpoint.model_validate(body))
    status = {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
    client.patch(Pod, name, "shop", {"status": status}, subresource="status")
    return key


def desk() -> PolicyDesk:
    """One that has to know the addresses of `x` and of `y`."""
    made = PolicyDesk("n1", RecordingLog())
    spec = {
        "selector": "all()",
        "ingress": [{"action": "Allow", "source": {"selector": f"app == '{app}'"}} for app in "xy"],
    }
    found = resource(Kind.GLOBAL_NETWORK_POLICY, "p", spec)
    made.feed(Stored(Resources(Kind.GLOBAL_NETWORK_POLICY), Record(found.key, found, "1")))
    return made


def whose(made: PolicyDesk) -> str:
    """Who has the address, as the rules have it."""
    sets = made.rules(()).sets
    return "".join(app for app in "xy" for key in sets if key.selector == f"app == '{app}'"
                   and ADDRESS in sets[key].texts)  # fmt: skip


def detached(client: HttpKubeClient, store: KubernetesDatastore, key: ResourceKey) -> None:
    """DEL is done; a finalizer keeps the object, and the kubelet's word stays."""
    client.delete(Pod, "x", "shop")
    store.delete(key)


def finished(client: HttpKubeClient, store: KubernetesDatastore, key: ResourceKey) -> None:
    """The pod's containers have ended for good."""
    client.patch(Pod, "x", "shop", {"status": {"phase": "Succeeded"}}, subresource="status")


@pytest.mark.parametrize("end", [detached, finished])
def test_an_address_is_its_next_pods_alone(
    client: HttpKubeClient,
    store: KubernetesDatastore,
    end: Callable[[HttpKubeClient, KubernetesDatastore, ResourceKey], None],
) -> None:
    watching, listing = desk(), desk()
    key = attach(client, store, "x")
    start = store.list(ENDPOINTS)
    watching.feed(Listed(ENDPOINTS, start.records))
    assert whose(watching) == "x"
    with following(store, ENDPOINTS, start.revision) as follow:
        end(client, store, key)
        attach(client, store, "y")
        while whose(watching) != "y":
            event = follow.next()
            if isinstance(event, Put):
                watching.feed(Stored(ENDPOINTS, event.record))
            else:
                watching.feed(Unstored(ENDPOINTS, event.key))
    listing.feed(Listed(ENDPOINTS, store.list(ENDPOINTS).records))
    assert whose(listing) == "y"
