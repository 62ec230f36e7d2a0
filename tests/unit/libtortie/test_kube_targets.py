"""Whether a pod is a migration's target: label, phase and the two witnesses, in any mixture."""

from __future__ import annotations

import itertools

import pytest

from libtortie.kube.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from libtortie.kube.targets import Standing, chosen_targets, standing

LAUNCHER = {"kubevirt.io": "virt-launcher", "kubevirt.io/migrationJobUID": "m1"}
ME, OTHER = "launcher-me", "launcher-other"


def job(
    target: str = "", phase: str = "Running", *, uid: str = "m1", vmi: str = "vm1"
) -> VirtualMachineInstanceMigration:
    return VirtualMachineInstanceMigration.model_validate(
        {
            "metadata": {"name": "job", "namespace": "default", "uid": "m1"},
            "spec": {"vmiName": vmi},
            "status": {
                "phase": phase,
                "migrationState": {"migrationUid": uid, "targetPod": target},
            },
        }
    )


def machine(target: str = "", *, uid: str = "m1") -> VirtualMachineInstance:
    return VirtualMachineInstance.model_validate(
        {
            "metadata": {"name": "vm1", "namespace": "default", "uid": "vmi-1"},
            "status": {"migrationState": {"migrationUid": uid, "targetPod": target}},
        }
    )


@pytest.mark.parametrize(
    ("own", "vmis", "phase"),
    list(itertools.product(["", ME, OTHER], ["", ME, OTHER, None], ["", "Scheduling", "Running"])),
)
def test_a_live_migration(own: str, vmis: str | None, phase: str) -> None:
    found = standing(ME, LAUNCHER, job(own, phase), None if vmis is None else machine(vmis))
    if OTHER in (own, vmis):
        assert found is Standing.ANOTHER
    elif ME in (own, vmis):
        assert found is Standing.NAMED
    else:
        assert found is Standing.UNNAMED
    assert found.target is (OTHER not in (own, vmis))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize(
    ("named", "expected"),
    [("", Standing.NONE), (ME, Standing.NONE), (OTHER, Standing.ANOTHER)],
)
def test_a_migration_that_is_over(phase: str, named: str, expected: Standing) -> None:
    assert standing(ME, LAUNCHER, job(named, phase), None) is expected
    assert standing(ME, LAUNCHER, job("", phase), machine(named)) is expected


def test_witnesses_of_another_migration_do_not_count() -> None:
    assert standing(ME, LAUNCHER, job(OTHER, uid="m0"), machine(OTHER, uid="m0")).target
    assert chosen_targets(job(OTHER, uid=""), None) == {OTHER}, "its own status is about itself"
    assert chosen_targets(job(), machine(OTHER, uid="")) == frozenset()


@pytest.mark.parametrize("labels", [{}, {**LAUNCHER, "kubevirt.io": "hotplug-disk"}])
def test_only_a_launcher_is_a_target(labels: dict[str, str]) -> None:
    assert standing(ME, labels, job(ME), machine(ME)) is Standing.NONE


def test_a_migration_of_another_vmi_makes_nothing_of_it() -> None:
    assert standing(ME, LAUNCHER, job(ME, vmi="vm2"), machine(ME)) is Standing.NONE
