"""VMs whose addresses do not persist, by annotation of their own objects or their namespace."""

from __future__ import annotations

from typing import Any

import pytest

from cni_plugin import skel
from cni_plugin.identity import DISABLED_TARGET
from cni_plugin.opt_out import OPT_OUT
from libtortie.errors import InvalidInput, MigrationRefused
from libtortie.kube.objects import KubeObject, VirtualMachine, VirtualMachineInstance
from libtortie.model.ipam import Persistence
from tests.fakes.cni_world import CniWorld, first_address

HANDLE = "k8s-pod-network.vmi.default.db"
PLACES = ["VirtualMachine", "VirtualMachineInstance", "Pod", "Namespace"]


def annotate(world: CniWorld, place: str, value: str) -> None:
    """Set the annotation on the VM, its VMI or the namespace; on pods that come, for `Pod`."""
    notes = {OPT_OUT: value}
    if place == "Namespace":
        world.put_namespace("default", annotations=notes)
        return
    kinds: dict[str, type[KubeObject]] = {
        "VirtualMachine": VirtualMachine,
        "VirtualMachineInstance": VirtualMachineInstance,
    }
    found = world.kube.get(kinds[place], "db", "default")
    body = found.model_dump(by_alias=True, exclude_defaults=True)
    world.kube.put({**body, "metadata": {**body["metadata"], "annotations": notes}}, kinds[place])


def launch(world: CniWorld, pod: str, place: str = "", value: str = "", **fields: Any) -> None:
    notes = {OPT_OUT: value} if place == "Pod" else {}
    if place not in ("", "Pod"):
        annotate(world, place, value)
    world.put_launcher(pod, annotations=notes, **fields)


@pytest.mark.parametrize("place", PLACES)
def test_a_vm_that_opted_out_has_ordinary_pods(world: CniWorld, place: str) -> None:
    node = world.node()
    world.put_vm()
    launch(world, "virt-launcher-db-a", place, "Disabled")
    node.add("virt-launcher-db-a", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1"}
    world.put_migration("m1")
    launch(world, "virt-launcher-db-b", place, "Disabled", migration="m1")
    with pytest.raises(MigrationRefused) as refused:
        node.add("virt-launcher-db-b", "c2")
    who = {"Pod": "Pod default/virt-launcher-db-b", "Namespace": "Namespace default"}
    named = who.get(place, f"{place} default/db")
    assert str(refused.value) == f"{DISABLED_TARGET}, by annotation {OPT_OUT} of {named}"
    assert skel._code(refused.value) == 104
    node.delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()


@pytest.mark.parametrize("place", PLACES)
def test_the_vms_next_launcher_after_the_opt_out_and_after_its_end(
    world: CniWorld, place: str
) -> None:
    """What the VM had stays its own meanwhile: nobody else gets it."""
    node = world.node()
    world.put_vm()
    launch(world, "virt-launcher-db-a")
    had = first_address(node.add("virt-launcher-db-a", "c1"))
    node.delete("virt-launcher-db-a", "c1")
    launch(world, "virt-launcher-db-b", place, "Disabled")
    other = first_address(node.add("virt-launcher-db-b", "c2"))
    assert world.allocated() == {had: HANDLE, other: "k8s-pod-network.c2"}
    node.delete("virt-launcher-db-b", "c2")
    launch(world, "virt-launcher-db-c", place, "Enabled")
    assert first_address(node.add("virt-launcher-db-c", "c3")) == had
    assert world.allocated() == {had: HANDLE}


@pytest.mark.parametrize("place", PLACES[:3])
def test_a_vms_word_counts_before_its_namespaces(world: CniWorld, place: str) -> None:
    world.put_vm()
    annotate(world, "Namespace", "Disabled")
    launch(world, "virt-launcher-db-a", place, "Enabled")
    world.node().add("virt-launcher-db-a", "c1")
    assert set(world.allocated().values()) == {HANDLE}


def test_one_disabled_of_a_vms_own_is_enough(world: CniWorld) -> None:
    world.put_vm()
    annotate(world, "VirtualMachine", "Enabled")
    launch(world, "virt-launcher-db-a", "VirtualMachineInstance", "Disabled")
    world.node().add("virt-launcher-db-a", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1"}


@pytest.mark.parametrize("place", PLACES)
def test_nobody_opts_in_where_the_cluster_has_no_persistence(world: CniWorld, place: str) -> None:
    world.config(kubevirt_persistence=Persistence.DISABLED)
    world.put_vm()
    launch(world, "virt-launcher-db-a", place, "Enabled")
    world.node().add("virt-launcher-db-a", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1"}


@pytest.mark.parametrize("value", ["", "disabled", "false", "Disabled ", "no" * 200])
@pytest.mark.parametrize("place", PLACES)
def test_an_unreadable_value_is_never_enabled_by_accident(
    world: CniWorld, place: str, value: str
) -> None:
    world.put_vm()
    launch(world, "virt-launcher-db-a", place, value)
    with pytest.raises(InvalidInput, match=f"{place} .*{OPT_OUT} is .*; want Enabled or Disabled"):
        world.node().add("virt-launcher-db-a", "c1")
    assert world.nothing_left()


def test_an_ordinary_pod_has_nothing_to_opt_out_of(world: CniWorld) -> None:
    world.put_namespace("default", annotations={OPT_OUT: "Disabled"})
    world.put_pod("web-0", annotations={OPT_OUT: "nonsense"})
    world.node().add("web-0", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1"}


def test_another_namespaces_vm_of_the_name_is_not_meant(world: CniWorld) -> None:
    world.put_namespace("quiet", annotations={OPT_OUT: "Disabled"})
    for namespace in ("default", "quiet"):
        world.put_vm(namespace=namespace)
        world.put_launcher("virt-launcher-db-a", namespace=namespace)
        world.node().add("virt-launcher-db-a", f"c-{namespace}", namespace)
    assert set(world.allocated().values()) == {HANDLE, "k8s-pod-network.c-quiet"}
