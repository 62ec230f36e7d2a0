"""Fixed addresses of a VM, families it gains, pools it outlives: as ADD and DEL see them."""

from __future__ import annotations

import json

import pytest

from cni_plugin import skel
from cni_plugin.types import Result
from libtortie.errors import InvalidInput
from libtortie.kube.objects import Pod
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import IPPool
from tests.fakes.cni_world import CniWorld, owners

HANDLE = "k8s-pod-network.vmi.default.db"
PREFIX = "cni.projectcalico.org/"


@pytest.fixture
def dual(world: CniWorld) -> CniWorld:
    """A pool of each family, a VM, a live migration of it."""
    world.pool("six", "fd00::/64")
    world.put_vm()
    world.put_migration("m1")
    return world


def fixed(*texts: str) -> dict[str, str]:
    return {PREFIX + "ipAddrs": json.dumps(texts)}


def both() -> dict[str, str]:
    return {PREFIX + "ipFamilies": '["IPv4", "IPv6"]'}


def addresses(result: Result) -> list[str]:
    return [str(one.ip) for one in result.addresses]


def stop(world: CniWorld, pod: str, node: str = "node1") -> None:
    world.node(node).delete(pod, f"c-{pod[-1]}")
    world.kube.remove(Pod, pod, "default")


def restart(world: CniWorld, annotations: dict[str, str]) -> Result:
    """The next launcher of the VM, of a new VMI, after the ones before have gone."""
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-c", generation=2, annotations=annotations)
    return world.node("node1").add("virt-launcher-db-c", "c-c")


def start(world: CniWorld, annotations: dict[str, str]) -> Result:
    world.put_launcher("virt-launcher-db-a", annotations=annotations)
    return world.node("node1").add("virt-launcher-db-a", "c-a")


def migrate(world: CniWorld, annotations: dict[str, str]) -> Result:
    world.put_launcher("virt-launcher-db-b", migration="m1", annotations=annotations)
    return world.node("node2").add("virt-launcher-db-b", "c-b")


def test_fixed_addresses_of_both_families_stay_through_restart_and_migration(
    dual: CniWorld,
) -> None:
    wanted = fixed("fd00::77", "10.65.0.77")
    assert addresses(start(dual, wanted)) == ["10.65.0.77", "fd00::77"]
    assert addresses(migrate(dual, wanted)) == ["10.65.0.77", "fd00::77"]
    assert set(dual.allocated()) == {"10.65.0.77", "fd00::77"}


def test_a_changed_fixed_address_is_refused_with_both(dual: CniWorld) -> None:
    start(dual, fixed("10.65.0.77"))
    stop(dual, "virt-launcher-db-a")
    words = r"10\.65\.0\.78 is asked for, but handle \S*\.db holds 10\.65\.0\.77: release that"
    with pytest.raises(InvalidInput, match=words) as caught:
        restart(dual, fixed("10.65.0.78"))
    assert skel._code(caught.value) != 11, "trying again changes nothing"
    assert dual.allocated() == {"10.65.0.77": HANDLE}


def test_a_migration_target_gets_what_the_vm_has(dual: CniWorld) -> None:
    """Whatever was changed on the VM meanwhile: the guest does not change its address."""
    start(dual, {})
    (had,) = dual.allocated()
    assert addresses(migrate(dual, {**fixed("10.65.0.78"), **both()})) == [had]


def test_a_vm_gains_a_family_at_its_next_start(dual: CniWorld) -> None:
    (four,) = addresses(start(dual, {}))
    stop(dual, "virt-launcher-db-a")
    again = addresses(restart(dual, both()))
    assert again[0] == four
    assert again[1].startswith("fd00::")
    dual.put_launcher("virt-launcher-db-b", generation=2, migration="m1")
    assert addresses(dual.node("node2").add("virt-launcher-db-b", "c-b")) == again


@pytest.mark.parametrize("how", ["disabled", "deleted"])
def test_a_vm_outlives_its_pool(dual: CniWorld, how: str) -> None:
    """Restart, migration and DEL work, and nothing is freed by mistake."""
    (had,) = addresses(start(dual, {}))
    record = dual.memory.get(ResourceKey(Kind.IP_POOL, "pool-4"))
    if how == "deleted":
        dual.memory.delete(record.key)
    else:
        assert isinstance(record.value, IPPool)
        spec = record.value.spec.model_copy(update={"disabled": True})
        dual.memory.update(
            record.key, record.value.model_copy(update={"spec": spec}), record.revision
        )
    assert addresses(migrate(dual, {})) == [had]
    stop(dual, "virt-launcher-db-b", "node2")
    stop(dual, "virt-launcher-db-a")
    assert addresses(restart(dual, {})) == [had]
    assert owners(dual.node("node1").ipam.by_handle(HANDLE)) == ("virt-launcher-db-c", "")
    dual.node("node1").delete("virt-launcher-db-c", "c-c")
    assert dual.allocated() == {had: HANDLE}
