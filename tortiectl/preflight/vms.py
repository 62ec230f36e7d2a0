"""What is wrong with one VM: KubeVirt's reasons, the network's, where it could go. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from libtortie.kube.migrations import Migration
from tortiectl.kubevirt.cpu import FEATURE, HOST_MODEL, PASSTHROUGH, VENDOR, under
from tortiectl.kubevirt.eviction import LIVE_MIGRATE, strategy_of
from tortiectl.kubevirt.migratable import (
    INTERFACE,
    Around,
    Refusal,
    refusals,
)
from tortiectl.kubevirt.objects import (
    ANNOTATION_BRIDGE,
    LABEL_PERSISTENT_STATE,
    LIVE_MIGRATABLE,
    VM,
    VMI,
    Claim,
    PersistentVolume,
    Pod,
)
from tortiectl.kubevirt.placement import Candidates, Placement
from tortiectl.preflight.findings import Finding, Severity, Subject

BLOCKS, BREAKS, RISK = Severity.BLOCKS, Severity.BREAKS, Severity.RISK
LABEL_MAX = 63
_ALLOW = f'metadata: {{annotations: {{{ANNOTATION_BRIDGE}: "true"}}}}'
_FIXES = {
    "CPUModeLiveMigratable": "wait for virt-handler to label the node, or use a named CPU model "
    "(`tortiectl cpu-models --common`)",
    "HostDeviceNotLiveMigratable": "take the device out, or shut the VM down to move it",
    "HypervPassthroughNotLiveMigratable": "name the Hyper-V features that the guest needs instead",
    "NoTSCFrequencyNotLiveMigratable": "take reenlightenment out, or use nodes that expose "
    "their TSC frequency",
    "DisksNotLiveMigratable": "use a claim with access mode ReadWriteMany (clone the volume into "
    "one, or migrate the volume with updateVolumesStrategy: Migration)",
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks of all VMs share."""

    around: Around
    placement: Placement
    vms: Mapping[str, VM]
    launchers: Mapping[str, Sequence[Pod]]
    migrations: Mapping[str, Sequence[Migration]]
    volumes: Mapping[str, PersistentVolume]
    state_claims: Mapping[str, Sequence[Claim]]
    drained: frozenset[str] = frozenset()


def subject(vmi: VMI) -> Subject:
    """A VM is called by its VMI's name, which is the same."""
    return Subject("VM", vmi.metadata.name, vmi.metadata.namespace)


def check_vm(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    """Every finding about one VM that runs."""
    found = refusals(vmi, world.around)
    yield from _refused(vmi, found, world)
    yield from _network(vmi, world)
    yield from _volumes(vmi, world)
    yield from _places(vmi, world)
    yield from _eviction(vmi, bool(found) or _condition_false(vmi), world)
    yield from _launchers(vmi, world)
    yield from _running_migration(vmi, world)
    yield from _leftover_mark(vmi, world)


def _refused(vmi: VMI, found: Sequence[Refusal], world: Surroundings) -> Iterator[Finding]:
    about = subject(vmi)
    for refusal in found:
        fix = _FIXES.get(refusal.reason, "shut the VM down to move it")
        if refusal.reason == INTERFACE:
            fix = _interface_fix(vmi, world.vms.get(vmi.id))
        yield Finding(BLOCKS, about, refusal.reason, refusal.message, fix)
    condition = vmi.condition(LIVE_MIGRATABLE)
    known = {refusal.reason for refusal in found}
    if condition is not None and condition.status == "False" and condition.reason not in known:
        text = f"KubeVirt says: {condition.message or 'no reason'}"
        yield Finding(
            BLOCKS, about, condition.reason or LIVE_MIGRATABLE, text,
            "see `kubectl describe vmi`; the objects give no reason for it, or no longer",
        )  # fmt: skip


def _condition_false(vmi: VMI) -> bool:
    condition = vmi.condition(LIVE_MIGRATABLE)
    return condition is not None and condition.status == "False"


def _interface_fix(vmi: VMI, vm: VM | None) -> str:
    interface = vmi.spec.pod_interface
    if interface is None:
        return "give the VM an interface for its pod network"
    if interface.bridge is None:
        return f"use bridge binding, not {interface.method or 'this one'}"
    place = "the VMI's metadata"
    if vm is None:
        return f"put {_ALLOW} into {place}, and start it anew"
    if ANNOTATION_BRIDGE in vm.spec.template.metadata.annotations:
        return "restart the VM: its template has the annotation, its running instance has not"
    where = "spec.template.metadata.annotations of the VM"
    if ANNOTATION_BRIDGE in vm.metadata.annotations:
        return f"the annotation is on the VM itself: move it to {where}, and restart the VM"
    return f'put {ANNOTATION_BRIDGE}: "true" into {where}, and restart the VM'


def _network(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    about, spec = subject(vmi), vmi.spec
    interface = spec.pod_interface
    if interface is not None and interface.masquerade is not None:
        yield Finding(
            BREAKS, about, "Masquerade",
            "masquerade binding: it migrates, but its pod's address changes and connections break",
            f"use bridge binding and {ANNOTATION_BRIDGE}",
        )  # fmt: skip
    value = vmi.metadata.annotations.get(ANNOTATION_BRIDGE)
    if value is not None and value.strip().lower() in ("false", "no", "0", "off", "disabled"):
        yield Finding(
            RISK, about, "BridgeAnnotationValue",
            f"{ANNOTATION_BRIDGE} is {value!r}, but KubeVirt looks at its presence only: it "
            "migrates",
            'make it "true", or take it out if the VM must not migrate',
        )  # fmt: skip
    for one in spec.domain.devices.interfaces:
        if one.macvtap is not None and one.name != spec.pod_network:
            yield Finding(
                BREAKS, about, "Macvtap",
                f"interface {one.name} is macvtap: its MAC stays with the source until that pod "
                "ends, and the network is away so long",
                "use bridge binding for it",
            )  # fmt: skip


def _volumes(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    about, claims = subject(vmi), world.around.claims
    for volume in vmi.spec.volumes:
        claim = (claims or {}).get(f"{vmi.metadata.namespace}/{volume.claim}")
        backing = world.volumes.get(claim.spec.volume_name) if claim is not None else None
        if claim is not None and claim.shared and backing is not None:
            kind = "local" if backing.spec.local is not None else "hostPath"
            if backing.spec.local is not None or backing.spec.host_path is not None:
                yield Finding(
                    RISK, about, "SharedOnOneNode",
                    f"PVC {volume.claim} is ReadWriteMany, but its volume is {kind}: another node "
                    "has other bytes there",
                    "use storage that several nodes share",
                )  # fmt: skip
    yield from _persistent_state(vmi, world)


def _persistent_state(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    """Volumes for a persistent TPM or EFI are found by label: their names are generated."""
    devices, loader = vmi.spec.domain.devices, vmi.spec.domain.firmware.bootloader
    tpm = devices.tpm is not None and devices.tpm.enabled and devices.tpm.persistent
    efi = loader.efi is not None and loader.efi.persistent
    if not (tpm or efi) or world.around.claims is None:
        return
    name = vmi.metadata.name
    if len(name) > LABEL_MAX or world.state_claims.get(vmi.id):
        return  # a longer name is no label: not found is not absent
    yield Finding(
        RISK, subject(vmi), "PersistentState",
        f"no PVC has the label {LABEL_PERSISTENT_STATE}={name}, which a persistent "
        f"{'TPM' if tpm else 'EFI'} needs on the target",
        "see the Events of the VMI; its migration waits for the volume",
    )  # fmt: skip


def _places(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    about, placement = subject(vmi), world.placement
    launcher = _runs_in(vmi, world)
    found = placement.candidates(vmi, launcher)
    if found:
        yield from _passthrough(vmi, found, placement)
        return
    if placement.candidates(vmi, launcher, with_cpu=False):
        yield Finding(
            BLOCKS, about, "NoNodeWithItsCPU",
            f"no other node has the CPU that it needs ({found.summary()}); LiveMigratable does "
            "not look at it",
            "use a model that all nodes have (`tortiectl cpu-models --common`), and restart the VM",
        )  # fmt: skip
        return
    where = found.summary() or "it is the only node"
    fix = "uncordon or add a node that fits the VM's selectors, affinity and tolerations"
    yield Finding(BLOCKS, about, "NoNodeLeft", f"no other node can take it ({where})", fix)


def _passthrough(vmi: VMI, found: Candidates, placement: Placement) -> Iterator[Finding]:
    """Labels choose no target for host-passthrough: features are compared here."""
    source = placement.nodes.get(vmi.status.node_name)
    if vmi.spec.domain.cpu.model != PASSTHROUGH or source is None:
        return
    own, fit = _cpu_of(source.metadata.labels), found.fit
    worse = [name for name in fit if not _cpu_of(placement.nodes[name].metadata.labels) >= own]
    if own and not worse:
        return
    why = (
        f"of {len(fit)} possible targets {len(worse)} lack features of its CPU ({worse[0]})"
        if worse
        else "and node labels tell nothing of CPUs here"
    )
    yield Finding(
        RISK, subject(vmi), "HostPassthrough",
        f"CPU host-passthrough: KubeVirt compares no CPUs, {why}",
        f"use {HOST_MODEL} or a named model (`tortiectl cpu-models --common`)",
    )  # fmt: skip


def _cpu_of(labels: Mapping[str, str]) -> frozenset[str]:
    return under(labels, FEATURE) | under(labels, VENDOR)


def _eviction(vmi: VMI, refused: bool, world: Surroundings) -> Iterator[Finding]:
    settings = world.around.settings
    if refused and strategy_of(vmi, settings) == LIVE_MIGRATE:
        whose = "" if vmi.spec.eviction_strategy else " (the cluster's default)"
        yield Finding(
            BLOCKS, subject(vmi), "EvictionStrategy",
            f"eviction strategy LiveMigrate{whose}, but it cannot migrate: a drain of "
            f"{vmi.status.node_name} never ends",
            "mend the reasons above, or use LiveMigrateIfPossible or None",
        )  # fmt: skip


def _runs_in(vmi: VMI, world: Surroundings) -> Pod | None:
    """The pod the guest is in, where exactly one may be it."""
    there = [
        pod
        for pod in world.launchers.get(vmi.metadata.uid, ())
        if pod.spec.node_name == vmi.status.node_name and not pod.finished
    ]
    return there[0] if len(there) == 1 else None


def _launchers(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    living = [
        pod
        for pod in world.launchers.get(vmi.metadata.uid, ())
        if pod.status.phase == "Running" and not pod.metadata.deleting
    ]
    if len(living) > 1 and not _live(vmi, world):
        names = ", ".join(f"{pod.metadata.name} on {pod.spec.node_name}" for pod in living)
        yield Finding(
            BLOCKS, subject(vmi), "TwoLaunchers",
            f"no migration is running, but its launcher pods are {names}: evacuations pass it over",
            f"make sure that its guest is on {vmi.status.node_name}, and delete the other pod",
        )  # fmt: skip


def _live(vmi: VMI, world: Surroundings) -> list[Migration]:
    return [one for one in world.migrations.get(vmi.id, ()) if not one.final]


def _running_migration(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    live = _live(vmi, world)
    if not live:
        return
    names = ", ".join(f"{one.metadata.name} ({one.status.phase or 'new'})" for one in live)
    more = "two migrations at once: KubeVirt lets one of them fail" if live[1:] else ""
    yield Finding(
        BLOCKS, subject(vmi), "InFlightMigration",
        more or "a migration is running, and KubeVirt refuses a second one",
        f"wait for {names}, or cancel it: `tortiectl vm migrate {vmi.id} --cancel`",
    )  # fmt: skip


def _leftover_mark(vmi: VMI, world: Surroundings) -> Iterator[Finding]:
    mark = vmi.status.evacuation_node_name
    if mark and mark not in world.drained:
        yield Finding(
            RISK, subject(vmi), "LeftoverEvacuation",
            f"status.evacuationNodeName is {mark}, which nobody drains any more: it keeps being "
            "migrated",
            f"tortiectl vm evacuate-cancel {vmi.id}",
        )  # fmt: skip
