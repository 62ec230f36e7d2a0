"""Two pods that ask for one VM's seat at the same time: the slower one is told, and takes nothing.

The faster one runs to its end exactly between the slower one's look and its claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.errors import IdentityRefused
from ipam.client import AddressRequest, IPAMClient, Retry
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.errors import OwnerMismatch, Unavailable
from libtortie.kube.objects import (
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from tests.fakes.cni_world import CniNode, CniWorld, first_address, owners
from tests.fakes.ipam_world import START, pool, vm_pod

HANDLE = "k8s-pod-network.vmi.default.db"
FAST, SLOW = "virt-launcher-db-fast", "virt-launcher-db-slow"


@pytest.fixture
def world(tmp_path: Path) -> CniWorld:
    made = CniWorld(tmp_path)
    made.put_vm()
    return made


def overtaken(node: CniNode, name: str, meanwhile: Callable[[], object]) -> None:
    """The next claim of this kind waits until something else has happened."""
    claim = getattr(node.ipam, name)

    def late(*args: Any, **options: Any) -> Any:
        setattr(node.ipam, name, claim)
        meanwhile()
        return claim(*args, **options)

    setattr(node.ipam, name, late)


@pytest.mark.parametrize("known", [False, True], ids=["first start", "stopped VM"])
def test_of_two_launchers_at_once_the_slower_is_refused(world: CniWorld, known: bool) -> None:
    node, elsewhere = world.node(), world.node("node2")
    if known:
        world.put_launcher("virt-launcher-db-old")
        node.add("virt-launcher-db-old", "c0")
        node.delete("virt-launcher-db-old", "c0")
    for pod in (FAST, SLOW):
        world.put_launcher(pod)
    results: list[str] = []

    def fast() -> None:
        results.append(first_address(elsewhere.add(FAST, "c1")))

    overtaken(node, "claim_vm", fast)
    with pytest.raises(
        OwnerMismatch, match=f"{FAST}, which is alive .*; pod default/{SLOW} may not"
    ):
        node.add(SLOW, "c2")
    assert owners(elsewhere.ipam.by_handle(HANDLE)) == (FAST, "")
    assert list(world.allocated()) == results
    assert [one.spec.pod for one in world.endpoints()] == [FAST]
    assert not world.left()["node1 links"]


def test_of_two_targets_of_one_migration_at_once_the_slower_is_refused(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")
    world.node("node0").add("virt-launcher-db-a", "c0")
    world.put_migration("m1")
    for pod in (FAST, SLOW):
        world.put_launcher(pod, migration="m1")
    node, elsewhere = world.node(), world.node("node2")
    overtaken(node, "claim_vm_target", lambda: elsewhere.add(FAST, "c1"))
    with pytest.raises(OwnerMismatch, match="alternate owner"):
        node.add(SLOW, "c2")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", FAST)


def test_an_older_migrations_living_target_is_replaced(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")
    world.node("node0").add("virt-launcher-db-a", "c0")
    node, elsewhere = world.node(), world.node("node2")
    for name, pod in (("m1", FAST), ("m2", SLOW)):
        world.put_migration(name)
        world.put_launcher(pod, migration=name)
    overtaken(node, "claim_vm_target", lambda: elsewhere.add(FAST, "c1"))
    node.add(SLOW, "c2")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", SLOW)


def test_a_failed_first_start_does_not_free_what_the_vm_got_meanwhile(world: CniWorld) -> None:
    for pod in (FAST, SLOW):
        world.put_launcher(pod)
    node, elsewhere = world.node(), world.node("node2")

    def came_and_went() -> None:
        elsewhere.add(FAST, "c1")
        elsewhere.delete(FAST, "c1")
        raise Unavailable("the datastore is away")

    overtaken(node, "claim_vm", came_and_went)
    with pytest.raises(Unavailable):
        node.add(SLOW, "c2")
    assert len(world.allocated()) == 1, "a stopped VM keeps its address"
    assert owners(node.ipam.by_handle(HANDLE)) == ("", "")


# --- forged targets --------------------------------------------------------------------------


def name_target(world: CniWorld, pod: str, how: str) -> None:
    """KubeVirt's hand-off: the API names the target pod of migration m1."""
    state = MigrationState(migration_uid="vmim-m1", target_pod=pod)
    if how == "vmi":
        vmi = world.kube.get(VirtualMachineInstance, "db", "default")
        status = vmi.status.model_copy(update={"migration_state": state})
        world.kube.put(vmi.model_copy(update={"status": status}))
    else:
        job = world.kube.get(VirtualMachineInstanceMigration, "m1", "default")
        done = job.status.model_copy(update={"migration_state": state})
        world.kube.put(job.model_copy(update={"status": done}))


@pytest.mark.parametrize("how", ["vmi", "migration"])
@pytest.mark.parametrize("promoted", [False, True])
def test_the_pod_that_the_api_names_takes_the_seat_of_a_forged_one(
    world: CniWorld, how: str, promoted: bool
) -> None:
    world.put_launcher("virt-launcher-db-a")
    world.node("node0").add("virt-launcher-db-a", "c0")
    world.put_migration("m1")
    for pod in ("virt-launcher-db-forged", "virt-launcher-db-b"):
        world.put_launcher(pod, migration="m1")
    forger, node = world.node("node1"), world.node("node2")
    forger.add("virt-launcher-db-forged", "c1")
    if promoted:
        forger.ipam.promote(HANDLE, forger.ipam.by_handle(HANDLE)[0].alternate)
    with pytest.raises(OwnerMismatch, match="virt-launcher-db-forged, which is alive"):
        node.add("virt-launcher-db-b", "c2")
    name_target(world, "virt-launcher-db-b", how)
    node.add("virt-launcher-db-b", "c2")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "virt-launcher-db-b")
    with pytest.raises(IdentityRefused, match="target pod of migration m1 is virt-launcher-db-b"):
        forger.add("virt-launcher-db-forged", "c1")
    forger.delete("virt-launcher-db-forged", "c1")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "virt-launcher-db-b")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_forged_target_does_not_outlast_the_migration_as_the_vms_pod(
    world: CniWorld, phase: str
) -> None:
    world.put_migration("m1", phase=phase)
    name_target(world, "virt-launcher-db-b", "migration")
    world.put_launcher("virt-launcher-db-forged", migration="m1")
    with pytest.raises(IdentityRefused):
        world.node().add("virt-launcher-db-forged", "c1")
    assert world.nothing_left()


# --- many at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["first start", "stopped VM"])
@pytest.mark.parametrize("target", [False, True], ids=["launchers", "targets"])
def test_of_many_at_once_exactly_one_wins(tmp_path: Path, known: bool, target: bool) -> None:
    """Real transactions, a client for each pod's node; then every pod tries once more."""
    store = SqliteDatastore(tmp_path / "race.db", node="n0", shared=True, timeout=90)
    resource = pool("a", "10.65.0.0/24")
    store.create(resource.key, resource)
    retry = Retry(attempts=1000, seconds=90)
    clients = [IPAMClient(store, f"n{n}", now=lambda: START, retry=retry) for n in range(8)]
    pods = [vm_pod(f"p{n}", node=f"n{n}", vmim_uid="m" if target else "") for n in range(8)]
    first = vm_pod("first", node="n0")
    if known or target:
        clients[0].claim_vm(HANDLE, first, AddressRequest())
    if not target:
        clients[0].disown_vm(HANDLE, first, vm_deleting=False)
    together = threading.Barrier(len(pods))

    def claim(n: int) -> str:
        if target:
            got = clients[n].claim_vm_target(HANDLE, pods[n], rival_lives=lambda owner: True)
        else:
            got = clients[n].claim_vm(
                HANDLE, pods[n], AddressRequest(), rival_lives=lambda owner: True
            )
        return str(got[0].address)

    def race(n: int) -> str:
        together.wait(90)
        try:
            return claim(n)
        except OwnerMismatch as error:
            return f"refused: {error}"

    try:
        with ThreadPoolExecutor(len(pods)) as threads:
            results = list(threads.map(race, range(len(pods))))
        winners = [n for n, result in enumerate(results) if not result.startswith("refused")]
        assert len(winners) == 1, results
        (held,) = clients[0].by_handle(HANDLE)
        assert (held.alternate if target else held.active) == pods[winners[0]]
        for n, result in enumerate(results):
            if n in winners:
                assert claim(n) == result == str(held.address)
            else:
                assert f"pod shop/p{winners[0]}, which is alive" in result
                with pytest.raises(OwnerMismatch):
                    claim(n)
                assert clients[n].seats_of(pods[n]["container-id"]) == ()
    finally:
        store.close()
