"""All of a preflight: from the cluster's objects to findings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from libtortie.validity import days_left
from tortiectl.kubevirt.migratable import around
from tortiectl.kubevirt.objects import (
    LABEL_CREATED_BY,
    LABEL_PERSISTENT_STATE,
    VMI,
    Claim,
    Node,
    Pod,
)
from tortiectl.kubevirt.placement import Placement
from tortiectl.kubevirt.settings import Settings
from tortiectl.preflight.bgp import check_bgp
from tortiectl.preflight.findings import Finding, Severity, Subject, ordered
from tortiectl.preflight.host_policy import Address, HostPolicy, check_host_policy
from tortiectl.preflight.migration_network import check_migration_network
from tortiectl.preflight.network import addresses_of, check_network
from tortiectl.preflight.quotas import check_quotas
from tortiectl.preflight.services import check_services, launchers_of
from tortiectl.preflight.vms import Surroundings, check_vm
from tortiectl.preflight.world import Cluster

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scope:
    """Which VMs are judged: one by `namespace/name`, those of a node, or all that run."""

    vm: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of which VMs. Without what is among `holes` it says too little; what is among
    `gaps` was merely not looked at."""

    findings: tuple[Finding, ...]
    judged: tuple[str, ...]
    holes: tuple[str, ...]
    gaps: tuple[str, ...]
    certificates: tuple[tuple[str, float], ...] = ()
    """Where each is, and the days it has left."""


def examine(cluster: Cluster, scope: Scope) -> Verdict:
    """Every reason, of every VM in the scope."""
    vmis = judged(cluster, scope)
    world = surroundings(cluster)
    found = [finding for vmi in vmis for finding in check_vm(vmi, world)]
    found += _unreadable(cluster, scope)
    found += check_network(cluster, vmis)
    found += check_bgp(cluster, addresses_of(vmis))
    if vmis:
        found += check_host_policy(_host_policy(cluster))
        found += check_services(cluster, launchers_of(vmis, world.launchers))
        found += check_migration_network(cluster)
        found += check_quotas(cluster.quotas, vmis, world.launchers)
    names = tuple(vmi.id for vmi in vmis)
    days = tuple(
        (one.place, days_left(one.not_after, cluster.now))
        for one in cluster.certificates
        if not one.problem
    )
    return Verdict(ordered(found), names, tuple(cluster.holes), tuple(cluster.gaps), days)


def judged(cluster: Cluster, scope: Scope) -> list[VMI]:
    """The VMs in scope that run."""
    return [
        vmi
        for key, vmi in sorted(cluster.vmis.items())
        if vmi.running
        and (not scope.vm or key == scope.vm)
        and (not scope.node or vmi.status.node_name == scope.node)
    ]


def surroundings(cluster: Cluster) -> Surroundings:
    """What the checks of all VMs share, looked up once."""
    launchers = grouped(cluster.launchers, owner_uid)
    return Surroundings(
        around=around(cluster.claims, cluster.nodes, cluster.settings),
        placement=Placement(cluster.nodes, cluster.launchers),
        vms=cluster.vms,
        launchers=launchers,
        migrations=grouped(
            cluster.migrations, lambda one: f"{one.metadata.namespace}/{one.spec.vmi_name}"
        ),
        volumes=cluster.volumes,
        state_claims=grouped((cluster.claims or {}).values(), _state_of),
        drained=drained(cluster.nodes, cluster.settings),
    )


def drained(nodes: Mapping[str, Node], settings: Settings) -> frozenset[str]:
    """Nodes that somebody is emptying: cordoned, or with the drain taint."""
    return frozenset(
        name
        for name, node in nodes.items()
        if node.spec.unschedulable
        or any(taint.key == settings.drain_taint for taint in node.spec.taints)
    )


def owner_uid(pod: Pod) -> str:
    """The UID of the VMI whose launcher a pod is."""
    owner = pod.metadata.controller()
    return owner.uid if owner is not None else pod.metadata.labels.get(LABEL_CREATED_BY, "")


def _state_of(claim: Claim) -> str:
    name = claim.metadata.labels.get(LABEL_PERSISTENT_STATE, "")
    return f"{claim.metadata.namespace}/{name}" if name else ""


def grouped(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Items by a key."""
    found: dict[str, list[T]] = {}
    for one in items:
        found.setdefault(key(one), []).append(one)
    return found


def _unreadable(cluster: Cluster, scope: Scope) -> Iterator[Finding]:
    for one in cluster.unreadable:
        mine = one.kind == VMI.api.kind and (not scope.vm or one.id == scope.vm)
        if mine or (one.kind != VMI.api.kind and not scope.vm):
            namespace, _, name = one.id.rpartition("/")
            yield Finding(
                Severity.RISK, Subject(one.kind, name, namespace), "Unreadable",
                f"it cannot be judged: {one.reason}", "",
            )  # fmt: skip


def _host_policy(cluster: Cluster) -> HostPolicy:
    network = cluster.network
    nodes: dict[str, Address] = {}
    for name, node in cluster.nodes.items():
        address = node.internal_ip
        if address is not None:
            nodes[name] = address
    return HostPolicy(
        ends=network.host_endpoints,
        policies=network.policies,
        tiers=network.tiers,
        profiles=network.profiles,
        sets=network.sets,
        felix=network.felix,
        nodes=nodes,
    )
