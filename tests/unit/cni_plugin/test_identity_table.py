"""Who is it? The table of proofs and forgeries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cni_plugin.errors import IdentityRefused
from cni_plugin.identity import Identifier, VMIdentity
from cni_plugin.skel import CmdArgs
from libtortie.errors import InvalidInput, Malformed, TortieError, Unauthorized, Unavailable
from libtortie.kube.objects import Pod, VirtualMachine, VirtualMachineInstance
from libtortie.model import names
from libtortie.model.ipam import Persistence
from tests.fakes.cni_world import CniWorld, conf, owner_reference

REF = owner_reference("VirtualMachineInstance", "db", "vmi-db-1")


@pytest.fixture
def world(tmp_path: Path) -> CniWorld:
    world = CniWorld(tmp_path)
    world.put_vm()
    return world


def identify(
    world: CniWorld, pod: str, namespace: str = "default", uid: str = "", **settings: Any
) -> Any:
    args = {"K8S_POD_NAME": pod, "K8S_POD_NAMESPACE": namespace}
    if uid:
        args["K8S_POD_UID"] = uid
    identifier = Identifier(world.kube, lambda: Persistence.ENABLED)
    return identifier.workload(CmdArgs("c1", "/n", "eth0", args), conf(**settings))


def test_a_launcher_is_its_vm(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")
    workload = identify(world, "virt-launcher-db-a")
    assert workload.vm == VMIdentity("db", "vmi-db-1", "vm-db")
    assert workload.handle_id == "k8s-pod-network.vmi.default.db"
    assert not workload.is_target


def test_an_ordinary_pod_is_ordinary(world: CniWorld) -> None:
    world.put_pod(
        "web-0", ownerReferences=[owner_reference("ReplicaSet", "web", "rs", apiVersion="apps/v1")]
    )
    workload = identify(world, "web-0")
    assert (workload.vm, workload.handle_id, workload.mac) == (None, "k8s-pod-network.c1", "")


def test_a_hotplug_attachment_pod_is_ordinary(world: CniWorld) -> None:
    world.put_migration("m1")
    world.put_pod(
        "hp-volume-xyz",
        labels={"kubevirt.io": "hotplug-disk", "kubevirt.io/migrationJobUID": "vmim-m1"},
        annotations={"kubevirt.io/migrationJobName": "m1", "kubevirt.io/owner-vmi-name": "db"},
        ownerReferences=[owner_reference("Pod", "virt-launcher-db-a", "u", apiVersion="v1")],
    )
    assert identify(world, "hp-volume-xyz").vm is None


FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "by name only": ({"ownerReferences": []}, "no owner reference"),
    "not controller": (
        {"ownerReferences": [{**REF, "controller": False}]},
        "is not controller: true",
    ),
    "no controller flag": (
        {"ownerReferences": [{k: v for k, v in REF.items() if k != "controller"}]},
        "is not controller: true",
    ),
    "wrong uid": ({"ownerReferences": [{**REF, "uid": "guess"}]}, "has UID vmi-db-1"),
    "no such vmi": ({"ownerReferences": [{**REF, "name": "nope"}]}, "does not exist in namespace"),
    "other api group": (
        {"ownerReferences": [{**REF, "apiVersion": "example.com/v1"}]},
        "apiVersion 'example.com/v1'",
    ),
    "old api version": (
        {"ownerReferences": [{**REF, "apiVersion": "kubevirt.io/v1alpha3"}]},
        "not kubevirt.io/v1",
    ),
    "empty uid": ({"ownerReferences": [{**REF, "uid": ""}]}, "no name or no UID"),
    "empty name": ({"ownerReferences": [{**REF, "name": ""}]}, "no name or no UID"),
    "two references": (
        {"ownerReferences": [REF, {**REF, "name": "db2", "controller": False}]},
        "more than one",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("pod", ["virt-launcher-db-a", "innocent"])
def test_forged_pods_are_refused_with_one_clear_error(world: CniWorld, name: str, pod: str) -> None:
    fields, message = FORGERIES[name]
    world.put_launcher(pod, **fields)
    with pytest.raises(IdentityRefused, match=message) as refused:
        identify(world, pod)
    assert f"default/{pod}" in str(refused.value)
    assert IdentityRefused.code == 101


def test_an_unlabelled_pod_with_a_reference_that_is_not_controller_is_refused(
    world: CniWorld,
) -> None:
    world.put_pod("web-0", ownerReferences=[{**REF, "controller": False}])
    with pytest.raises(IdentityRefused, match="web-0"):
        identify(world, "web-0")


def test_a_vmi_of_another_namespace_is_not_ones_own(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a", namespace="evil")
    with pytest.raises(IdentityRefused, match="namespace evil"):
        identify(world, "virt-launcher-db-a", "evil")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (owner_reference("VirtualMachine", "db", "other"), "has UID vm-db"),
        (owner_reference("VirtualMachine", "db", "vm-db", controller=False), "not controller"),
        (owner_reference("VirtualMachine", "web", "vm-web"), "has the name of its VirtualMachine"),
        (owner_reference("VirtualMachine", "db", "vm-db", apiVersion="v1"), "apiVersion"),
    ],
)
def test_the_vmis_own_owner_is_proved_too(
    world: CniWorld, reference: dict[str, Any], message: str
) -> None:
    meta = {"name": "db", "namespace": "default", "uid": "vmi-db-1"}
    world.kube.put({"metadata": {**meta, "ownerReferences": [reference]}}, VirtualMachineInstance)
    world.put_launcher("virt-launcher-db-a")
    with pytest.raises(IdentityRefused, match=message):
        identify(world, "virt-launcher-db-a")


def test_a_vmi_whose_vm_is_missing(world: CniWorld) -> None:
    world.kube.remove(VirtualMachine, "db", "default")
    world.put_launcher("virt-launcher-db-a")
    with pytest.raises(IdentityRefused, match="VirtualMachine 'db', which does not exist"):
        identify(world, "virt-launcher-db-a")


def test_a_vmi_owned_by_something_else_is_a_vm_of_its_own(world: CniWorld) -> None:
    reference = owner_reference("VirtualMachineInstanceReplicaSet", "rs", "rs-uid")
    meta = {"name": "db", "namespace": "default", "uid": "vmi-db-1", "ownerReferences": [reference]}
    world.kube.put({"metadata": meta}, VirtualMachineInstance)
    world.put_launcher("virt-launcher-db-a")
    assert identify(world, "virt-launcher-db-a").vm == VMIdentity("db", "vmi-db-1", "")


# --- the pod itself --------------------------------------------------------------------------


def test_no_such_pod_and_the_pods_successor(world: CniWorld) -> None:
    with pytest.raises(IdentityRefused, match="default/web-0 does not exist"):
        identify(world, "web-0")
    world.put_pod("web-0", uid="new")
    with pytest.raises(IdentityRefused, match="sandbox is of UID old"):
        identify(world, "web-0", uid="old")
    assert identify(world, "web-0", uid="new").pod_uid == "new"


def test_a_static_pods_mirror_has_another_uid(world: CniWorld) -> None:
    world.put_pod("etcd-node1", uid="api", annotations={"kubernetes.io/config.mirror": "hash"})
    assert identify(world, "etcd-node1", uid="kubelets").pod_uid == "api"


# --- migration targets -----------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["", "Pending", "Scheduling", "Running"])
def test_a_live_migrations_target(world: CniWorld, phase: str) -> None:
    world.put_migration("m1", phase=phase)
    world.put_launcher("virt-launcher-db-b", migration="m1")
    assert identify(world, "virt-launcher-db-b").vm.migration_uid == "vmim-m1"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", None])
def test_the_label_outlives_the_migration(world: CniWorld, phase: str | None) -> None:
    if phase is not None:
        world.put_migration("m1", phase=phase)
    world.put_launcher("virt-launcher-db-b", migration="m1")
    assert not identify(world, "virt-launcher-db-b").is_target


def test_the_migration_is_found_by_uid_without_or_with_a_wrong_annotation(world: CniWorld) -> None:
    world.put_migration("m1")
    world.put_migration("m2", vm="other")
    labels = {"kubevirt.io/migrationJobUID": "vmim-m1"}
    world.put_launcher("virt-launcher-db-b", labels=labels)
    assert identify(world, "virt-launcher-db-b").is_target
    named = {"kubevirt.io/migrationJobName": "m2"}
    world.put_launcher("virt-launcher-db-b", labels=labels, annotations=named)
    assert identify(world, "virt-launcher-db-b").is_target


def test_a_migration_of_another_vm_is_refused(world: CniWorld) -> None:
    world.put_vm("other")
    world.put_migration("m1", vm="other")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    with pytest.raises(IdentityRefused, match="'other', not of 'db'"):
        identify(world, "virt-launcher-db-b")


def test_the_vmi_names_another_target_pod(world: CniWorld) -> None:
    world.put_migration("m1")
    vmi = world.kube.get(VirtualMachineInstance, "db", "default")
    state = vmi.status.migration_state.model_copy(
        update={"migration_uid": "vmim-m1", "target_pod": "virt-launcher-db-b"}
    )
    status = vmi.status.model_copy(update={"migration_state": state})
    world.kube.put(vmi.model_copy(update={"status": status}))
    world.put_launcher("virt-launcher-db-b", migration="m1")
    assert identify(world, "virt-launcher-db-b").is_target
    world.put_launcher("virt-launcher-db-forged", migration="m1")
    with pytest.raises(IdentityRefused, match="target pod of migration m1 is virt-launcher-db-b"):
        identify(world, "virt-launcher-db-forged")


def test_a_target_whose_vmi_still_names_the_former_migration(world: CniWorld) -> None:
    """What the VMI says of another migration is no proof of this one, for or against anybody."""
    world.put_migration("m0", phase="Succeeded")
    world.put_migration("m1")
    vmi = world.kube.get(VirtualMachineInstance, "db", "default")
    state = vmi.status.migration_state.model_copy(
        update={"migration_uid": "vmim-m0", "target_pod": "virt-launcher-db-b"}
    )
    status = vmi.status.model_copy(update={"migration_state": state})
    world.kube.put(vmi.model_copy(update={"status": status}))
    world.put_launcher("virt-launcher-db-b", migration="m0")
    assert not identify(world, "virt-launcher-db-b").is_target
    world.put_launcher("virt-launcher-db-c", migration="m1")
    assert identify(world, "virt-launcher-db-c").is_target


def test_long_names_do_not_mix(world: CniWorld) -> None:
    one, two = "v" * 63 + "-one", "v" * 63 + "-two"
    for number, name in enumerate((one, two)):
        world.put_vm(name)
        world.put_launcher(f"virt-launcher-{number}", name)
    handles = [identify(world, f"virt-launcher-{n}").handle_id for n in range(2)]
    assert handles[0] != handles[1]
    world.put_migration("m1", vm=one)
    world.put_launcher("virt-launcher-t", two, migration="m1")
    with pytest.raises(IdentityRefused):
        identify(world, "virt-launcher-t")


# --- MAC -------------------------------------------------------------------------------------


def test_mac_from_spec_then_status_then_handle(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")
    handle = "k8s-pod-network.vmi.default.db"
    assert identify(world, "virt-launcher-db-a").mac == names.derived_mac(handle)
    body: dict[str, Any] = {
        "metadata": {"name": "db", "namespace": "default", "uid": "vmi-db-1"},
        "spec": {"networks": [{"name": "default", "pod": {}}]},
        "status": {"interfaces": [{"name": "default", "mac": "02:00:00:00:00:AA"}]},
    }
    world.kube.put(body, VirtualMachineInstance)
    assert identify(world, "virt-launcher-db-a").mac == "02:00:00:00:00:aa"
    interface = {"name": "default", "macAddress": "02:00:00:00:00:BB"}
    body["spec"]["domain"] = {"devices": {"interfaces": [interface]}}
    world.kube.put(body, VirtualMachineInstance)
    assert identify(world, "virt-launcher-db-a").mac == "02:00:00:00:00:bb"


def test_an_ordinary_pods_mac_by_annotation(world: CniWorld) -> None:
    world.put_pod("web-0", annotations={"cni.projectcalico.org/hwAddr": "02:00:5E:00:00:01"})
    assert identify(world, "web-0").mac == "02:00:5e:00:00:01"
    world.put_pod("web-0", annotations={"cni.projectcalico.org/hwAddr": "01:00:5e:00:00:01"})
    with pytest.raises(InvalidInput, match="hwAddr"):
        identify(world, "web-0")


# --- the API and the configuration -----------------------------------------------------------


@pytest.mark.parametrize("plural", ["pods", "virtualmachineinstances", "virtualmachines"])
def test_an_api_that_is_down_is_not_an_answer(world: CniWorld, plural: str) -> None:
    world.put_launcher("virt-launcher-db-a")
    world.kube.fail(Unavailable("connection refused"), plural=plural)
    with pytest.raises(Unavailable):
        identify(world, "virt-launcher-db-a")


def test_a_missing_permission_is_named(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")
    world.kube.fail(
        Unauthorized("get virtualmachineinstances db: forbidden"), plural="virtualmachineinstances"
    )
    with pytest.raises(Unauthorized, match="get virtualmachineinstances"):
        identify(world, "virt-launcher-db-a")


@pytest.mark.parametrize("error", [Malformed("junk"), Unavailable("x"), Unauthorized("y")])
def test_an_unreadable_configuration_is_never_enabled_by_accident(
    world: CniWorld, error: TortieError
) -> None:
    world.put_launcher("virt-launcher-db-a")
    world.put_pod("web-0")

    def unreadable() -> Persistence:
        raise error

    identifier = Identifier(world.kube, unreadable)

    def ask(pod: str) -> Any:
        args = {"K8S_POD_NAME": pod, "K8S_POD_NAMESPACE": "default"}
        return identifier.workload(CmdArgs("c1", "/n", "eth0", args), conf())

    with pytest.raises(Unavailable, match="IPAM configuration cannot be read"):
        ask("virt-launcher-db-a")
    assert ask("web-0").vm is None


def test_without_an_api_a_launcher_is_refused_and_others_are_served() -> None:
    identifier = Identifier(None, lambda: Persistence.ENABLED)

    def ask(pod: str, **settings: Any) -> Any:
        args = {"K8S_POD_NAME": pod, "K8S_POD_NAMESPACE": "default"}
        return identifier.workload(CmdArgs("c1", "/n", "eth0", args), conf(**settings))

    assert ask("web-0").handle_id == "k8s-pod-network.c1"
    with pytest.raises(InvalidInput, match="`kubernetes` section"):
        ask("virt-launcher-db-a")
    with pytest.raises(InvalidInput, match="`kubernetes` section"):
        ask("web-0", policy={"type": "k8s"})


def test_owner_gone(world: CniWorld) -> None:
    identifier = Identifier(world.kube, lambda: Persistence.ENABLED)
    vm = {"namespace": "default", "vmi-name": "db", "vm-uid": "vm-db", "vmi-uid": "vmi-db-1"}
    assert not identifier.owner_gone(vm)
    assert identifier.owner_gone({**vm, "vm-uid": "older", "vmi-uid": "older"})
    stopped = {key: value for key, value in vm.items() if key != "vmi-uid"}
    assert not identifier.owner_gone(stopped)
    assert identifier.owner_gone({**stopped, "vm-uid": "older"})
    assert identifier.owner_gone({**vm, "vmi-name": "nope"})
    bare = {key: value for key, value in vm.items() if key != "vm-uid"}
    assert not identifier.owner_gone(bare)
    assert identifier.owner_gone({**bare, "vmi-uid": "older"})
    assert not identifier.owner_gone({"namespace": "default"}), "in doubt it lives"
    world.kube.fail(Unavailable("down"))
    with pytest.raises(Unavailable):
        identifier.owner_gone(vm)


def test_an_orphaned_vmi_is_not_gone_with_its_vm(world: CniWorld) -> None:
    """As `kubectl delete vm --cascade=orphan` leaves it."""
    identifier = Identifier(world.kube, lambda: Persistence.ENABLED)
    vm = {"namespace": "default", "vmi-name": "db", "vm-uid": "vm-db", "vmi-uid": "vmi-db-1"}
    world.kube.remove(VirtualMachine, "db", "default")
    assert not identifier.owner_gone(vm)
    assert identifier.owner_gone({**vm, "vmi-uid": "older"})
    world.kube.remove(VirtualMachineInstance, "db", "default")
    assert identifier.owner_gone(vm)


def test_pod_lives(world: CniWorld) -> None:
    identifier = Identifier(world.kube, lambda: Persistence.ENABLED)
    owner = {"namespace": "default", "pod": "p", "pod-uid": "uid-of-p"}
    assert not identifier.pod_lives(owner)
    world.put_pod("p")
    assert identifier.pod_lives(owner)
    assert not identifier.pod_lives({**owner, "pod-uid": "older"})
    world.put_pod("p", status={"phase": "Succeeded"})
    assert not identifier.pod_lives(owner)
    world.kube.remove(Pod, "p", "default")
    assert not identifier.pod_lives(owner)


def test_hostile_ownership_objects_do_not_crash(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a", ownerReferences=[{"kind": "VirtualMachineInstance"}])
    with pytest.raises(IdentityRefused):
        identify(world, "virt-launcher-db-a")
