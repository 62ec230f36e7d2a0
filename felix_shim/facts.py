"""What the API's objects say about a local endpoint. Pure; the order of arrival plays no part.

A pod is the TARGET of a migration when the CNI plugin proved at ADD that it is for it (of rivals
with one label only the first got IPAM's seat, and with it an endpoint), the migration is live and
moves the VMI that owns the pod, and no other pod is named as its target (`libtortie.kube.targets`,
as in ADD). Where another is named, by VMI or migration, the pod is refused. It is the SOURCE when
a migration of its VMI, live or Succeeded, names it as source pod: KubeVirt writes that into the
migration's own status, and earlier into the VMI's.

Proof is `VMI.status.nodeName` of the VMI with the endpoint's UID. A VMI of the same name and
another UID is another run of the VM: the endpoint's own run is over, so the VM is elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from felix_shim.migration import Facts
from felix_shim.model import Endpoint, Proof, Role, VMRef
from libtortie.kube.objects import (
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.kube.targets import Standing, holder_on, standing

Name = tuple[str, str]
_SUCCEEDED = "Succeeded"


@dataclass(slots=True)
class VirtualMachines:
    """The KubeVirt objects known so far, indexed by the VMI they are about."""

    migrations_in_sync: bool = False
    instances_in_sync: bool = False
    _migrations: dict[Name, VirtualMachineInstanceMigration] = field(default_factory=dict)
    _by_vmi: defaultdict[Name, dict[Name, VirtualMachineInstanceMigration]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _instances: dict[Name, VirtualMachineInstance] = field(default_factory=dict)

    @property
    def in_sync(self) -> bool:
        """Whether complete lists have been delivered."""
        return self.migrations_in_sync and self.instances_in_sync

    def put(self, item: VirtualMachineInstanceMigration | VirtualMachineInstance) -> Name:
        """Take the newer form of an object; returns (namespace, name) of the VMI it is about."""
        if isinstance(item, VirtualMachineInstance):
            vmi = _name(item)
            self._instances[vmi] = item
            return vmi
        vmi = (item.metadata.namespace, item.spec.vmi_name)
        self._migrations[_name(item)] = item
        self._by_vmi[vmi][_name(item)] = item
        return vmi

    def remove(self, item: VirtualMachineInstanceMigration | VirtualMachineInstance) -> Name:
        """Forget an object; returns (namespace, name) of the VMI it was about."""
        if isinstance(item, VirtualMachineInstance):
            self._instances.pop(_name(item), None)
            return _name(item)
        self._migrations.pop(_name(item), None)
        vmi = (item.metadata.namespace, item.spec.vmi_name)
        self._by_vmi[vmi].pop(_name(item), None)
        if not self._by_vmi[vmi]:
            del self._by_vmi[vmi]
        return vmi

    def keep_migrations(self, delivered: frozenset[Name]) -> set[Name]:
        """A complete list of migrations arrived: forget all others; returns the VMIs concerned."""
        self.migrations_in_sync = True
        stale = [item for name, item in self._migrations.items() if name not in delivered]
        return {self.remove(item) for item in stale}

    def keep_instances(self, delivered: frozenset[Name]) -> set[Name]:
        """A complete list of VMIs arrived: forget all others; returns the VMIs concerned."""
        self.instances_in_sync = True
        stale = [item for name, item in self._instances.items() if name not in delivered]
        return {self.remove(item) for item in stale}

    def migrations_of(self, vm: VMRef) -> tuple[VirtualMachineInstanceMigration, ...]:
        """Every migration of a VMI, live and final."""
        return tuple(self._by_vmi.get((vm.namespace, vm.vmi_name), {}).values())

    def instance_of(self, vm: VMRef) -> VirtualMachineInstance | None:
        """The VMI of this name, whatever its UID."""
        return self._instances.get((vm.namespace, vm.vmi_name))


def derive(endpoint: Endpoint, machines: VirtualMachines, node: str) -> Facts:
    """The API's part of the facts about an endpoint, from migrations that are in sync."""
    vm = endpoint.vm
    if vm is None:
        return Facts()
    migrations = machines.migrations_of(vm)
    instance = machines.instance_of(vm)
    target, found = _targeting(endpoint, migrations, instance, vm)
    refused = found is Standing.ANOTHER
    role = Role.NONE
    if found.target:
        role = Role.TARGET
    elif not refused and any(_is_source(endpoint, one, instance, vm) for one in migrations):
        role = Role.SOURCE
    return Facts(
        role=role,
        final=all(migration.final for migration in migrations),
        proof=Proof.ELSEWHERE if refused else prove(endpoint, vm, instance, node),
        migration_uid=target if found.target else "",
        refused=refused,
        word=_word(instance, vm),
    )


def _word(instance: VirtualMachineInstance | None, vm: VMRef) -> str:
    """What the proof rests on: the last hand-off that the instance knows, or another run."""
    if instance is None:
        return ""
    own = instance.metadata.uid == vm.vmi_uid
    return instance.status.migration_state.migration_uid if own else instance.metadata.uid


def update(
    before: Facts,
    endpoint: Endpoint,
    machines: VirtualMachines,
    node: str,
    *,
    raised_elsewhere: int = 0,
    stale_elsewhere: bool = False,
) -> Facts:
    """The facts now; what a watch that is not in sync has not told yet stays as it was before."""
    found = derive(endpoint, machines, node)
    if endpoint.vm is not None:
        if not machines.migrations_in_sync:
            found = before
        elif not machines.instances_in_sync:
            found = replace(found, proof=before.proof, word=before.word)
    return replace(found, raised_elsewhere=raised_elsewhere, stale_elsewhere=stale_elsewhere)


def prove(
    endpoint: Endpoint, vm: VMRef, instance: VirtualMachineInstance | None, node: str
) -> Proof:
    """Where the VMI that owns the endpoint's pod runs, as far as the API says."""
    if instance is None:
        return Proof.UNKNOWN
    if instance.metadata.uid != vm.vmi_uid:
        return Proof.ELSEWHERE
    if _sent_away(endpoint, instance) or instance.status.node_name not in ("", node):
        return Proof.ELSEWHERE
    return _among_pods(endpoint, instance, node) if instance.status.node_name else Proof.UNKNOWN


def _sent_away(endpoint: Endpoint, instance: VirtualMachineInstance) -> bool:
    """A decentralised migration ends the instance it sent, which names its old node for ever."""
    state = instance.status.migration_state
    sent = instance.status.phase == _SUCCEEDED and not state.failed
    return sent and state.source_pod == endpoint.id.pod


def _among_pods(endpoint: Endpoint, instance: VirtualMachineInstance, node: str) -> Proof:
    """Whether it is this pod of the VM's node that the VM runs in: another one there may be a
    source of long ago that lingers, or a target that nothing came of."""
    state = instance.status.migration_state
    if holder := holder_on(node, state):
        return Proof.HERE if holder == endpoint.id.pod else Proof.ELSEWHERE
    movers = {state.source_pod, state.target_pod}
    if endpoint.migration_uid and "" not in movers and endpoint.id.pod not in movers:
        return Proof.ELSEWHERE  # it came to be a target, and the last hand-off was of others
    pods = instance.status.active_pods
    another_pod_here = endpoint.pod_uid not in pods and node in pods.values()
    return Proof.ELSEWHERE if endpoint.pod_uid and another_pod_here else Proof.HERE


def _targeting(
    endpoint: Endpoint,
    migrations: tuple[VirtualMachineInstanceMigration, ...],
    instance: VirtualMachineInstance | None,
    vm: VMRef,
) -> tuple[str, Standing]:
    """The migration the endpoint was made for, and what that makes of it.

    After the migration was deleted the VMI may still name its target.
    """
    uid = endpoint.migration_uid
    if not uid:
        return "", Standing.NONE
    vmi = instance if instance is not None and instance.metadata.uid == vm.vmi_uid else None
    for migration in migrations:
        if migration.metadata.uid == uid:
            return uid, standing(endpoint.id.pod, endpoint.labels, migration, vmi)
    state = vmi.status.migration_state if vmi is not None else MigrationState()
    named = state.target_pod if state.migration_uid == uid else ""
    return uid, Standing.ANOTHER if named not in ("", endpoint.id.pod) else Standing.NONE


def _is_source(
    endpoint: Endpoint,
    migration: VirtualMachineInstanceMigration,
    instance: VirtualMachineInstance | None,
    vm: VMRef,
) -> bool:
    if migration.metadata.uid == endpoint.migration_uid:
        return False
    if migration.final and migration.status.phase != _SUCCEEDED:
        return False
    if migration.status.migration_state.source_pod == endpoint.id.pod:
        return True
    if instance is None or instance.metadata.uid != vm.vmi_uid or migration.final:
        return False
    state: MigrationState = instance.status.migration_state
    return (
        state.source_pod == endpoint.id.pod and state.migration_uid == migration.metadata.uid != ""
    )


def _name(item: VirtualMachineInstanceMigration | VirtualMachineInstance) -> Name:
    return item.metadata.namespace, item.metadata.name
