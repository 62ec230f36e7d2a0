"""Pods forged with a VM's correct UID: who lives stays, and every refusal is counted and logged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cni_plugin.calls import CallMetrics
from cni_plugin.skel import dispatch
from libtortie.errors import OwnerMismatch, Unavailable
from libtortie.kube.objects import Pod, VirtualMachineInstance
from tests.fakes.cni_world import NETWORK, CniWorld, first_address, owner_reference, owners

HANDLE = "k8s-pod-network.vmi.default.db"
REAL, FORGED = "virt-launcher-db-a", "virt-launcher-db-forged"
REAL_UID, FORGED_UID = f"uid-of-{REAL}", f"uid-of-{FORGED}"


def put_status(world: CniWorld, *, uid: str = "vmi-db-1", **status: Any) -> None:
    """What virt-controller says of the instance."""
    meta = {
        "name": "db",
        "namespace": "default",
        "uid": uid,
        "ownerReferences": [owner_reference("VirtualMachine", "db", "vm-db")],
    }
    spec = {"networks": [{"name": "default", "pod": {}}]}
    world.kube.put({"metadata": meta, "spec": spec, "status": status}, VirtualMachineInstance)


@pytest.fixture
def vm(world: CniWorld) -> CniWorld:
    """A VM that runs on node1, and a pod that says it is the VM's, too, on node2."""
    world.put_vm()
    world.put_launcher(REAL, status={"phase": "Running"})
    world.node("node1").add(REAL, "c1")
    world.put_launcher(FORGED)
    return world


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"activePods": {REAL_UID: "node1"}},
        {"nodeName": "node1"},
        {"activePods": {REAL_UID: "node1"}, "nodeName": "node1"},
        {"activePods": {REAL_UID: "node1", FORGED_UID: "node2"}, "nodeName": "node1"},
        # lags behind a migration from node2 that is over
        {"activePods": {REAL_UID: "node1", FORGED_UID: "node2"}, "nodeName": "node2"},
        {"activePods": {FORGED_UID: "node2"}},  # has not seen the older pod yet
        {"activePods": {FORGED_UID: "node2"}, "nodeName": "node1"},
        {"activePods": {"uid-of-neither": "node3"}, "nodeName": "node3"},
        {"activePods": {}, "nodeName": "node2"},
    ],
)
def test_who_lives_stays_unless_the_status_denies_it(vm: CniWorld, status: dict[str, Any]) -> None:
    put_status(vm, **status)
    before = vm.left()
    with pytest.raises(OwnerMismatch, match=f"{REAL}, which is alive .*; pod default/{FORGED} may"):
        vm.node("node2").add(FORGED, "c9")
    assert owners(vm.node().ipam.by_handle(HANDLE)) == (REAL, "")
    assert vm.left() == {**before, "node2 links": [], "node2 routes": []}


def test_one_that_came_first_gives_way_to_the_pod_that_the_status_names(world: CniWorld) -> None:
    """It got the address before the VM's own pod was there."""
    world.put_vm()
    world.put_launcher(FORGED)
    had = first_address(world.node("node2").add(FORGED, "c9"))
    world.put_launcher(REAL)
    put_status(world, activePods={REAL_UID: "node1"}, nodeName="node1")
    assert first_address(world.node("node1").add(REAL, "c1")) == had
    assert owners(world.node().ipam.by_handle(HANDLE)) == (REAL, "")
    world.node("node2").delete(FORGED, "c9")
    assert owners(world.node().ipam.by_handle(HANDLE)) == (REAL, ""), "its DEL is only its own"
    assert world.node("node1").route(had) is not None


def test_another_instances_status_says_nothing(vm: CniWorld) -> None:
    """The VM was started anew while its former pod still ends: that one is waited for."""
    put_status(vm, uid="vmi-db-2", activePods={"uid-of-next": "node2"}, nodeName="node2")
    reference = owner_reference("VirtualMachineInstance", "db", "vmi-db-2")
    vm.put_launcher("virt-launcher-db-next", uid="uid-of-next", ownerReferences=[reference])
    with pytest.raises(OwnerMismatch, match=f"{REAL}, which is alive"):
        vm.node("node2").add("virt-launcher-db-next", "c2")
    vm.kube.remove(Pod, REAL, "default")
    vm.node("node2").add("virt-launcher-db-next", "c2")


@pytest.mark.parametrize("active", [{}, {REAL_UID: "node1"}, {FORGED_UID: "node2"}], ids=str)
def test_a_deleted_pod_object_is_no_dead_vm(vm: CniWorld, active: dict[str, str]) -> None:
    """Its node is cut off and the pod was force-deleted: the VM runs on, as its status says."""
    put_status(vm, phase="Running", nodeName="node1", activePods=active)
    vm.kube.remove(Pod, REAL, "default")
    with pytest.raises(OwnerMismatch, match=f"{REAL}, which is alive as far as the API says"):
        vm.node("node2").add(FORGED, "c9")
    assert owners(vm.node().ipam.by_handle(HANDLE)) == (REAL, "")


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        (None, {"phase": "Failed", "nodeName": "node1"}),
        (None, {"phase": "Running", "nodeName": "node2"}),
        (None, {"phase": "Scheduling"}),
        ({"phase": "Failed"}, {"phase": "Running", "nodeName": "node1"}),
    ],
)
def test_a_seat_is_free_when_the_instance_is_not_said_to_run_there(
    vm: CniWorld, pod: dict[str, str] | None, status: dict[str, Any]
) -> None:
    put_status(vm, **status)
    vm.kube.remove(Pod, REAL, "default")
    if pod is not None:
        vm.put_launcher(REAL, status=pod)
    vm.node("node2").add(FORGED, "c9")


def test_the_vms_next_instance_has_the_address_though_the_old_node_is_cut_off(
    vm: CniWorld,
) -> None:
    """The VM's controller gave the old one up. When its node is back, its DEL strips nobody."""
    had = next(iter(vm.allocated()))
    vm.kube.remove(Pod, REAL, "default")
    put_status(vm, uid="vmi-db-2", phase="Scheduling")
    reference = owner_reference("VirtualMachineInstance", "db", "vmi-db-2")
    vm.put_launcher("virt-launcher-db-next", ownerReferences=[reference])
    assert first_address(vm.node("node2").add("virt-launcher-db-next", "c2")) == had
    for _ in range(2):
        vm.node("node1").delete(REAL, "c1")
    assert owners(vm.node("node2").ipam.by_handle(HANDLE)) == ("virt-launcher-db-next", "")
    assert [one.spec.pod for one in vm.endpoints()] == ["virt-launcher-db-next"]


@pytest.mark.parametrize("plural", ["pods", "virtualmachineinstances"])
def test_an_api_that_falls_silent_denies_nobody(vm: CniWorld, plural: str) -> None:
    put_status(vm, activePods={FORGED_UID: "node2"}, nodeName="node2")
    node = vm.node("node2")
    claim = node.ipam.claim_vm

    def late(*args: Any, **options: Any) -> Any:
        vm.kube.fail(Unavailable("silent"), verb="get", plural=plural)
        return claim(*args, **options)

    node.ipam.claim_vm = late  # type: ignore[method-assign]  # between proof and claim
    with pytest.raises(Unavailable):
        node.add(FORGED, "c9")
    assert owners(vm.node().ipam.by_handle(HANDLE)) == (REAL, "")


def forge_ordinary(world: CniWorld) -> str:
    world.put_launcher(FORGED)
    return "the active owner of the VM's address is pod default/virt-launcher-db-a"


def forge_reference(world: CniWorld) -> str:
    world.put_launcher(FORGED, ownerReferences=[])
    return "no owner reference to a VirtualMachineInstance"


def forge_uid(world: CniWorld) -> str:
    world.put_launcher(FORGED, generation=7)
    return "the one that exists has UID vmi-db-1"


def forge_finished_migration(world: CniWorld) -> str:
    """The label of a migration that is over makes nobody a target."""
    world.put_migration("m1", phase="Succeeded")
    world.put_launcher(FORGED, migration="m1")
    return "the active owner of the VM's address is pod default/virt-launcher-db-a"


def forge_no_migration(world: CniWorld) -> str:
    world.put_launcher(FORGED, migration="nowhere")
    return "the active owner of the VM's address is pod default/virt-launcher-db-a"


def forge_others_migration(world: CniWorld) -> str:
    world.put_migration("m1", vm="web")
    world.put_launcher(FORGED, migration="m1")
    return "migration m1 is of VirtualMachineInstance 'web', not of 'db'"


def forge_second_target(world: CniWorld) -> str:
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    world.node("node3").add("virt-launcher-db-b", "c2")
    world.put_launcher(FORGED, migration="m1")
    return "the alternate owner of the VM's address is pod default/virt-launcher-db-b"


def forge_unnamed_target(world: CniWorld) -> str:
    world.put_migration("m1")
    put_status(world, migrationState={"migrationUid": "vmim-m1", "targetPod": "virt-launcher-db-b"})
    world.put_launcher(FORGED, migration="m1")
    return "the target pod of migration m1 is virt-launcher-db-b"


def forge_target_of_disabled(world: CniWorld) -> str:
    world.put_namespace("default", annotations={"tortie.io/address-persistence": "Disabled"})
    world.put_migration("m1")
    world.put_launcher(FORGED, migration="m1")
    return "live migration target pod is not allowed"


FORGERIES = [
    (forge_ordinary, 103, "address_of_another"),
    (forge_reference, 101, "identity"),
    (forge_uid, 101, "identity"),
    (forge_finished_migration, 103, "address_of_another"),
    (forge_no_migration, 103, "address_of_another"),
    (forge_others_migration, 101, "identity"),
    (forge_second_target, 103, "address_of_another"),
    (forge_unnamed_target, 101, "identity"),
    (forge_target_of_disabled, 104, "migration_target"),
]


@pytest.mark.parametrize(
    ("forge", "code", "reason"), FORGERIES, ids=[forge.__name__ for forge, _, _ in FORGERIES]
)
def test_every_refusal_is_counted_and_logged_with_the_pods_name(
    vm: CniWorld, forge: Any, code: int, reason: str
) -> None:
    text, node = forge(vm), vm.node("node2")
    owned, metrics = owners(vm.node().ipam.by_handle(HANDLE)), CallMetrics()
    lines: list[dict[str, Any]] = []
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c9",
        "CNI_NETNS": node.netns("c9"),
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={FORGED}",
    }
    stdin = json.dumps({"cniVersion": "1.1.0", "name": NETWORK, "type": "tortie"}).encode()

    def log(event: str, /, **fields: object) -> None:
        lines.append({"event": event, **fields})

    for count in (1, 2):  # a kubelet tries again
        answer = dispatch(env, stdin, lambda _: node.plugin, log=log, observe=metrics.observe)
        assert json.loads(answer.stdout)["code"] == code
        assert text in json.loads(answer.stdout)["msg"]
        assert metrics.refusals.value(reason) == count
        line = lines[-1]
        assert (line["event"], line["pod"], line["namespace"]) == ("cni_error", FORGED, "default")
        assert (line["code"], line["container_id"]) == (code, "c9")
    assert owners(vm.node().ipam.by_handle(HANDLE)) == owned
    assert not node.veths()
