"""Which kinds are served, as data: the one table that routing, discovery and rules read."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.apiserver.calico_schemas import IP_POOL, IPAM_CONFIGURATION
from lab.apiserver.ipam_schemas import IPAM_V1, IPAM_V3
from lab.apiserver.kind import Kind, Subresource
from lab.apiserver.rbac_schemas import BINDING, CLUSTER_ROLE, ROLE

__all__ = ["CALICO_V1", "CALICO_V3", "KINDS", "KUBEVIRT", "Catalogue", "Kind"]

CALICO_V1 = "crd.projectcalico.org"
CALICO_V3 = "projectcalico.org"
KUBEVIRT = "kubevirt.io"
RBAC = "rbac.authorization.k8s.io"
AUTHORIZATION = "authorization.k8s.io"
ALL = ("all",)
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    CALICO_V3: {"IPPool": IP_POOL, "IPAMConfiguration": IPAM_CONFIGURATION, **IPAM_V3},
    CALICO_V1: IPAM_V1,
}


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
    "BlockAffinity",
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
    "BlockAffinity": "blockaffinities",
}


def _calico(group: str, version: str) -> Iterable[Kind]:
    def one(kind: str, **options: Any) -> Kind:
        plural = _CALICO_PLURALS.get(kind, f"{kind.lower()}s")
        tiered = ("spec.tier",) if group == CALICO_V3 and kind.endswith("Policy") else ()
        schema = _SCHEMAS[group].get(kind)
        return Kind(group, version, plural, kind, fields=tiered, schema=schema, **options)

    yield from (one(kind, namespaced=False) for kind in _CALICO_CLUSTER)
    yield from (
        one(kind, namespaced=False, status=True, on_create="drop") for kind in _CALICO_STATUS
    )
    yield from (one(kind) for kind in _CALICO_NAMESPACED)
    config = "IPAMConfig" if group == CALICO_V1 else "IPAMConfiguration"
    only = "" if group == CALICO_V1 else "default"
    yield one(config, namespaced=False, only_name=only)


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
    *_calico(CALICO_V3, "v3"),  # before the older group: kubectl takes the first that has a name
    *_calico(CALICO_V1, "v1"),
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
