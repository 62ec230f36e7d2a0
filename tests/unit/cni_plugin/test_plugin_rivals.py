"""Two pods that ask for one VM's seat at the same time: the slower one is told, and takes nothing.

The faster one runs to its end exactly between the slower one's look and its claim.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libtortie.errors import OwnerMismatch, Unavailable
from tests.fakes.cni_world import CniNode, CniWorld, first_address, owners

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
    with pytest.raises(OwnerMismatch, match=f"{FAST}, which is alive; pod default/{SLOW} may not"):
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
