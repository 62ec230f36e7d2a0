"""KubeVirt's kinds are not served: not yet, no more, or for the moment. Nobody's VM is "gone"."""

from __future__ import annotations

import pytest

from cni_plugin.identity import Identifier
from libtortie.errors import Unavailable
from libtortie.kube.port import NotServed
from libtortie.model.ipam import Persistence
from tests.fakes.cni_world import CniWorld, first_address, owners, started_vm

HANDLE = "k8s-pod-network.vmi.default.db"
GROUP = "kubevirt.io"
OWNER = {
    "namespace": "default",
    "vmi-name": "db",
    "vm-uid": "vm-of-long-ago",
    "vmi-uid": "vmi-of-long-ago",
}


def test_a_launchers_address_outlives_its_del_while_nothing_is_served(world: CniWorld) -> None:
    """Code 11 once, since the VM may be deleted this very moment; the repeat succeeds."""
    node = started_vm(world)
    before = world.allocated()
    world.kube.hide(GROUP)
    with pytest.raises(Unavailable, match="does not serve VirtualMachine of kubevirt"):
        node.delete("virt-launcher-db-a", "c1")
    node.delete("virt-launcher-db-a", "c1")
    assert world.allocated() == before
    assert owners(node.ipam.by_handle(HANDLE)) == ("", ""), "stopped, as far as we know"
    assert world.endpoints() == []


def test_the_address_is_the_vms_again_once_the_kinds_are_back(world: CniWorld) -> None:
    node = started_vm(world)
    (before,) = world.allocated()
    world.kube.hide(GROUP)
    with pytest.raises(Unavailable):
        node.delete("virt-launcher-db-a", "c1")
    world.put_launcher("virt-launcher-db-b")
    with pytest.raises(Unavailable, match=r"VirtualMachineInstance of kubevirt\.io/v1 \(now\)"):
        node.add("virt-launcher-db-b", "c2")
    world.kube.offer(GROUP)
    assert first_address(node.add("virt-launcher-db-b", "c2")).partition("/")[0] == before


def test_ordinary_pods_need_no_kubevirt(world: CniWorld) -> None:
    world.kube.hide(GROUP)
    world.put_pod("web-0")
    node = world.node()
    node.add("web-0", "c1")
    node.delete("web-0", "c1")
    assert world.nothing_left()


def test_an_owner_is_not_gone_because_its_kind_is(world: CniWorld) -> None:
    identifier = Identifier(world.kube, lambda: Persistence.ENABLED)
    world.put_vm()
    assert identifier.owner_gone(OWNER)
    world.kube.hide(GROUP)
    with pytest.raises(Unavailable):
        identifier.owner_gone(OWNER)


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by UID"])
def test_a_target_waits_for_the_kind_of_its_migration(world: CniWorld, named: bool) -> None:
    """CRDs are created one after the other: instances may be served before migrations are."""
    started_vm(world)
    world.put_migration("m1")
    if named:
        world.put_launcher("virt-launcher-db-b", migration="m1")
    else:
        world.put_launcher("virt-launcher-db-b", labels={"kubevirt.io/migrationJobUID": "vmim-m1"})
    plural = "virtualmachineinstancemigrations"
    other = world.node("node2")
    world.kube.fail(NotServed("HTTP 404: page not found"), plural=plural, times=1)
    with pytest.raises(Unavailable, match=r"VirtualMachineInstanceMigration of .*page not found"):
        other.add("virt-launcher-db-b", "c2")
    world.kube.heal()
    other.add("virt-launcher-db-b", "c2")
    assert owners(other.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "virt-launcher-db-b")


def test_a_proxys_404_is_not_the_pods(world: CniWorld) -> None:
    """An API root that leads elsewhere serves no pods at all: the rival may well be alive."""
    world.kube.hide("")
    identifier = Identifier(world.kube, lambda: Persistence.ENABLED)
    with pytest.raises(Unavailable, match="does not serve Pod of v1"):
        identifier.pod_lives({"pod": "virt-launcher-db-a", "namespace": "default"})
