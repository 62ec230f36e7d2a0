"""The real kubectl is at home at the lab's API server: reading, watching, writing, explaining."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from tests.fakes.kubectl import Kubectl
from tests.fakes.objects import body, pod

KUBEVIRT = "kubevirt.io/v1"
CALICO = "projectcalico.org/v3"
LONG = "--timeout=120s"
"""By itself `wait` gives up after 30 s."""


def set_status(kubectl: Kubectl, what: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl("patch", what, name, "--subresource=status", "--type=merge", "-p", patch)


# --- get ---------------------------------------------------------------------------------------


def test_pods_are_printed_as_by_a_real_cluster(kubectl: Kubectl) -> None:
    kubectl.create(pod("web", metadata={"labels": {"app": "web"}}), pod("db"))
    running = {"name": "main", "ready": True, "restartCount": 3, "state": {"running": {}}}
    status = {"phase": "Running", "podIP": "10.65.0.7", "containerStatuses": [running]}
    set_status(kubectl, "pod", "web", status)
    assert [row[:4] for row in kubectl.rows("po")] == [
        ["NAME", "READY", "STATUS", "RESTARTS"],
        ["db", "0/1", "Pending", "0"],
        ["web", "1/1", "Running", "3"],
    ]
    header, line = kubectl.rows("pods", "-o", "wide", "-l", "app=web")
    assert header[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert line[5:7] == ["10.65.0.7", "node1"]
    waiting = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    set_status(kubectl, "pod", "web", {"containerStatuses": [waiting]})
    assert kubectl.rows("po", "web")[1][2] == "CrashLoopBackOff"
    assert kubectl.rows("po", "-A")[0][:2] == ["NAMESPACE", "NAME"]
    assert [r[0] for r in kubectl.rows("po", "--sort-by=.metadata.name")[1:]] == ["db", "web"]
    assert [r[0] for r in kubectl.rows("po", "--field-selector=status.phase=Pending")[1:]] == ["db"]
    assert len(kubectl.rows("po", "--chunk-size=1")) == 3


def test_nodes_are_printed(kubectl: Kubectl) -> None:
    kubectl.create(body("Node", "node1", metadata={"labels": {"node-role.kubernetes.io/cp": ""}}))
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "172.31.1.2"}],
        "nodeInfo": {"kubeletVersion": "v1.36.0"},
    }
    set_status(kubectl, "node", "node1", status)
    header, line = kubectl.rows("no", "-o", "wide")
    assert header[:6] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION", "INTERNAL-IP"]
    assert line[:3] + line[4:6] == ["node1", "Ready", "cp", "v1.36.0", "172.31.1.2"]


def test_kubevirt_and_calico_kinds_are_printed(kubectl: Kubectl) -> None:
    kubectl.create(
        body("VirtualMachine", "vm1", KUBEVIRT, spec={"runStrategy": "Always"}),
        body("VirtualMachineInstance", "vm1", KUBEVIRT, spec={}),
        body("VirtualMachineInstanceMigration", "move", KUBEVIRT, spec={"vmiName": "vm1"}),
        body("IPPool", "pool", CALICO, spec={"cidr": "10.65.0.0/16", "natOutgoing": True}),
    )
    ready = [{"type": "Ready", "status": "True"}, {"type": "LiveMigratable", "status": "False"}]
    set_status(kubectl, "vm", "vm1", {"printableStatus": "Running", "conditions": ready})
    vmi = {
        "phase": "Running",
        "nodeName": "node1",
        "interfaces": [{"ipAddress": "10.65.0.9"}],
        "conditions": ready,
    }
    set_status(kubectl, "vmi", "vm1", vmi)
    set_status(kubectl, "vmim", "move", {"phase": "Scheduling"})
    header, line = kubectl.rows("vm")
    assert header == ["NAME", "AGE", "STATUS", "READY"]
    assert line[0:1] + line[2:] == ["vm1", "Running", "True"]
    header, line = kubectl.rows("vmis", "-o", "wide")
    assert header == [
        *("NAME", "AGE", "PHASE", "IP", "NODENAME", "READY", "LIVE-MIGRATABLE", "PAUSED"),
    ]
    assert line[2:7] == ["Running", "10.65.0.9", "node1", "True", "False"]
    assert [row[:3] for row in kubectl.rows("vmim")] == [
        ["NAME", "PHASE", "VMI"],
        ["move", "Scheduling", "vm1"],
    ]
    header, line = kubectl.rows("ippool")
    assert header[:5] == ["NAME", "CIDR", "NAT", "IPIP", "VXLAN"]
    assert line[:5] == ["pool", "10.65.0.0/16", "true", "Never", "Never"]
    every = kubectl("get", "all", "-o", "name").split()
    assert every == [
        "virtualmachine.kubevirt.io/vm1",
        "virtualmachineinstance.kubevirt.io/vm1",
        "virtualmachineinstancemigration.kubevirt.io/move",
    ]


def test_other_forms_of_output(kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    assert kubectl("get", "po", "-o", "name") == "pod/web\n"
    assert kubectl("get", "po", "web", "-o", "jsonpath={.spec.nodeName}") == "node1"
    assert "nodeName: node1\n" in kubectl("get", "po", "web", "-o", "yaml")
    assert kubectl.read("po")["items"][0]["kind"] == "Pod"
    columns = kubectl("get", "po", "-o", "custom-columns=N:.metadata.name,X:.spec.nodeName")
    assert columns.split() == ["N", "X", "web", "node1"]
    assert 'pods "none" not found' in kubectl.refused("get", "pod", "none")
    assert "the server doesn't have a resource type" in kubectl.refused("get", "gadgets")
    assert kubectl("get", "--raw", "/healthz") == "ok"


# --- watch and wait ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [[], ["old"]])
def test_watch_prints_a_row_for_each_change(kubectl: Kubectl, first: list[str]) -> None:
    if first:
        kubectl.create(*(pod(name) for name in first))
    watching = kubectl.start("get", "po", "-w")
    if first:
        watching.until("old")
    kubectl.create(pod("web"))
    assert watching.until("web").split()[1:3] == ["0/1", "Pending"]
    set_status(kubectl, "pod", "web", {"phase": "Running"})
    assert watching.until("web").split()[2] == "Running"
    assert sum(line.startswith("NAME") for line in watching.seen) == 1
    names = kubectl.start("get", "po", "-w", "--output-watch-events")
    names.until("ADDED")
    kubectl("delete", "po", "web")
    assert "web" in names.until("DELETED")


def test_wait(kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    condition = kubectl.start("wait", "pod/web", "--for=condition=Ready", LONG)
    phase = kubectl.start("wait", "pod/web", "--for=jsonpath={.status.phase}=Running", LONG)
    ready = [{"type": "Ready", "status": "True"}]
    set_status(kubectl, "pod", "web", {"phase": "Running", "conditions": ready})
    assert (condition.ended(), phase.ended()) == (0, 0)
    gone = kubectl.start("wait", "pod/web", "--for=delete", LONG)
    kubectl("delete", "pod", "web")
    assert gone.ended() == 0
    kubectl.create(pod("lazy"))
    assert "timed out" in kubectl.refused(
        "wait", "po/lazy", "--for=condition=Ready", "--timeout=3s"
    )


# --- writing -----------------------------------------------------------------------------------


def test_apply_creates_merges_and_removes(kubectl: Kubectl, server: ApiServer) -> None:
    labels = {"app": "web", "tier": "front"}
    wanted = pod("web", metadata={"labels": labels, "namespace": "default"})
    vm = body("VirtualMachine", "vm1", KUBEVIRT, spec={"runStrategy": "Always", "x": {"a": 1}})

    def apply(*bodies: dict[str, Any]) -> list[str]:
        text = "\n---\n".join(json.dumps(one) for one in bodies)
        return [line.split()[-1] for line in kubectl("apply", "-f", "-", stdin=text).splitlines()]

    assert apply(wanted, vm) == ["created", "created"]
    assert apply(wanted, vm) == ["unchanged", "unchanged"]
    kubectl("label", "pod", "web", "by=hand")
    del labels["tier"]
    vm["spec"] = {"runStrategy": "Halted", "x": {}}
    assert apply(wanted, vm) == ["configured", "configured"]
    assert kubectl.read("pod", "web")["metadata"]["labels"] == {"app": "web", "by": "hand"}
    assert kubectl.read("vm", "vm1")["spec"] == {"runStrategy": "Halted", "x": {}}
    version = server.api.store.version
    assert "configured" in kubectl(
        *("apply", "--dry-run=server", "-f", "-"), stdin=json.dumps(wanted | {"z": 1})
    )
    assert server.api.store.version == version


def test_server_side_apply_is_refused_in_so_many_words(kubectl: Kubectl) -> None:
    said = kubectl.refused("apply", "--server-side", "-f", "-", stdin=json.dumps(pod("web")))
    assert "Server-side apply not available on the server" in said
    assert "accepted media types include: application/merge-patch+json" in said


def test_create_and_replace(kubectl: Kubectl) -> None:
    kubectl.create(pod("web"))
    said = kubectl.refused("create", "-f", "-", stdin=json.dumps(pod("web")))
    assert 'pods "web" already exists' in said
    changed = pod("web", metadata={"labels": {"a": "b"}})
    assert "replaced" in kubectl("replace", "-f", "-", stdin=json.dumps(changed))
    assert kubectl.read("po", "web")["metadata"]["labels"] == {"a": "b"}
    kubectl.create(body("IPPool", "pool", CALICO, spec={"cidr": "10.65.0.0/16"}))
    other = body("IPPool", "pool", CALICO, spec={"cidr": "10.65.0.0/16", "disabled": True})
    kubectl("replace", "-f", "-", stdin=json.dumps(other))
    assert kubectl.read("ippool", "pool")["spec"]["disabled"] is True
    uid = kubectl.read("po", "web")["metadata"]["uid"]
    kubectl("replace", "--force", "-f", "-", stdin=json.dumps(pod("web")))
    assert kubectl.read("po", "web")["metadata"]["uid"] != uid


def test_create_by_words(kubectl: Kubectl) -> None:
    """These come as protobuf."""
    kubectl("create", "namespace", "shop")
    kubectl("create", "configmap", "settings", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "key", "--from-literal=a=b")
    kubectl("create", "serviceaccount", "agent")
    kubectl("create", "clusterrole", "reader", "--verb=get,list", "--resource=pods,vm")
    kubectl("create", "clusterrole", "sum", "--aggregation-rule=a=b")
    kubectl("create", "role", "own", "--verb=get", "--resource=pods", "--resource-name=web")
    kubectl("create", "rolebinding", "own", "--role=own", "--serviceaccount=default:agent")
    kubectl("create", "clusterrolebinding", "all", "--clusterrole=reader", "--group=dev")
    assert kubectl.read("ns", "shop")["metadata"]["labels"] == {
        "kubernetes.io/metadata.name": "shop"
    }
    assert kubectl.read("cm", "settings")["data"] == {"a": "b"}
    assert kubectl.read("secret", "key")["data"] == {"a": "Yg=="}
    assert kubectl.read("sa", "agent")["metadata"]["namespace"] == "default"
    assert kubectl.read("clusterrole", "reader")["rules"] == [
        {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get", "list"], "apiGroups": ["kubevirt.io"], "resources": ["virtualmachines"]},
    ]
    assert kubectl.read("clusterrole", "sum")["aggregationRule"] == {
        "clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]
    }
    assert kubectl.read("role", "own")["rules"][0]["resourceNames"] == ["web"]
    assert kubectl.read("rolebinding", "own")["subjects"] == [
        {"kind": "ServiceAccount", "name": "agent", "namespace": "default"}
    ]
    assert kubectl.rows("clusterrolebinding", "all")[1][:2] == ["all", "ClusterRole/reader"]
    said = kubectl.refused("create", "deployment", "x", "--image=x")
    assert "application/vnd.kubernetes.protobuf of apps/v1 Deployment" in said


@pytest.mark.parametrize(
    ("kind", "patch", "expected"),
    [
        ("merge", {"spec": {"containers": [{"name": "b"}]}}, [{"name": "b"}]),
        (
            "strategic",
            {"spec": {"containers": [{"name": "b"}]}},
            [{"name": "b"}, {"name": "main", "image": "pause"}],
        ),
        (
            "json",
            [{"op": "replace", "path": "/spec/containers/0/image", "value": "x"}],
            [{"name": "main", "image": "x"}],
        ),
    ],
)
def test_patch(kubectl: Kubectl, kind: str, patch: Any, expected: Any) -> None:
    kubectl.create(pod("web"))
    kubectl("patch", "pod", "web", f"--type={kind}", "-p", json.dumps(patch))
    found = kubectl.read("pod", "web")["spec"]["containers"]
    assert sorted(found, key=lambda one: str(one["name"])) == expected


def test_strategic_patches_are_not_for_custom_resources(kubectl: Kubectl) -> None:
    kubectl.create(body("VirtualMachine", "vm1", KUBEVIRT, spec={}))
    said = kubectl.refused("patch", "vm", "vm1", "-p", '{"spec":{"a":1}}')
    assert "strategic-merge-patch+json is not supported" in said


def test_label_and_annotate(kubectl: Kubectl) -> None:
    kubectl.create(body("VirtualMachineInstance", "vm1", KUBEVIRT))
    kubectl("label", "vmi", "vm1", "a=b", "c=d")
    kubectl("label", "vmi", "vm1", "a-")
    assert "--overwrite is false" in kubectl.refused("label", "vmi", "vm1", "c=e")
    kubectl("annotate", "vmi", "--all", "x/y=z")
    meta = kubectl.read("vmi", "vm1")["metadata"]
    assert (meta["labels"], meta["annotations"]) == ({"c": "d"}, {"x/y": "z"})


def test_the_ipam_toggle(kubectl: Kubectl) -> None:
    def toggle(value: str) -> tuple[str, ...]:
        patch = json.dumps({"spec": {"kubeVirtVMAddressPersistence": value}})
        return ("patch", "ipamconfigurations", "default", "--type=merge", "-p", patch)

    config = body("IPAMConfiguration", "default", CALICO, spec={})
    kubectl("apply", "-f", "-", stdin=json.dumps(config))
    kubectl(*toggle("Disabled"))
    assert kubectl.read("ipamconfigurations", "default")["spec"] == {
        "strictAffinity": False,
        "autoAllocateBlocks": True,
        "maxBlocksPerHost": 0,
        "kubeVirtVMAddressPersistence": "Disabled",
    }
    assert kubectl.refused(*toggle("Sometimes")) == (
        'The IPAMConfiguration "default" is invalid: spec.kubeVirtVMAddressPersistence: '
        'Unsupported value: "Sometimes": supported values: "Enabled", "Disabled"\n'
    )
    other = body("IPAMConfiguration", "other", CALICO, spec={})
    assert 'must be "default"' in kubectl.refused("create", "-f", "-", stdin=json.dumps(other))
    config["spec"] = {"strictAfinity": True}
    said = kubectl.refused("apply", "-f", "-", stdin=json.dumps(config))
    assert 'unknown field "spec.strictAfinity"' in said
    text = json.dumps(config)
    assert "Warning" in kubectl.warned("apply", "--validate=warn", "-f", "-", stdin=text)
    assert "strictAfinity" not in kubectl.read("ipamconfigurations", "default")["spec"]


# --- about the server --------------------------------------------------------------------------


def test_what_kubectl_asks_about_the_server(kubectl: Kubectl) -> None:
    assert "Server Version: v1.36.0" in kubectl("version")
    assert "WARNING" not in kubectl.warned("version")
    assert "is running at" in kubectl("cluster-info")
    resources = kubectl("api-resources", "-o", "wide").splitlines()
    (migrations,) = (r for r in resources if r.startswith("virtualmachineinstancemigrations "))
    assert "vmim,vmims" in migrations and "create,delete" in migrations
    assert "kubevirt.io/v1" in kubectl("api-versions").split()
    assert "enum: Enabled, Disabled" in kubectl("explain", "ipamconfigurations.spec")
    assert "spec\t<Object>" in kubectl("explain", "vmi")


def test_describe_and_events(kubectl: Kubectl) -> None:
    kubectl.create(
        body("Node", "node1"),
        pod("web"),
        body("VirtualMachine", "vm1", KUBEVIRT, spec={"runStrategy": "Always"}),
    )
    for kind, api, name in (("Pod", "v1", "web"), ("VirtualMachine", KUBEVIRT, "vm1")):
        uid = kubectl.read(kind, name)["metadata"]["uid"]
        about = {"kind": kind, "apiVersion": api, "name": name, "namespace": "default", "uid": uid}
        event = body("Event", f"{name}.1", involvedObject=about, type="Warning", reason="Lost")
        kubectl.create({**event, "message": f"{name} is lost", "count": 2})
    assert "web is lost" in kubectl("describe", "pod", "web")
    assert "vm1 is lost" in kubectl("describe", "vm", "vm1")
    node = kubectl("describe", "node", "node1")
    assert "Non-terminated Pods:          (1 in total)" in node and "default" in node
    header, first, _ = kubectl.rows("ev")
    assert header == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert first[1:4] == ["Warning", "Lost", "virtualmachine/vm1"]
    assert "pod/web" in kubectl("events", "--for=pod/web").lower()


def test_a_hidden_group_is_unknown_to_kubectl(kubectl: Kubectl, server: ApiServer) -> None:
    """KubeVirt may be installed later: kubectl finds its kinds without a restart of anything."""
    server.api.catalogue.hide("kubevirt.io")
    assert "doesn't have a resource type" in kubectl.refused("get", "vmi")
    server.api.catalogue.offer("kubevirt.io")
    assert kubectl("get", "vmi") == ""
