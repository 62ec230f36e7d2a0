"""What a preflight looks at: the cluster's objects at one time, as values.

A finding is only made of what was seen. What could not be is told: `holes` are kinds without which
VMs cannot be judged, `gaps` all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from libtortie.kube.migrations import Migration
from libtortie.model.ipam import Persistence
from libtortie.model.resources import (
    BGPConfiguration,
    BGPPeer,
    FelixConfiguration,
    IPPool,
    Resource,
)
from libtortie.model.resources import (
    Node as CalicoNode,
)
from tortiectl.kubevirt.objects import VM, VMI, Claim, Node, PersistentVolume, Pod
from tortiectl.kubevirt.reading import Unreadable
from tortiectl.kubevirt.settings import Settings
from tortiectl.kubevirt.spec import LabelSelector

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that migrations depend on, or one that cannot be read (`problem`)."""

    place: str
    not_before: datetime = EPOCH
    not_after: datetime = EPOCH
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a role, and who has it: `ServiceAccount kube-system/tortie-node`."""

    subject: str
    groups: frozenset[str]
    resources: frozenset[str]
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget; without a selector it covers no pod."""

    namespace: str
    name: str
    selector: LabelSelector | None
    min_available: Any = None
    max_unavailable: Any = None


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota of all pods of a namespace: what is allowed and what is used, by name."""

    namespace: str
    name: str
    hard: Mapping[str, str]
    used: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Network:
    """Calico's configuration. `installation` is the operator's `spec.calicoNetwork`, None where no
    operator owns it; `persistence` None where it could not be read."""

    pools: Sequence[IPPool] = ()
    felix: Mapping[str, FelixConfiguration] = field(default_factory=dict)
    nodes: Mapping[str, CalicoNode] = field(default_factory=dict)
    bgp: BGPConfiguration | None = None
    peers: Sequence[BGPPeer] = ()
    filters: Mapping[str, Resource] = field(default_factory=dict)
    host_endpoints: Sequence[Resource] = ()
    policies: Sequence[Resource] = ()
    tiers: Sequence[Resource] = ()
    profiles: Sequence[Resource] = ()
    sets: Sequence[Resource] = ()
    installation: Mapping[str, Any] | None = None
    persistence: Persistence | None = None
    persistence_place: str = ""
    sessions_down: Mapping[str, int] = field(default_factory=dict)
    plugin_timeouts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All of it. VMs, VMIs and claims are by `namespace/name`; `claims` None: not to be had.

    `handlers` are virt-handler's pods, read where migrations have a network of their own.
    """

    vmis: Mapping[str, VMI] = field(default_factory=dict)
    vms: Mapping[str, VM] = field(default_factory=dict)
    migrations: Sequence[Migration] = ()
    launchers: Sequence[Pod] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    claims: Mapping[str, Claim] | None = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    network: Network = field(default_factory=Network)
    certificates: Sequence[Certificate] = ()
    renewals: Mapping[str, datetime] = field(default_factory=dict)
    rules: Sequence[Rule] | None = None
    budgets: Sequence[Budget] = ()
    quotas: Sequence[Quota] = ()
    handlers: Sequence[Pod] = ()
    missing_kinds: Sequence[str] = ()
    may_migrate: bool | None = None
    unreadable: Sequence[Unreadable] = ()
    holes: Sequence[str] = ()
    gaps: Sequence[str] = ()
    now: datetime = EPOCH
