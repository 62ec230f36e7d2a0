"""What a drain of a node does to each VM, in which order, and why. Pure.

`kubectl drain` evicts all pods at once and asks again until each is gone. An eviction that is let
through ends a VM at once; one that is answered by a migration queues it, and KubeVirt runs a few at
a time. So first come the VMs that restart, then migrations in turns, last what does not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tortiectl.kubevirt.eviction import Fate, fate, strategy_of
from tortiectl.kubevirt.migratable import is_migratable, refusals
from tortiectl.kubevirt.objects import VMI, Pod
from tortiectl.preflight.examine import surroundings
from tortiectl.preflight.vms import Surroundings
from tortiectl.preflight.world import Cluster
from tortiectl.text_tables import columns

_TURN = {Fate.RESTARTS: 0, Fate.ENDS: 0, Fate.MIGRATES: 1, Fate.WAITS: 2, Fate.BLOCKS: 3}


@dataclass(frozen=True, slots=True)
class Step:
    """One VM. `turn` says which of the simultaneous migrations it is among; 0 is at once."""

    vm: str
    fate: Fate
    turn: int
    strategy: str
    why: str
    targets: tuple[str, ...] = ()
    arriving: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Every VM of a node, in order."""

    node: str
    steps: tuple[Step, ...]

    @property
    def blocked(self) -> bool:
        """Whether the drain would never end by itself."""
        return any(step.fate in (Fate.BLOCKS, Fate.WAITS) for step in self.steps)


def plan_drain(cluster: Cluster, node: str) -> Plan:
    """The plan; VMs that only arrive are in it, as they have to leave again."""
    world = surroundings(cluster)
    steps = [
        _step(vmi, world)
        for _, vmi in sorted(cluster.vmis.items())
        if vmi.status.node_name == node and not vmi.final
    ]
    arriving = [
        Step(
            vmi.id, Fate.MIGRATES, 0, strategy_of(vmi, cluster.settings),
            "it is migrating to this node: its target pod is not evicted before it has arrived",
            arriving=True,
        )
        for vmi in _arriving(cluster, world, node)
    ]  # fmt: skip
    ordered = sorted([*steps, *arriving], key=lambda step: (_TURN[step.fate], step.vm))
    return Plan(node, tuple(_in_turns(ordered, cluster.settings.parallel_outbound)))


def _arriving(cluster: Cluster, world: Surroundings, node: str) -> Iterator[VMI]:
    for _, vmi in sorted(cluster.vmis.items()):
        live = {one.metadata.uid for one in world.migrations.get(vmi.id, ()) if not one.final}
        state = vmi.status.migration_state
        if vmi.status.node_name != node and state.target_node == node and live:
            yield vmi


def _in_turns(steps: Sequence[Step], at_once: int) -> Iterator[Step]:
    moving = 0
    for step in steps:
        if step.fate is not Fate.MIGRATES:
            yield step
            continue
        turn = 1 + moving // at_once
        yield Step(step.vm, step.fate, turn, step.strategy, step.why, step.targets, step.arriving)
        moving += 1


def _step(vmi: VMI, world: Surroundings) -> Step:
    settings = world.around.settings
    strategy = strategy_of(vmi, settings)
    migratable = vmi.running and is_migratable(vmi, world.around)
    becomes = fate(strategy, migratable, vmi.metadata.controller() is not None)
    found = world.placement.candidates(vmi, _launcher(vmi, world))
    if becomes is Fate.MIGRATES and not found:
        why = f"no other node can take it ({found.summary() or 'there is none'})"
        return Step(vmi.id, Fate.BLOCKS, 0, strategy, why)
    return Step(
        vmi.id, becomes, 0, strategy, _why(vmi, becomes, strategy, world),
        found.fit if becomes is Fate.MIGRATES else (),
    )  # fmt: skip


def _launcher(vmi: VMI, world: Surroundings) -> Pod | None:
    there = [
        pod
        for pod in world.launchers.get(vmi.metadata.uid, ())
        if pod.spec.node_name == vmi.status.node_name and not pod.finished
    ]
    return there[0] if len(there) == 1 else None


def _why(vmi: VMI, becomes: Fate, strategy: str, world: Surroundings) -> str:
    whose = "" if vmi.spec.eviction_strategy else ", the cluster's default"
    named = f"eviction strategy {strategy}{whose}"
    if becomes is Fate.WAITS:
        return f"{named}: KubeVirt only marks it; its own controller has to act"
    if becomes is Fate.MIGRATES:
        live = [one for one in world.migrations.get(vmi.id, ()) if not one.final]
        return f"its migration {live[0].metadata.name} is running" if live else named
    reasons = refusals(vmi, world.around)
    cannot = f"it cannot migrate: {reasons[0].message}" if reasons else ""
    condition = vmi.condition("LiveMigratable")
    if not cannot and condition is not None and condition.status == "False":
        cannot = f"it cannot migrate: {condition.message}"
    if becomes is Fate.BLOCKS:
        return f"{named}, but {cannot or 'it does not run'}"
    after = "; nothing starts it again: it has no VM" if becomes is Fate.ENDS else ""
    return f"{named}{', and ' + cannot if cannot and strategy != 'None' else ''}{after}"


def lines(plan: Plan) -> Iterator[str]:
    """For people."""
    if not plan.steps:
        yield f"node {plan.node} runs no VMs"
        return
    rows = [
        (
            str(number),
            step.vm,
            str(step.fate),
            str(step.turn) if step.turn else "-",
            _short(step.targets),
            step.why,
        )
        for number, step in enumerate(plan.steps, 1)
    ]
    yield columns(("ORDER", "VM", "FATE", "TURN", "POSSIBLE NODES", "WHY"), rows)
    counts = {one: sum(step.fate is one for step in plan.steps) for one in Fate}
    yield f"{len(plan.steps)} VMs: " + ", ".join(
        f"{count} {name}" for name, count in counts.items() if count
    )
    yield (
        f"kubectl drain {plan.node} --ignore-daemonsets --delete-emptydir-data --force "
        "--pod-selector=kubevirt.io=virt-launcher"
    )


def _short(names: Sequence[str]) -> str:
    shown = ",".join(names[:3]) or "-"
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def document(plan: Plan) -> dict[str, object]:
    """For programs."""
    return {
        "node": plan.node,
        "blocked": plan.blocked,
        "steps": [
            {
                "order": number,
                "vm": step.vm,
                "fate": step.fate.name.lower(),
                "turn": step.turn,
                "strategy": step.strategy,
                "why": step.why,
                "targets": list(step.targets),
                "arriving": step.arriving,
            }
            for number, step in enumerate(plan.steps, 1)
        ],
    }
