"""The toggle as a kubectl user sets it, seen from ADD of the plugin that the agent builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cni_plugin import skel
from cni_plugin.identity import DISABLED_TARGET
from cni_plugin.types import Result
from cni_plugin.wiring import build_plugin
from libtortie.errors import MigrationRefused, TortieError, Unauthorized, Unavailable
from libtortie.kube.objects import IPAMSettings, Pod
from libtortie.kube.port import PatchType
from libtortie.model.ipam import Persistence
from tests.fakes.cni_world import CniWorld, conf, first_address

SETTINGS_READS = {("get", "ipamconfigurations"), ("get", "ipamconfigs")}


def toggle(world: CniWorld, value: str | None) -> None:
    """`kubectl patch ipamconfigurations default --type=merge -p ...`"""
    spec = {"kubeVirtVMAddressPersistence": value}
    world.kube.patch(IPAMSettings, "default", "", {"spec": spec}, patch_type=PatchType.MERGE)


def add(world: CniWorld, pod: str, container: str, node: str = "node1") -> Result:
    """Through the plugin as the agent builds it."""
    fake = world.node(node)
    settings = conf(policy_setup_timeout_seconds=0)
    plugin = build_plugin(settings, shared=fake.shared())
    return plugin.cmd_add(fake.args(pod, container), settings)


def stop(world: CniWorld, pod: str, container: str, node: str = "node1") -> None:
    """The guest was shut down: its sandbox goes, then its pod."""
    world.node(node).delete(pod, container)
    world.kube.remove(Pod, pod, "default")


@pytest.fixture
def world(tmp_path: Path) -> CniWorld:
    """A VM that runs on node1, and the API's object, which sets nothing."""
    world = CniWorld(tmp_path)
    world.kube.put({"metadata": {"name": "default"}, "spec": {}}, IPAMSettings)
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    return world


def test_disabled_by_kubectl_and_enabled_again(world: CniWorld) -> None:
    had = first_address(add(world, "virt-launcher-db-a", "c1"))
    toggle(world, "Disabled")
    with pytest.raises(MigrationRefused, match=f"^{DISABLED_TARGET}$"):
        add(world, "virt-launcher-db-b", "c2", "node2")
    stop(world, "virt-launcher-db-a", "c1")
    world.put_launcher("virt-launcher-db-c")
    ordinary = first_address(add(world, "virt-launcher-db-c", "c3", "node3"))
    assert ordinary != had
    assert world.allocated()[ordinary] == "k8s-pod-network.c3"
    stop(world, "virt-launcher-db-c", "c3", "node3")
    assert ordinary not in world.allocated()
    toggle(world, "Enabled")
    world.put_launcher("virt-launcher-db-d")
    assert first_address(add(world, "virt-launcher-db-d", "c4")) == had
    assert first_address(add(world, "virt-launcher-db-b", "c5", "node2")) == had


@pytest.mark.parametrize("stored", list(Persistence))
def test_the_datastore_does_not_contradict_the_api(world: CniWorld, stored: Persistence) -> None:
    had = first_address(add(world, "virt-launcher-db-a", "c1"))
    world.config(kubevirt_persistence=stored)
    toggle(world, "Enabled")
    assert first_address(add(world, "virt-launcher-db-b", "c2", "node2")) == had
    toggle(world, "Disabled")
    with pytest.raises(MigrationRefused):
        add(world, "virt-launcher-db-b", "c3", "node2")


def test_unset_in_the_api_the_datastore_decides(world: CniWorld) -> None:
    add(world, "virt-launcher-db-a", "c1")
    toggle(world, "Enabled")
    toggle(world, None)
    world.config(kubevirt_persistence=Persistence.DISABLED)
    with pytest.raises(MigrationRefused):
        add(world, "virt-launcher-db-b", "c2", "node2")


@pytest.mark.parametrize("stored", [None, *Persistence])
@pytest.mark.parametrize("pod", ["virt-launcher-db-a", "virt-launcher-db-b"])
@pytest.mark.parametrize("error", [Unauthorized("HTTP 403: no"), Unavailable("refused")])
def test_an_api_that_does_not_say_means_try_again(
    world: CniWorld, error: TortieError, pod: str, stored: Persistence | None
) -> None:
    if stored is not None:
        world.config(kubevirt_persistence=stored)
    world.kube.fail(error, verb="get", plural="ipamconfigurations")
    with pytest.raises(Unavailable, match="IPAM configuration cannot be read") as caught:
        add(world, pod, "c1")
    assert skel._code(caught.value) == 11
    assert world.nothing_left()


def test_an_unreadable_value_means_try_again(world: CniWorld) -> None:
    spec = {"kubeVirtVMAddressPersistence": "disabled"}
    world.kube.put({"metadata": {"name": "default"}, "spec": spec}, IPAMSettings)
    with pytest.raises(Unavailable, match="'disabled' is none of Enabled, Disabled"):
        add(world, "virt-launcher-db-a", "c1")


def test_only_vms_cost_a_read_of_the_api_and_only_one(world: CniWorld) -> None:
    def reads() -> list[Any]:
        return [call for call in world.kube.calls if call in SETTINGS_READS]

    world.put_pod("web-0")
    add(world, "web-0", "c1")
    assert reads() == []
    add(world, "virt-launcher-db-a", "c2")
    assert len(reads()) == 1
    add(world, "virt-launcher-db-b", "c3", "node2")
    assert len(reads()) == 2


def started_before(world: CniWorld) -> str:
    """The VM runs since before addresses persisted; now they do."""
    toggle(world, "Disabled")
    had = first_address(add(world, "virt-launcher-db-a", "c1"))
    assert world.allocated() == {had: "k8s-pod-network.c1"}
    toggle(world, "Enabled")
    return had


def test_a_vm_from_before_cannot_migrate_until_it_was_restarted(world: CniWorld) -> None:
    had = started_before(world)
    text = r"no IP allocated to VM handle k8s-pod-network\.vmi\.default\.db: .*restart it"
    with pytest.raises(MigrationRefused, match=text) as caught:
        add(world, "virt-launcher-db-b", "c2", "node2")
    assert skel._code(caught.value) != 11, "for good"
    assert world.allocated() == {had: "k8s-pod-network.c1"}
    stop(world, "virt-launcher-db-a", "c1")
    assert world.allocated() == {}
    world.put_launcher("virt-launcher-db-d")
    kept = first_address(add(world, "virt-launcher-db-d", "c4"))
    assert world.allocated() == {kept: "k8s-pod-network.vmi.default.db"}
    assert first_address(add(world, "virt-launcher-db-b", "c5", "node2")) == kept
    stop(world, "virt-launcher-db-d", "c4")
    assert world.allocated() == {kept: "k8s-pod-network.vmi.default.db"}


def test_the_del_of_a_vm_from_before_frees_its_address(world: CniWorld) -> None:
    started_before(world)
    world.node("node1").delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()
    world.node("node1").delete("virt-launcher-db-a", "c1")


def test_an_add_repeated_across_the_change_leaves_nothing_behind(world: CniWorld) -> None:
    """The sandbox has its own address and the VM's then; its DEL takes the former along."""
    started_before(world)
    kept = first_address(add(world, "virt-launcher-db-a", "c1"))
    assert len(world.allocated()) == 2
    stop(world, "virt-launcher-db-a", "c1")
    assert world.allocated() == {kept: "k8s-pod-network.vmi.default.db"}
