"""Which migrations are made by an eviction, and which of those that wait may begin. Pure.

Eviction only marks an instance; the migration is made here, again and again until the guest has
left. Migrations queue: at most five move at once in the cluster and two away from one node, those
of an evacuation first, and each that failed doubles the wait for the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lab import objects as kv
from lab.migratable import live_migratable
from lab.objects import LabMigration, LabVMI
from lab.rendering import evacuation_body
from lab.world import Action, Create, Patch, Remove, World, age, since

PARALLEL_PER_CLUSTER = 5
PARALLEL_OUTBOUND_PER_NODE = 2
BACKOFF_S = 20.0
FINALS_KEPT = 5
PRIORITIES = {"system-critical": 100, "user-triggered": 50, "system-maintenance": 20}
MIGRATING_STRATEGIES = ("LiveMigrate", "LiveMigrateIfPossible")


def plan_evacuation(vmi: LabVMI, world: World) -> Iterator[Action]:
    """A migration for a marked instance, or the end of a mark that means another node."""
    node = vmi.status.evacuation_node_name
    if not node or vmi.status.phase != "Running" or vmi.metadata.deleting:
        return
    if node != vmi.status.node_name:
        yield Patch(vmi, {"status": {"evacuationNodeName": None}}, status=True)
        return
    jobs = world.migrations_of(vmi)
    busy = any(not job.final for job in jobs)
    launchers = [pod for pod in world.launchers(vmi) if not pod.finished]
    if busy or len(launchers) > 1 or vmi.spec.eviction_strategy not in MIGRATING_STRATEGIES:
        return
    if live_migratable(vmi, world.surroundings()).status == "True":
        earlier = sorted(job.metadata.uid for job in jobs)
        yield Create(LabMigration, evacuation_body(vmi, node, *earlier))


def may_start(world: World) -> frozenset[str]:
    """UIDs of the waiting migrations that may get their target pod now."""
    running = [job for job in world.migrations.values() if _moves(job, world)]
    outbound = Counter(_source(job, world) for job in running)
    total, allowed = len(running), set()
    waiting = [
        job
        for job in world.migrations.values()
        if not job.final and job.status.phase == "Pending" and not _moves(job, world)
    ]
    for job in sorted(waiting, key=_order):
        node = _source(job, world)
        if total >= PARALLEL_PER_CLUSTER or outbound[node] >= PARALLEL_OUTBOUND_PER_NODE:
            continue
        if _backs_off(job, world):
            continue
        total += 1
        outbound[node] += 1
        allowed.add(job.metadata.uid)
    return frozenset(allowed)


def _moves(job: LabMigration, world: World) -> bool:
    """Whether a migration has its target pod, or had it."""
    if job.final or job.status.phase == "":
        return False
    return job.status.phase != "Pending" or any(
        pod.metadata.labels.get(kv.LABEL_JOB) == job.metadata.uid and not pod.finished
        for pod in world.pods.values()
    )


def _source(job: LabMigration, world: World) -> str:
    vmi = world.vmis.get((job.metadata.namespace, job.spec.vmi_name))
    return vmi.status.node_name if vmi is not None else ""


def _order(job: LabMigration) -> tuple[int, tuple[str, str]]:
    return -PRIORITIES.get(job.spec.priority, PRIORITIES["user-triggered"]), age(job)


def _backs_off(job: LabMigration, world: World) -> bool:
    """Whether earlier evacuations failed so recently that this one has to wait."""
    vmi = world.vmis.get((job.metadata.namespace, job.spec.vmi_name))
    if vmi is None or not job.evacuates:
        return False
    failures = 0
    ended: str | None = None
    for earlier in world.migrations_of(vmi):
        if not (earlier.final and earlier.evacuates):
            continue
        if earlier.status.phase == "Succeeded":
            failures = 0
            continue
        failures += 1
        ended = ended_at(earlier)
    return failures > 0 and since(ended, world) < BACKOFF_S * 2 ** (failures - 1)


def ended_at(job: LabMigration) -> str:
    """When a migration reached its final phase; empty when nobody wrote it down."""
    times = [
        one.phase_transition_timestamp
        for one in job.status.phase_transition_timestamps
        if one.phase == job.status.phase
    ]
    return times[-1] if times else (job.status.migration_state.end_timestamp or "")


def plan_leftovers(vmi: LabVMI, world: World) -> Iterator[Action]:
    """Final migrations beyond the five youngest go, and with them the finished pods they left."""
    finals = [job for job in world.migrations_of(vmi) if job.final]
    for job in finals[: max(0, len(finals) - FINALS_KEPT)]:
        if not job.metadata.deleting:
            yield Remove(job)
    kept = {job.status.migration_state.source_pod for job in world.migrations_of(vmi)}
    kept.add(vmi.status.migration_state.source_pod)
    for pod in world.launchers(vmi):
        if pod.finished and not pod.metadata.deleting and pod.metadata.name not in kept:
            yield Remove(pod)
