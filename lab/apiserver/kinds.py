"""Which kinds are served, as data: the one table that routing, discovery and rules read."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

CALICO_V1 = "crd.projectcalico.org"
CALICO_V3 = "projectcalico.org"
KUBEVIRT = "kubevirt.io"


@dataclass(frozen=True, slots=True)
class Kind:
    """One served kind.

    `on_create` says what becomes of `status` in a create: a mapping replaces it, "keep" and "drop"
    do so. `builtin` kinds take strategic merge patches and unconditional updates, and their
    status subresource also changes labels and annotations; custom resources do none of these.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    builtin: bool = False
    on_create: Literal["keep", "drop"] | tuple[tuple[str, Any], ...] = "keep"
    short_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """`pods`, `ippools.projectcalico.org`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """`v1`, `kubevirt.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        """`PodList`."""
        return f"{self.kind}List"

    @property
    def selectable(self) -> tuple[str, ...]:
        """Fields a field selector may name."""
        return ("metadata.name", "metadata.namespace", *self.fields)


def _core(plural: str, kind: str, **options: Any) -> Kind:
    return Kind("", "v1", plural, kind, builtin=True, **options)


def _kubevirt(plural: str, kind: str, short: tuple[str, ...]) -> Kind:
    return Kind(KUBEVIRT, "v1", plural, kind, status=True, on_create="drop", short_names=short)


_CALICO_CLUSTER = (
    "IPReservation",
    "BGPConfiguration",
    "BGPPeer",
    "BGPFilter",
    "FelixConfiguration",
    "ClusterInformation",
    "HostEndpoint",
    "GlobalNetworkPolicy",
    "GlobalNetworkSet",
    "StagedGlobalNetworkPolicy",
    "IPAMBlock",
    "IPAMHandle",
)
_CALICO_STATUS = ("IPPool", "Tier", "KubeControllersConfiguration", "CalicoNodeStatus")
_CALICO_NAMESPACED = (
    "NetworkPolicy",
    "NetworkSet",
    "StagedNetworkPolicy",
    "StagedKubernetesNetworkPolicy",
)
_CALICO_PLURALS = {
    "GlobalNetworkPolicy": "globalnetworkpolicies",
    "StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies",
    "NetworkPolicy": "networkpolicies",
    "StagedNetworkPolicy": "stagednetworkpolicies",
    "StagedKubernetesNetworkPolicy": "stagedkubernetesnetworkpolicies",
    "CalicoNodeStatus": "caliconodestatuses",
}


def _calico(group: str, version: str) -> Iterable[Kind]:
    def one(kind: str, **options: Any) -> Kind:
        plural = _CALICO_PLURALS.get(kind, f"{kind.lower()}s")
        tiered = ("spec.tier",) if group == CALICO_V3 and kind.endswith("Policy") else ()
        return Kind(group, version, plural, kind, fields=tiered, **options)

    yield from (one(kind, namespaced=False) for kind in _CALICO_CLUSTER)
    yield from (
        one(kind, namespaced=False, status=True, on_create="drop") for kind in _CALICO_STATUS
    )
    yield from (one(kind) for kind in _CALICO_NAMESPACED)
    yield Kind(group, version, "blockaffinities", "BlockAffinity", namespaced=False)
    config = "IPAMConfig" if group == CALICO_V1 else "IPAMConfiguration"
    yield Kind(group, version, f"{config.lower()}s", config, namespaced=False)


KINDS: tuple[Kind, ...] = (
    _core(
        "pods",
        "Pod",
        status=True,
        on_create=(("phase", "Pending"),),
        short_names=("po",),
        fields=("spec.nodeName", "status.phase", "spec.serviceAccountName"),
    ),
    _core("nodes", "Node", namespaced=False, status=True, short_names=("no",)),
    _core(
        "namespaces",
        "Namespace",
        namespaced=False,
        status=True,
        on_create=(("phase", "Active"),),
        short_names=("ns",),
        fields=("status.phase",),
    ),
    _core("serviceaccounts", "ServiceAccount", short_names=("sa",)),
    _core("configmaps", "ConfigMap", short_names=("cm",)),
    _core(
        "events",
        "Event",
        short_names=("ev",),
        fields=(
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ),
    ),
    Kind(
        "networking.k8s.io",
        "v1",
        "networkpolicies",
        "NetworkPolicy",
        builtin=True,
        short_names=("netpol",),
    ),
    _kubevirt("virtualmachines", "VirtualMachine", ("vm", "vms")),
    _kubevirt("virtualmachineinstances", "VirtualMachineInstance", ("vmi", "vmis")),
    _kubevirt(
        "virtualmachineinstancemigrations", "VirtualMachineInstanceMigration", ("vmim", "vmims")
    ),
    *_calico(CALICO_V1, "v1"),
    *_calico(CALICO_V3, "v3"),
)


@dataclass(slots=True)
class Catalogue:
    """The kinds served now. Groups can be withdrawn and offered again, as CRDs are installed."""

    kinds: tuple[Kind, ...] = KINDS
    _hidden: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hide(self, *groups: str) -> None:
        """Stop serving groups: their resources answer 404."""
        with self._lock:
            self._hidden.update(groups)

    def offer(self, *groups: str) -> None:
        """Serve groups again."""
        with self._lock:
            self._hidden.difference_update(groups)

    def served(self) -> tuple[Kind, ...]:
        """Kinds of every group that is not hidden."""
        with self._lock:
            return tuple(kind for kind in self.kinds if kind.group not in self._hidden)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """One served kind by its place in a URL."""
        for kind in self.served():
            if (kind.group, kind.version, kind.plural) == (group, version, plural):
                return kind
        return None
