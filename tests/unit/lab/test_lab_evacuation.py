"""Evacuations, the queue of migrations, and attachment pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab import world as w
from lab.evacuation import may_start
from lab.objects import LabMigration, LabPod, LabVMI
from tests.fakes.lab_world import (
    GUEST,
    ago,
    created,
    job,
    launcher,
    phase_set,
    plan,
    running,
    statuses,
    vmi,
    world,
)

EVACUATION = {"kubevirt.io/evacuationMigration": "node1"}


def marked(node: str = "node1", *, strategy: str = "LiveMigrate", **more: Any) -> LabVMI:
    return vmi(evacuationNodeName=node, spec={"evictionStrategy": strategy}, **more)


def test_a_marked_instance_gets_its_migration() -> None:
    (body,) = created(plan(running(marked())), LabMigration)
    assert body["metadata"]["name"].startswith("kubevirt-evacuation-")
    assert body["metadata"]["annotations"] == EVACUATION
    assert body["spec"] == {"vmiName": "vm", "priority": "system-critical"}
    assert created(plan(running(marked())), LabMigration) == [body]


def test_a_failed_evacuation_is_followed_by_another_one() -> None:
    (first,) = created(plan(running(marked())), LabMigration)
    again = created(plan(running(marked(), job("Failed", annotations=EVACUATION))), LabMigration)
    assert [body["metadata"]["name"] for body in again] != [first["metadata"]["name"]]
    assert len(again) == 1


@pytest.mark.parametrize(
    "more",
    [
        (marked(), job("Running")),
        (marked(), launcher("pod-2", "node2", job=job())),
        (marked(strategy="External"),),
    ],
)
def test_no_evacuation_beside_a_live_job_or_a_second_pod_or_for_an_outside_controller(
    more: tuple[Any, ...],
) -> None:
    assert created(plan(running(*more)), LabMigration) == []


def test_a_mark_that_means_another_node_is_cleared() -> None:
    actions = plan(running(marked("node3")))
    assert created(actions, LabMigration) == []
    assert {"evacuationNodeName": None} in statuses(actions, LabVMI)


def queue(*jobs: LabMigration, nodes: dict[str, str] | None = None) -> frozenset[str]:
    """Which of the jobs may start; each job's VMI runs on node1 unless `nodes` says else."""
    instances = [
        vmi(nodeName=(nodes or {}).get(one.spec.vmi_name, "node1")).model_copy(
            update={"metadata": vmi().metadata.model_copy(update={"name": one.spec.vmi_name})}
        )
        for one in jobs
    ]
    return may_start(world(*instances, *jobs))


def waiting(n: int, phase: str = "Pending", priority: str = "") -> LabMigration:
    found = job(phase, uid=f"job-{n}", vmi_name=f"vm-{n}", created=ago(100 - n))
    spec = found.spec.model_copy(update={"priority": priority})
    return found.model_copy(update={"spec": spec})


def test_two_migrations_leave_a_node_at_once() -> None:
    assert queue(*(waiting(n) for n in range(4))) == {"job-0", "job-1"}
    assert queue(waiting(0, "Running"), waiting(1), waiting(2)) == {"job-1"}
    assert queue(waiting(0, "Running"), waiting(1, "Scheduling"), waiting(2)) == frozenset()


def test_five_migrate_in_the_cluster_at_once() -> None:
    spread = {f"vm-{n}": f"node{n % 4}" for n in range(8)}
    assert len(queue(*(waiting(n) for n in range(8)), nodes=spread)) == 5


def test_an_evacuation_goes_first() -> None:
    urgent = waiting(3, priority="system-critical")
    idle = waiting(0, priority="system-maintenance")
    assert queue(idle, waiting(1), waiting(2), urgent) == {"job-3", "job-1"}


def test_a_migration_that_waits_gets_no_pod() -> None:
    others = [waiting(n, "Running") for n in range(2)]
    instances = [
        vmi().model_copy(
            update={
                "metadata": vmi().metadata.model_copy(
                    update={"name": one.spec.vmi_name, "uid": one.spec.vmi_name}
                )
            }
        )
        for one in others
    ]
    where = running(job("Pending"), *others, *instances)
    where = replace(where, vmis={**where.vmis, ("default", "vm"): vmi()})
    assert "job-1" not in may_start(where)
    assert not [b for b in created(plan(where), LabPod) if "migrationJobUID" in str(b)]


@pytest.mark.parametrize(
    ("failures", "seconds", "starts"),
    [(1, 19, False), (1, 21, True), (2, 39, False), (2, 41, True), (3, 79, False)],
)
def test_failed_evacuations_double_the_wait(failures: int, seconds: float, starts: bool) -> None:
    failed = [
        job("Failed", uid=f"f{n}", created=ago(900 - n), ended=ago(seconds), annotations=EVACUATION)
        for n in range(failures)
    ]
    fresh = job("Pending", uid="new", created=ago(1), annotations=EVACUATION)
    assert ("new" in may_start(running(marked(), *failed, fresh))) is starts
    asked = job("Pending", uid="new", created=ago(1))
    assert "new" in may_start(running(marked(), *failed, asked))


HOT = {
    "volumes": [{"name": "hot", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}]
}


def attachment(owner: LabPod, phase: str = "Running") -> LabPod:
    (body,) = created(plan(running(vmi(spec=HOT))), LabPod)
    body["metadata"] |= {"uid": f"hp-{owner.metadata.uid}", "name": f"hp-{owner.metadata.uid}"}
    body["metadata"]["ownerReferences"][0] |= {
        "uid": owner.metadata.uid,
        "name": owner.metadata.name,
    }
    body["spec"]["nodeName"] = owner.spec.node_name
    body["status"] = {"phase": phase}
    return LabPod.model_validate(body)


def test_a_hotplugged_volume_comes_with_a_pod_of_the_launchers() -> None:
    plain = {"volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "c"}}]}
    assert created(plan(running(vmi(spec=plain))), LabPod) == []
    (body,) = created(plan(running(vmi(spec=HOT))), LabPod)
    assert body["metadata"]["name"].startswith("hp-volume-")
    assert body["metadata"]["labels"] == {"kubevirt.io": "hotplug-disk"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["uid"]) == ("v1", "Pod", "pod-1")
    assert body["metadata"]["annotations"]["kubevirt.io/owner-vmi-uid"] == "vmi-uid"
    assert body["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "node1"}


def test_a_target_waits_for_its_attachment_pod() -> None:
    hot, source = vmi(spec=HOT), attachment(launcher("pod-1", "node1"))
    target = launcher("pod-2", "node2", job=job())
    actions = plan(running(hot, source, target, job("Pending")))
    (body,) = created(actions, LabPod)
    assert body["metadata"]["labels"]["kubevirt.io/migrationJobUID"] == "job-1"
    assert body["metadata"]["annotations"]["kubevirt.io/migrationJobName"] == "migration-job-1"
    assert phase_set(actions) == ""
    pending = attachment(target, "Pending")
    assert phase_set(plan(running(hot, source, target, pending, job("Pending")))) == ""
    ready = attachment(target)
    assert phase_set(plan(running(hot, source, target, ready, job("Pending")))) == "Scheduling"


def test_an_attachment_pod_goes_with_its_launcher() -> None:
    done = launcher("pod-2", "node2", "Succeeded", job=job())
    left = attachment(done)
    here = attachment(launcher("pod-1", "node1"))
    actions = plan(running(vmi(spec=HOT), here, done, left, guests={"vmi-uid": GUEST}))
    removed = [one.object for one in actions if isinstance(one, w.Remove)]
    assert left in removed
    assert here not in removed
