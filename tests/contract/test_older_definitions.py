"""The cluster's CustomResourceDefinitions are those of an older Calico: the API server drops, and
says nothing of it, what they do not have."""

from __future__ import annotations

from typing import Any

import pytest

from lab.apiserver import schema
from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.errors import InvalidInput
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks
from tests.contract.test_ipam_on_kubernetes import V4, VM
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod
from tests.fakes.kubernetes_store import kubernetes_api, stores_of

YOUNGER = {
    "alternateOwnerAttrs",
    "releasedAt",
    "affinityClaimTime",
    "kubeVirtVMAddressPersistence",
    "ipCooldownSeconds",
}


def make_older(monkeypatch: pytest.MonkeyPatch) -> None:
    pruned = schema._pruned

    def older(found: Any, value: Any, path: str, unknown: list[str]) -> Any:
        if isinstance(value, dict) and found.get("type") == "object":
            value = {key: one for key, one in value.items() if key not in YOUNGER}
        return pruned(found, value, path, unknown)

    monkeypatch.setattr(schema, "_pruned", older)


def owners(store: KubernetesDatastore) -> list[tuple[str, str]]:
    """Active and alternate pod of each address."""
    found = []
    for record in store.list(Blocks(4)).records:
        assert isinstance(record.value, Block)
        for index in record.value.allocations:
            if index is not None:
                held = record.value.attributes[index]
                found.append((held.active.get("pod", ""), held.alternate.get("pod", "")))
    return sorted(found)


def test_no_migration_is_begun_whose_target_would_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kubernetes_api() as server, stores_of(server, Group.V1) as (store,):
        make_older(monkeypatch)
        world = World(store).pools(pool("a", "10.0.0.0/26", blockSize=28))
        world.config()
        client = world.client()
        client.assign("web", plain_pod("web"), V4)
        client.claim_vm(VM, vm_pod("src"), V4)
        target = vm_pod("dst", node="n2", vmim_uid="m-1")
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"does not keep alternateOwnerAttrs.*conf/crds"):
                client.claim_vm_target(VM, target)
        assert owners(store) == [("src", ""), ("web", "")]
        client.release("web")
        client.assign("other", plain_pod("other"), V4)
        assert ("other", "") in owners(store)

        monkeypatch.undo()  # a newer one was applied
        client.claim_vm_target(VM, target)
        assert ("src", "dst") in owners(store)
