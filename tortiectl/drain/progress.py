"""A drain as it goes: from one look at the cluster to the next, what has happened. Pure.

Only VMs that were on the node count, and only while they are: a VM that has left and is migrated
again is another story.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from libtortie.kube.migrations import Migration
from tortiectl.drain.plan import Plan
from tortiectl.kubevirt.eviction import Fate
from tortiectl.kubevirt.objects import VMI, Node, Pod


@dataclass(frozen=True, slots=True)
class Look:
    """The objects at one time; `node` None: it is gone. VMIs by `namespace/name`."""

    node: Node | None
    vmis: Mapping[str, VMI] = field(default_factory=dict)
    migrations: Mapping[str, Migration] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)


@dataclass
class Progress:
    """What is remembered of one drain of a node, whose VMs the plan names."""

    name: str
    plan: Plan
    _at: dict[str, str] = field(default_factory=dict)
    _uids: dict[str, str] = field(default_factory=dict)
    _marked: set[str] = field(default_factory=set)
    _phases: dict[str, str] = field(default_factory=dict)
    _left: dict[str, str] = field(default_factory=dict)
    _moved: set[str] = field(default_factory=set)
    _node: str = ""
    _begun: bool = False

    def look(self, now: Look) -> Iterator[str]:
        """Lines about what has changed since the last look."""
        yield from self._of_node(now.node)
        if not self._begun:
            self._begin(now)
        for vm in list(self._at):
            yield from self._of_vm(vm, now)

    def _begin(self, now: Look) -> None:
        """Migrations that had ended before are not news."""
        self._begun = True
        for vm, vmi in sorted(now.vmis.items()):
            if vmi.status.node_name == self.name and not vmi.final:
                self._at[vm], self._uids[vm] = self.name, vmi.metadata.uid
        for one in now.migrations.values():
            if one.final:
                self._phases[one.metadata.uid] = one.status.phase

    def _of_node(self, node: Node | None) -> Iterator[str]:
        state = "gone" if node is None else _state(node)
        if state != self._node:
            self._node = state
            yield f"node {self.name} is {state}"

    def _of_vm(self, vm: str, now: Look) -> Iterator[str]:
        vmi = now.vmis.get(vm)
        if vmi is None or vmi.metadata.uid != self._uids[vm]:
            if vm not in self._left:
                self._left[vm] = ""
                yield f"{vm}: its instance has ended"
            if vmi is not None and vmi.running and self._left[vm] == "":
                self._left[vm] = vmi.status.node_name
                yield f"{vm}: runs again, on {vmi.status.node_name}"
            return
        if vm in self._left:
            return  # what happens to it elsewhere is not this drain's
        if vmi.status.evacuation_node_name == self.name and vm not in self._marked:
            self._marked.add(vm)
            yield f"{vm}: eviction triggered"
        yield from self._of_migrations(vm, now.migrations)
        if vmi.final:
            self._left[vm] = ""
            yield f"{vm}: has {vmi.status.phase.lower()}"
        elif vmi.status.node_name != self.name:
            self._left[vm] = vmi.status.node_name
            self._moved.add(vm)
            yield f"{vm}: moved to {vmi.status.node_name}"

    def _of_migrations(self, vm: str, migrations: Mapping[str, Migration]) -> Iterator[str]:
        for _, one in sorted(migrations.items()):
            meta = one.metadata
            if f"{meta.namespace}/{one.spec.vmi_name}" != vm:
                continue
            phase = one.status.phase or "Pending"
            if self._phases.get(meta.uid) != phase:
                self._phases[meta.uid] = phase
                why = one.status.migration_state.failure_reason
                yield f"{vm}: migration {meta.name}: {phase}{': ' + why if why else ''}"

    def left(self, now: Look) -> tuple[str, ...]:
        """VMs that are still there, by instance or by a launcher pod that has not finished."""
        staying = {
            vm
            for vm, vmi in now.vmis.items()
            if vmi.status.node_name == self.name and not vmi.final
        }
        pods = (pod for pod in now.pods.values() if not pod.finished)
        here = {pod.metadata.name for pod in pods if pod.spec.node_name == self.name}
        return (*sorted(staying), *(() if staying else sorted(here)))

    def outcome(self) -> Iterator[tuple[str, str, bool]]:
        """Of each VM that was there: where it is, and whether the plan said so."""
        planned = {step.vm: step.fate for step in self.plan.steps}
        for vm in sorted(self._at):
            where = self._left.get(vm)
            fate = planned.get(vm)
            if where is None:
                yield vm, "is still there", fate in (Fate.BLOCKS, Fate.WAITS)
                continue
            if vm in self._moved:
                yield vm, f"migrated to {where}", fate is Fate.MIGRATES
            else:
                text = f"ended, and runs on {where}" if where else "ended"
                yield vm, text, fate in (Fate.RESTARTS, Fate.ENDS)


def _state(node: Node) -> str:
    if not node.ready:
        return "not ready"
    return "cordoned" if node.spec.unschedulable else "schedulable"
