"""A real agent hears of Kubernetes' policies from a real API server, and has the kernel obey."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from felix_shim.kube_entries import PolicyObject
from felix_shim.kube_events import KubeEvent
from libtortie.kube.objects import Namespace, Pod
from libtortie.kube.policies import (
    AdminNetworkPolicy,
    ClusterNetworkPolicy,
    EndpointSlice,
    KubeNetworkPolicy,
)
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NAMESPACE, NODE, resource_record
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root

WEB = {"podSelector": {"matchLabels": {"app": "web"}}}
CHAIN = f"pi-knp/{NAMESPACE}/knp.default.p"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path, fresh_name("kp"), api=True)
    try:
        made.start()
        yield made
    finally:
        made.close()


def make(
    node: NodeProcess, model: type[PolicyObject], name: str, spec: Any, namespace: str = ""
) -> None:
    meta = {"name": name, "namespace": namespace} if namespace else {"name": name}
    body = {
        "apiVersion": f"{model.api.group}/{model.api.version}",
        "kind": model.api.kind,
        "metadata": meta,
        "spec": spec,
    }
    node.kube(lambda client: client.create(model, body))


def closed(node: NodeProcess) -> bool:
    """Whether nothing new gets to the node's only pod, or from it."""
    return node.rules().count("goto closed") == 2


def without_counts(node: NodeProcess) -> str:
    return re.sub(r"packets \d+ bytes \d+", "", node.rules())


def test_policies_of_every_kind_come_and_go(node: NodeProcess) -> None:
    node.attach("web", vm=False, labels={"app": "web"})
    assert CHAIN not in node.rules()
    make(node, KubeNetworkPolicy, "p", {**WEB, "ingress": [{"ports": [{"port": 80}]}]}, NAMESPACE)
    until("the policy is in the kernel", lambda: CHAIN in node.rules())
    deny = {"action": "Deny", "from": [{"namespaces": {"matchLabels": {"env": "test"}}}]}
    spec = {"priority": 1, "subject": {"namespaces": {}}, "ingress": [deny]}
    make(node, AdminNetworkPolicy, "guard", spec)
    until("so is the guard", lambda: "pi-anp/kanp.adminnetworkpolicy.guard" in node.rules())
    patch: Mapping[str, Any] = {"metadata": {"labels": {"env": "test"}}}
    node.kube(lambda client: client.patch(Namespace, NAMESPACE, "", patch))
    until("its set has the pod", lambda: node.rules().count("10.65.0.2") > 1)
    node.kube(lambda client: client.delete(AdminNetworkPolicy, "guard"))
    node.kube(lambda client: client.delete(KubeNetworkPolicy, "p", NAMESPACE))
    until("both are gone", lambda: "pi-anp" not in node.rules() and CHAIN not in node.rules())


def test_a_policy_that_cannot_be_converted_closes_and_the_pod_is_told(node: NodeProcess) -> None:
    node.attach("web", vm=False, labels={"app": "web"})
    make(node, KubeNetworkPolicy, "p", {**WEB, "ingress": [{"from": [{"nodes": {}}]}]}, NAMESPACE)
    told = until("it is named", lambda: node.lines("policy_closes_endpoint"))
    assert told[0]["policy"] == f"KubernetesNetworkPolicy {NAMESPACE}/knp.default.p"
    assert told[0]["reason"].startswith("spec.ingress.0.from.0.nodes: ")
    until("nothing new passes", lambda: closed(node))

    def events() -> list[str]:
        found, _ = node.kube(lambda client: client.list(KubeEvent, NAMESPACE))
        return [one.metadata.name for one in found]

    until("its pod has an event", lambda: any(name.startswith("web.") for name in events()))


@pytest.fixture
def bereft(node: NodeProcess) -> Iterator[subprocess.Popen[bytes]]:
    """The API is gone, and so is the agent; a pod and a policy are left in the kernel."""
    node.attach("web", vm=False, labels={"app": "web"})
    make(node, KubeNetworkPolicy, "p", WEB, NAMESPACE)
    until("the policy is in the kernel", lambda: CHAIN in node.rules())
    assert node.stop() == 0
    (api,) = node.processes
    api.kill()
    api.wait()
    yield api


def back_again(node: NodeProcess, api: subprocess.Popen[bytes]) -> None:
    """An API that knows of no policy any more."""
    assert isinstance(api.args, list)
    node.processes.append(node.spawn(api.args[2:], "api.log"))


def test_while_the_api_is_silent_a_new_agent_goes_on_with_what_the_last_one_heard(
    node: NodeProcess, bereft: subprocess.Popen[bytes]
) -> None:
    node.start()
    assert "networkpolicies" in {line["kind"] for line in node.lines("policy_remembered")}
    assert CHAIN in node.rules()
    back_again(node, bereft)
    until("what the API has now is obeyed", lambda: CHAIN not in node.rules())


def test_one_that_remembers_nothing_leaves_the_rules_as_they_are_until_the_api_is_back(
    node: NodeProcess, bereft: subprocess.Popen[bytes]
) -> None:
    """It would program the pods as if there were no policies."""
    shutil.rmtree(node.root / "state" / "kube-policy")
    before = without_counts(node)
    served, lost = len(node.lines("cni_serving")), len(node.lines("api_watch_lost"))
    node.start(wait=False)

    def tried() -> bool:
        kinds = {line["kind"] for line in node.lines("api_watch_lost")[lost:]}
        return "networkpolicies" in kinds

    until("it has tried", tried)
    assert without_counts(node) == before
    assert len(node.lines("cni_serving")) == served
    back_again(node, bereft)
    until("the agent serves CNI", lambda: len(node.lines("cni_serving")) > served)
    until("what the API has now is obeyed", lambda: CHAIN not in node.rules())


def test_a_pod_that_is_labelled_anew_is_under_the_policy_for_its_label(node: NodeProcess) -> None:
    make(node, KubeNetworkPolicy, "p", {"podSelector": {"matchLabels": {"in": "jail"}}}, NAMESPACE)
    meta = {"name": "web", "namespace": NAMESPACE, "labels": {"app": "web"}}
    body = {"metadata": meta, "spec": {"nodeName": NODE}}
    made = node.kube(lambda client: client.create(Pod, body))
    notes = {"tortie.io/pod-uid": made.metadata.uid}
    key = node.attach("web", vm=False, labels={"app": "web"}, notes=notes)
    assert CHAIN not in node.rules()
    patch: Mapping[str, Any] = {"metadata": {"labels": {"in": "jail"}}}
    node.kube(lambda client: client.patch(Pod, "web", NAMESPACE, patch))
    until("its policy is in the kernel", lambda: CHAIN in node.rules())
    assert node.stored(key).metadata.labels["in"] == "jail"


def test_whom_a_service_leads_to_is_in_the_kernel_and_follows_the_api(node: NodeProcess) -> None:
    """A rule of Calico's, a slice and a ClusterNetworkPolicy of Kubernetes', by a real agent."""
    node.attach("web", vm=False, labels={"app": "web"})
    egress = [{"action": "Allow", "destination": {"services": {"name": "db"}}}]
    spec = {"selector": "app == 'web'", "types": ["Egress"], "egress": egress}
    record = resource_record(Kind.NETWORK_POLICY, "to-db", spec, NAMESPACE)
    node.store.create(record.key, record.value)
    meta = {"name": "db-1", "labels": {"kubernetes.io/service-name": "db"}}
    body: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "namespace": NAMESPACE},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.65.9.9"]}],
        "ports": [{"name": "sql", "protocol": "TCP", "port": 5432}],
    }
    node.kube(lambda client: client.create(EndpointSlice, body))
    until("it is in the set", lambda: "10.65.9.9 . tcp . 5432" in node.rules())
    everybody: dict[str, Any] = {"namespaces": {}}
    rules = [{"action": "Deny", "to": [{"nodes": {}}]}]
    guard = {"tier": "Admin", "priority": 1, "subject": everybody, "egress": rules}
    make(node, ClusterNetworkPolicy, "guard", guard)
    until("so is the guard", lambda: "pe-cnp/kcnp.guard" in node.rules())
    node.kube(lambda client: client.delete(EndpointSlice, "db-1", NAMESPACE))
    until("it is there no more", lambda: "10.65.9.9" not in node.rules())
