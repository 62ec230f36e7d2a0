"""Which kinds are served, as data: the one table that routing, discovery and rules read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.apiserver import crds
from lab.apiserver.kind import Kind, Subresource
from lab.apiserver.rbac_schemas import BINDING, CLUSTER_ROLE, ROLE

__all__ = ["CALICO_V1", "CALICO_V3", "KINDS", "KUBEVIRT", "Catalogue", "Kind"]

CALICO_V1 = "crd.projectcalico.org"
CALICO_V3 = "projectcalico.org"
KUBEVIRT = "kubevirt.io"
RBAC = "rbac.authorization.k8s.io"
AUTHORIZATION = "authorization.k8s.io"
ALL = ("all",)
_ESTABLISHED = tuple(
    {"type": one, "status": "True", "reason": "Kept"} for one in ("NamesAccepted", "Established")
)
"""Of every CustomResourceDefinition; `definitions` says what one means."""


def _core(plural: str, kind: str, **options: Any) -> Kind:
    return Kind("", "v1", plural, kind, builtin=True, **options)


def _workload(plural: str, kind: str, short: str) -> Kind:
    return Kind(
        "apps", "v1", plural, kind, builtin=True, status=True, short_names=(short,), categories=ALL
    )


def _rbac(plural: str, kind: str, schema: Mapping[str, Any], **options: Any) -> Kind:
    return Kind(RBAC, "v1", plural, kind, builtin=True, schema=schema, **options)


def _question(group: str, plural: str, kind: str) -> Kind:
    return Kind(group, "v1", plural, kind, namespaced=False, builtin=True, virtual=True)


def _admin_policy(
    plural: str, kind: str, short: str, only_name: str = "", version: str = "v1alpha1"
) -> Kind:
    return Kind(
        "policy.networking.k8s.io",
        version,
        plural,
        kind,
        namespaced=False,
        status=True,
        short_names=(short,),
        only_name=only_name,
    )


def _kubevirt(plural: str, kind: str, short: tuple[str, ...]) -> Kind:
    return Kind(
        KUBEVIRT,
        "v1",
        plural,
        kind,
        status=True,
        on_create="drop",
        short_names=short,
        categories=ALL,
    )


KINDS: tuple[Kind, ...] = (
    _core(
        "pods",
        "Pod",
        status=True,
        on_create=(("phase", "Pending"),),
        short_names=("po",),
        categories=ALL,
        fields=("spec.nodeName", "status.phase", "status.podIP", "spec.serviceAccountName"),
        immutable=("spec.nodeName",),
        subresources=(
            Subresource("binding", "Binding", "", "v1"),
            Subresource("eviction", "Eviction", "policy", "v1"),
        ),
    ),
    _core(
        "nodes",
        "Node",
        namespaced=False,
        status=True,
        short_names=("no",),
        fields=("spec.unschedulable",),
    ),
    _core(
        "namespaces",
        "Namespace",
        namespaced=False,
        status=True,
        on_create=(("phase", "Active"),),
        short_names=("ns",),
        fields=("status.phase",),
    ),
    _core("services", "Service", status=True, short_names=("svc",), categories=ALL),
    _core("serviceaccounts", "ServiceAccount", short_names=("sa",)),
    _core("configmaps", "ConfigMap", short_names=("cm",)),
    _core("secrets", "Secret", fields=("type",), immutable=("type",)),
    _core("persistentvolumeclaims", "PersistentVolumeClaim", status=True, short_names=("pvc",)),
    _core(
        "events",
        "Event",
        short_names=("ev",),
        fields=(
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.resourceVersion",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ),
    ),
    _workload("deployments", "Deployment", "deploy"),
    _workload("replicasets", "ReplicaSet", "rs"),
    _workload("statefulsets", "StatefulSet", "sts"),
    _workload("daemonsets", "DaemonSet", "ds"),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", builtin=True),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        builtin=True,
        status=True,
        on_create=(("conditions", _ESTABLISHED),),
        short_names=("crd", "crds"),
    ),
    Kind(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        builtin=True,
        status=True,
        short_names=("pdb",),
    ),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", builtin=True),
    Kind(
        "networking.k8s.io",
        "v1",
        "networkpolicies",
        "NetworkPolicy",
        builtin=True,
        short_names=("netpol",),
    ),
    _admin_policy("adminnetworkpolicies", "AdminNetworkPolicy", "anp"),
    _admin_policy("baselineadminnetworkpolicies", "BaselineAdminNetworkPolicy", "banp", "default"),
    _admin_policy("clusternetworkpolicies", "ClusterNetworkPolicy", "cnp", version="v1alpha2"),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", builtin=True),
    _rbac("clusterroles", "ClusterRole", CLUSTER_ROLE, namespaced=False),
    _rbac(
        "clusterrolebindings",
        "ClusterRoleBinding",
        BINDING,
        namespaced=False,
        immutable=("roleRef",),
    ),
    _rbac("roles", "Role", ROLE),
    _rbac("rolebindings", "RoleBinding", BINDING, immutable=("roleRef",)),
    _question("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    _question(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _question(AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _question(AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview"),
    _kubevirt("virtualmachines", "VirtualMachine", ("vm", "vms")),
    _kubevirt("virtualmachineinstances", "VirtualMachineInstance", ("vmi", "vmis")),
    _kubevirt(
        "virtualmachineinstancemigrations", "VirtualMachineInstanceMigration", ("vmim", "vmims")
    ),
    *crds.kinds("own"),
    *crds.kinds("v3"),  # before the older group: kubectl takes the first that has a name
    *crds.kinds("v1"),
)


@dataclass(slots=True)
class Catalogue:
    """The kinds served now. Groups can be withdrawn and offered again, as CRDs are installed; a
    kind of one that is withdrawn is served all the same in the versions that are defined."""

    kinds: tuple[Kind, ...] = KINDS
    _hidden: set[str] = field(default_factory=set)
    _defined: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hide(self, *groups: str) -> None:
        """Stop serving groups: their resources answer 404."""
        with self._lock:
            self._hidden.update(groups)

    def offer(self, *groups: str) -> None:
        """Serve groups again."""
        with self._lock:
            self._hidden.difference_update(groups)

    def withholds(self, group: str) -> bool:
        """Whether a group is hidden, so that its kinds are served by definition only."""
        with self._lock:
            return group in self._hidden

    def define(self, group: str, plural: str, versions: tuple[str, ...]) -> None:
        """Versions in which a kind is served while its group is hidden; none: not at all."""
        with self._lock:
            self._defined[group, plural] = versions

    def served(self) -> tuple[Kind, ...]:
        """Kinds of every group that is not hidden, and those defined."""
        with self._lock:
            return tuple(
                replace(kind, version=version)
                for kind in self.kinds
                for version in (
                    self._defined.get((kind.group, kind.plural), ())
                    if kind.group in self._hidden
                    else (kind.version,)
                )
            )

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """One served kind by its place in a URL."""
        for kind in self.served():
            if (kind.group, kind.version, kind.plural) == (group, version, plural):
                return kind
        return None
