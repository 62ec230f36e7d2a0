"""Which nodes may have which VM's connections, and whose this node wants. Pure.

The API names both ends of a migration: the target's node in `migrationState`, the source's there
too and, before KubeVirt wrote that, in the VMI's `nodeName`. A node gets the connections of a VM
that is being moved to it, and of no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from felix_shim.facts import VirtualMachines
from felix_shim.migration import RAISED, State
from felix_shim.model import EndpointId
from felix_shim.roster import Local
from libtortie.kube.objects import (
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.model.ipam import IPAddress

_SUCCEEDED = "Succeeded"


@dataclass(frozen=True, slots=True)
class Permit:
    """A node that may have the connections of a VM that is leaving, or has just left."""

    node: str
    vmi_uid: str
    addresses: frozenset[IPAddress]
    endpoint: EndpointId | None = field(default=None, compare=False)
    """Whose they are here, for the log."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A VM whose connections this node wants, from a node at an address if that is known.

    `arrived`: it has been heard here.
    """

    migration_uid: str
    vmi_uid: str
    addresses: tuple[IPAddress, ...]
    source: str = ""
    source_address: IPAddress | None = None
    arrived: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """Permits by migration UID, wishes by endpoint."""

    permits: Mapping[str, Permit] = field(default_factory=dict)
    wishes: Mapping[EndpointId, Wish] = field(default_factory=dict)


def exchange(
    locals_: Iterable[Local],
    machines: VirtualMachines,
    node: str,
    address_of: Callable[[str], IPAddress | None],
) -> Exchange:
    """What follows from the endpoints of a node and what is known of their migrations."""
    permits: dict[str, Permit] = {}
    wishes: dict[EndpointId, Wish] = {}
    for local in locals_:
        vm = local.endpoint.vm
        if vm is None or not local.endpoint.addresses:
            continue
        instance = machines.instance_of(vm)
        same = instance if instance is not None and instance.metadata.uid == vm.vmi_uid else None
        for migration in machines.migrations_of(vm):
            uid = migration.metadata.uid
            if uid == local.endpoint.migration_uid or _is_over(migration):
                continue
            if target := _target(migration, same, node):
                addresses = frozenset(local.endpoint.addresses)
                permits[uid] = Permit(target, vm.vmi_uid, addresses, local.id)
        if _wants(local):
            source = _source(local, machines.migrations_of(vm), same, node)
            wishes[local.id] = Wish(
                local.endpoint.migration_uid,
                vm.vmi_uid,
                local.endpoint.addresses,
                source,
                address_of(source) if source else None,
                arrived=local.machine.state in RAISED,
            )
    return Exchange(permits, wishes)


def _wants(local: Local) -> bool:
    """Whether this is where a VM is coming to, or has just come."""
    moving = local.machine.state in RAISED | {State.TARGET}
    return moving and bool(local.endpoint.migration_uid)


def _is_over(migration: VirtualMachineInstanceMigration) -> bool:
    """Without having moved the VM: one that succeeded may still want its last copy."""
    return migration.final and migration.status.phase != _SUCCEEDED


def _target(
    migration: VirtualMachineInstanceMigration, instance: VirtualMachineInstance | None, node: str
) -> str:
    named = (state.target_node for state in _states(migration, instance))
    return next((name for name in named if name and name != node), "")


def _source(
    local: Local,
    migrations: Iterable[VirtualMachineInstanceMigration],
    instance: VirtualMachineInstance | None,
    node: str,
) -> str:
    names = [
        state.source_node
        for migration in migrations
        if migration.metadata.uid == local.endpoint.migration_uid
        for state in _states(migration, instance)
    ]
    if instance is not None:
        names.append(instance.status.node_name)
    return next((name for name in names if name and name != node), "")


def _states(
    migration: VirtualMachineInstanceMigration, instance: VirtualMachineInstance | None
) -> Iterator[MigrationState]:
    """What is said of a migration, in its own status and in the VMI's."""
    yield migration.status.migration_state
    if instance is not None:
        state = instance.status.migration_state
        if state.migration_uid == migration.metadata.uid:
            yield state
