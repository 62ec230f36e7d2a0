"""The real kubectl as an operator's tool: deleting, draining, asking who may do what."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.apiserver.errors import ApiError
from lab.apiserver.server import ApiServer, Tls
from tests.fakes.certificates import Authority
from tests.fakes.kubectl import DEADLINE, Kubectl, kubectl_for
from tests.fakes.objects import body, pod

KUBEVIRT = "kubevirt.io/v1"
LONG = "--timeout=120s"


def owned_pod(kubectl: Kubectl) -> dict[str, Any]:
    """A VMI and its launcher; returns the VMI."""
    kubectl.create(body("VirtualMachineInstance", "vm1", KUBEVIRT, spec={}))
    vmi: dict[str, Any] = kubectl.read("vmi", "vm1")
    kubectl.create(pod("launcher", owner=vmi))
    return vmi


# --- delete ------------------------------------------------------------------------------------


def test_dependents_go_with_their_owner(kubectl: Kubectl) -> None:
    owned_pod(kubectl)
    assert 'virtualmachineinstance.kubevirt.io "vm1" deleted' in kubectl("delete", "vmi", "vm1")
    kubectl("wait", "pod/launcher", "--for=delete", LONG)
    assert kubectl("get", "po", "-o", "name") == ""


def test_foreground_deletion_waits_for_the_dependents(kubectl: Kubectl) -> None:
    vmi = owned_pod(kubectl)
    held = pod("held", owner=vmi, metadata={"finalizers": ["a/b"]})
    kubectl.create(held)
    deleting = kubectl.start("delete", "vmi", "vm1", "--cascade=foreground")
    kubectl("wait", "pod/launcher", "--for=delete", LONG)
    assert kubectl.read("vmi", "vm1")["metadata"]["finalizers"] == ["foregroundDeletion"]
    kubectl("wait", "pod/held", "--for=jsonpath={.metadata.deletionTimestamp}", LONG)
    kubectl("patch", "pod", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert deleting.ended() == 0
    assert kubectl("get", "vmi,po", "-o", "name") == ""


def test_orphans_stay(kubectl: Kubectl) -> None:
    owned_pod(kubectl)
    kubectl("delete", "vmi", "vm1", "--cascade=orphan")
    assert not kubectl.read("po", "launcher")["metadata"].get("ownerReferences")
    assert kubectl("get", "vmi", "-o", "name") == ""


def test_delete_waits_for_finalizers_unless_told_not_to(kubectl: Kubectl) -> None:
    kubectl.create(pod("web", metadata={"finalizers": ["a/b"]}))
    kubectl("delete", "pod", "web", "--wait=false")
    waiting = kubectl.start("delete", "pod", "web", "--wait=true")
    waiting.until("deleted")
    assert "timed out" in kubectl.refused("delete", "pod", "web", "--timeout=3s")
    kubectl(
        "patch",
        "pod",
        "web",
        "--type=json",
        "-p",
        '[{"op":"remove","path":"/metadata/finalizers"}]',
    )
    assert waiting.ended() == 0


def test_force_takes_a_pod_that_has_a_grace_period(kubectl: Kubectl) -> None:
    kubectl.create(pod("web", spec={"terminationGracePeriodSeconds": 30}))
    kubectl("delete", "pod", "web", "--wait=false")
    assert kubectl.rows("po", "web")[1][2] == "Terminating"
    warned = kubectl.warned("delete", "pod", "web", "--force", "--grace-period=0")
    assert "Immediate deletion" in warned
    assert kubectl("get", "po", "-o", "name") == ""


def test_many_at_once_and_by_label(kubectl: Kubectl) -> None:
    kubectl.create(*(pod(n, metadata={"labels": {"app": n[0]}}) for n in ("a1", "a2", "b1")))
    kubectl("delete", "pods", "-l", "app=a")
    assert kubectl("get", "po", "-o", "name") == "pod/b1\n"
    kubectl("delete", "pods", "--all")
    assert kubectl("get", "po", "-o", "name") == ""


def test_a_namespace_goes_with_everything_in_it(kubectl: Kubectl) -> None:
    kubectl("create", "ns", "shop")
    kubectl.create(pod("web", metadata={"namespace": "shop"}))
    kubectl("delete", "ns", "shop", LONG)
    assert 'namespaces "shop" not found' in kubectl.refused("get", "ns", "shop")
    assert kubectl("get", "po", "-A", "-o", "name") == ""


# --- drain -------------------------------------------------------------------------------------


def test_cordon_and_uncordon(kubectl: Kubectl) -> None:
    kubectl.create(body("Node", "node1"))
    assert kubectl("cordon", "node1") == "node/node1 cordoned\n"
    assert kubectl("cordon", "node1") == "node/node1 already cordoned\n"
    assert kubectl.rows("node")[1][1] == "Unknown,SchedulingDisabled"
    assert kubectl("uncordon", "node1") == "node/node1 uncordoned\n"
    assert "unschedulable" not in kubectl.read("node", "node1")["spec"]


def test_drain_refuses_and_obeys_its_flags(kubectl: Kubectl, server: ApiServer) -> None:
    kubectl.create(
        body("Node", "node1"),
        body("DaemonSet", "agent", "apps/v1", spec={}),
        body("ReplicaSet", "web", "apps/v1", spec={}),
    )
    agent, web = kubectl.read("ds", "agent"), kubectl.read("rs", "web")
    scratch = {"volumes": [{"name": "tmp", "emptyDir": {}}]}
    kubectl.create(
        pod("agent-1", owner=agent),
        pod("web-1", owner=web, metadata={"labels": {"app": "web"}}),
        pod("web-2", owner=web, spec=scratch),
        pod("elsewhere", owner=web, spec={"nodeName": "node2"}),
    )
    said = kubectl.refused("drain", "node1")
    assert "cannot delete DaemonSet-managed Pods" in said and "agent-1" in said
    assert "local storage" in said and "web-2" in said
    kubectl("drain", "node1", "--pod-selector=app=web", LONG)
    left = {"pod/agent-1", "pod/elsewhere", "pod/web-2"}
    assert set(kubectl("get", "po", "-o", "name").split()) == left
    options = ("--ignore-daemonsets", "--delete-emptydir-data", LONG)
    assert "node/node1 drained" in kubectl("drain", "node1", *options)
    assert set(kubectl("get", "po", "-o", "name").split()) == {"pod/agent-1", "pod/elsewhere"}
    evicted = [a.name for a in server.audit if a.resource == "pods/eviction"]
    assert evicted == ["web-1", "web-2"]


def test_drain_tries_again_while_admission_says_429(kubectl: Kubectl, server: ApiServer) -> None:
    """KubeVirt's way: the eviction starts a migration and is refused until the VM has moved."""
    vmi = owned_pod(kubectl)
    kubectl.create(body("Node", "node1"))
    seen: list[str] = []

    def webhook(verb: str, resource: str, new: Any, old: Any) -> Any:
        if (verb, resource) == ("create", "pods/eviction") and not seen:
            seen.append(old["metadata"]["ownerReferences"][0]["uid"])
            name = f"default/{new['metadata']['name']}"
            raise ApiError(429, "TooManyRequests", f'Eviction triggered evacuation of VMI "{name}"')
        return new

    server.api.hooks.append(webhook)
    draining = kubectl.start("drain", "node1", LONG)
    line = draining.until("will retry after 5s")
    assert 'error when evicting pods/"launcher" -n "default"' in line
    assert 'Eviction triggered evacuation of VMI "default/launcher"' in line
    draining.until("drained")
    assert draining.ended() == 0
    assert seen == [vmi["metadata"]["uid"]]


# --- who may do what ---------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl as root (system:masters), alice (group dev) and a service account."""
    authority = Authority(tmp_path)
    pair = authority.server("server")
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(
        "t1,root,,system:masters\nt2,alice,,dev\nt3,system:serviceaccount:kube-system:agent\n"
    )
    tls = Tls(pair.cert, pair.key)
    with ApiServer(token_file=tokens, tls=tls, authorization="RBAC") as server:
        made = kubectl_for(server, tmp_path, authority.cert)
        yield made
        made.close()
    assert server.crashes == []


def test_who_am_i(guarded: Kubectl) -> None:
    said = guarded("--context=system:serviceaccount:kube-system:agent", "auth", "whoami")
    assert "system:serviceaccount:kube-system:agent" in said
    assert (
        "[system:serviceaccounts system:serviceaccounts:kube-system system:authenticated]" in said
    )


def test_roles_decide(guarded: Kubectl) -> None:
    alice = "--context=alice"
    assert guarded.refused(alice, "get", "pods") == (
        'Error from server (Forbidden): pods is forbidden: User "alice" cannot list resource '
        '"pods" in API group "" in the namespace "default"\n'
    )
    assert guarded.refused(alice, "delete", "vm", "web") == (
        'Error from server (Forbidden): virtualmachines.kubevirt.io "web" is forbidden: User '
        '"alice" cannot delete resource "virtualmachines" in API group "kubevirt.io" in the '
        'namespace "default"\n'
    )
    assert "at the cluster scope" in guarded.refused(alice, "get", "nodes")
    guarded("create", "role", "reader", "--verb=get,list,watch", "--resource=pods")
    guarded("create", "rolebinding", "dev", "--role=reader", "--group=dev")
    guarded("create", "clusterrole", "drainer", "--verb=create", "--resource=pods/eviction")
    guarded("create", "rolebinding", "drain", "--clusterrole=drainer", "--user=alice")
    guarded.create(pod("web"))
    assert guarded(alice, "get", "po", "-o", "name") == "pod/web\n"
    assert "forbidden" in guarded.refused(alice, "get", "po", "-n", "kube-system")
    assert guarded(alice, "auth", "can-i", "list", "pods") == "yes\n"
    assert guarded(alice, "auth", "can-i", "create", "pods", "--subresource=eviction") == "yes\n"
    assert guarded.refused(alice, "auth", "can-i", "delete", "pods") == "no\n"
    listed = guarded(alice, "auth", "can-i", "--list")
    assert any(row.split()[::3] == ["pods", "[get"] for row in listed.splitlines())


def test_acting_as_somebody_else(guarded: Kubectl) -> None:
    assert "no" in guarded.refused("--as=alice", "auth", "can-i", "get", "pods")
    said = guarded.refused("--context=alice", "--as=root", "get", "pods")
    assert 'users "root" is forbidden: User "alice" cannot impersonate resource "users"' in said
    assert "dev" in guarded("--as=bob", "--as-group=dev", "auth", "whoami")


def test_view_and_edit_exist(guarded: Kubectl) -> None:
    guarded("create", "rolebinding", "v", "--clusterrole=view", "--user=alice")
    alice = "--context=alice"
    assert guarded(alice, "get", "vmi,pods") == ""
    assert "forbidden" in guarded.refused(alice, "get", "secrets")
    said = guarded.refused(
        alice, "create", "-f", "-", stdin='{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}'
    )
    assert 'pods is forbidden: User "alice" cannot create resource "pods"' in said


# --- the command -------------------------------------------------------------------------------


def test_lab_apiserver_writes_a_kubeconfig(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server("server")
    (tmp_path / "tokens").write_text("t,admin,,system:masters\n")
    config = tmp_path / "config"
    options = ["--listen", "127.0.0.1:0", "--kubeconfig", str(config)]
    options += ["--token-file", str(tmp_path / "tokens"), "--authorization-mode", "RBAC"]
    lab = [str(Path(sys.executable).parent / "lab"), "apiserver", *options]
    done = subprocess.run(lab, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2 and "kubectl sends no token without TLS" in done.stderr
    lab += ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    lab += ["--tls-ca", str(authority.cert)]
    with subprocess.Popen(lab, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert config.stat().st_mode & 0o777 == 0o600
            kubectl = Kubectl(tmp_path, config)
            assert url in kubectl("cluster-info")
            assert "admin" in kubectl("auth", "whoami")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
