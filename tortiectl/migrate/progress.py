"""A migration as it goes: from one look at the cluster to the next, what has happened. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from libtortie.kube.migrations import Migration
from tortiectl.kubevirt.objects import VMI


@dataclass
class Story:
    """What was told of one migration."""

    name: str
    phase: str = ""
    target: str = ""
    started: bool = False
    cut_over: bool = False
    aborting: bool = False
    conditions: tuple[str, ...] = ()
    gone: bool = False

    def look(self, migration: Migration | None, vmi: VMI | None) -> Iterator[str]:
        """Lines about what has changed."""
        if migration is None:
            if not self.gone:
                self.gone = True
                yield f"migration {self.name} has been deleted"
            return
        yield from self._conditions(migration)
        phase = migration.status.phase or "Pending"
        if phase != self.phase:
            self.phase = phase
            yield f"phase {phase}"
        state = migration.status.migration_state
        if vmi is not None and vmi.status.migration_state.migration_uid == migration.metadata.uid:
            state = vmi.status.migration_state
        if state.target_node and state.target_node != self.target:
            self.target = state.target_node
            yield f"to node {state.target_node}, pod {state.target_pod or '(not named)'}"
        if state.start_timestamp and not self.started:
            self.started = True
            yield f"copying since {state.start_timestamp}"
        if state.target_node_domain_ready_timestamp and not self.cut_over:
            self.cut_over = True
            yield f"cut-over: the guest runs on {state.target_node}"
        if state.abort_requested and not self.aborting:
            self.aborting = True
            yield "abort requested"

    def _conditions(self, migration: Migration) -> Iterator[str]:
        """What holds it back: limits, quota, a backup."""
        now = tuple(
            f"{one.type}: {one.message or one.reason or one.status}"
            for one in migration.status.conditions
            if one.status == "True"
        )
        for text in now:
            if text not in self.conditions:
                yield text
        self.conditions = now

    def ended(self, migration: Migration | None) -> bool:
        """Whether nothing more will come."""
        return migration is None or migration.final


def succeeded(migration: Migration | None) -> bool:
    """Whether the VM has moved."""
    return migration is not None and migration.status.phase == "Succeeded"


def conclusion(migration: Migration | None, vmi: VMI | None) -> str:
    """The last line."""
    if migration is None:
        where = vmi.status.node_name if vmi is not None else "nowhere"
        return f"cancelled: the VM is on {where}"
    state = migration.status.migration_state
    if succeeded(migration):
        took = f", {state.start_timestamp} to {state.end_timestamp}" if state.end_timestamp else ""
        return f"moved from {state.source_node or '?'} to {state.target_node or '?'}{took}"
    return f"failed: {state.failure_reason or 'KubeVirt gives no reason'}"
