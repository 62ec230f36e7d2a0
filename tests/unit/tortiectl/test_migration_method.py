"""How each kind of volume comes along, and which claim is the cause."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.vm_cluster import vmi
from tortiectl.kubevirt.migratable import BLOCK, LIVE, Around, methods, migration_method
from tortiectl.kubevirt.objects import VMI, Claim

PVC = {"persistentVolumeClaim": {"claimName": "c"}}


def world(*modes: str) -> Around:
    if not modes:
        return Around()
    body = {"metadata": {"name": "c", "namespace": "shop"}, "spec": {"accessModes": modes}}
    return Around(claims={"shop/c": Claim.model_validate(body)})


def with_volume(source: dict[str, Any], **status: Any) -> VMI:
    body = vmi("web", 1, "n1")
    body["spec"]["volumes"] = [{"name": "v", **source}]
    body["status"].update(status)
    return VMI.model_validate(body)


@pytest.mark.parametrize(
    ("source", "modes", "method", "words", "refused"),
    [
        (PVC, ("ReadWriteMany",), LIVE, "PVC c is ReadWriteMany", False),
        (PVC, ("ReadWriteOnce",), BLOCK, "PVC c is ReadWriteOnce", True),
        (PVC, ("ReadOnlyMany",), BLOCK, "PVC c is ReadOnlyMany", True),
        (PVC, ("ReadWriteOnce", "ReadWriteMany"), LIVE, "PVC c is ReadWriteMany", False),
        (PVC, (), BLOCK, "PVC c is not found", True),
        ({"dataVolume": {"name": "c"}}, ("ReadWriteMany",), LIVE, "PVC c is", False),
        ({"dataVolume": {"name": "c"}}, ("ReadWriteOnce",), BLOCK, "PVC c is", True),
        ({"containerDisk": {"image": "x"}}, (), BLOCK, "is copied", False),
        ({"cloudInitNoCloud": {}}, (), BLOCK, "is copied", False),
        ({"emptyDisk": {"capacity": "1Gi"}}, (), BLOCK, "is copied", False),
        ({"ephemeral": PVC}, ("ReadOnlyMany",), BLOCK, "is copied", False),
        ({"hostDisk": {"path": "/d", "shared": True}}, (), LIVE, "shared hostDisk", False),
        ({"hostDisk": {"path": "/d"}}, (), BLOCK, "not shared", True),
    ],
)
def test_each_kind(
    source: dict[str, Any], modes: tuple[str, ...], method: str, words: str, refused: bool
) -> None:
    found = with_volume(source)
    (row,) = methods(found, world(*modes))
    assert (row.method, bool(row.refusal)) == (method, refused)
    assert words in row.reason
    assert migration_method(found, world(*modes)) == method


def test_a_volume_that_moves_to_another_claim_is_copied_and_no_obstacle() -> None:
    found = with_volume(PVC, migratedVolumes=[{"volumeName": "v"}])
    (row,) = methods(found, world("ReadWriteOnce"))
    assert (row.method, row.refusal) == (BLOCK, "")


def test_where_claims_may_not_be_read_the_status_tells() -> None:
    info = {"claimName": "c", "accessModes": ["ReadWriteOnce"]}
    known = with_volume(PVC, volumeStatus=[{"name": "v", "persistentVolumeClaimInfo": info}])
    assert methods(known, Around(claims=None))[0].refusal.startswith("cannot migrate VMI: PVC c")
    assert methods(with_volume(PVC), Around(claims=None))[0].refusal == ""
