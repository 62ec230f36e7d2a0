"""The roles and bindings every cluster with RBAC begins with, as far as they matter here. Data."""

from __future__ import annotations

from typing import Any

from lab.apiserver.kinds import CALICO_V3, KUBEVIRT

Json = dict[str, Any]
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_BOOTSTRAP = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]
_OPEN = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_NAMESPACED = {
    "": [
        "configmaps",
        "events",
        "persistentvolumeclaims",
        "pods",
        "pods/status",
        "serviceaccounts",
        "services",
    ],
    "apps": ["daemonsets", "deployments", "replicasets", "statefulsets"],
    "networking.k8s.io": ["networkpolicies"],
    KUBEVIRT: [
        "virtualmachineinstancemigrations",
        "virtualmachineinstances",
        "virtualmachines",
    ],
    CALICO_V3: ["networkpolicies", "networksets"],
}


def _rule(verbs: list[str], group: str, resources: list[str]) -> Json:
    return {"verbs": verbs, "apiGroups": [group], "resources": resources}


def _role(name: str, *rules: Json) -> Json:
    return {"metadata": {"name": name, "labels": _BOOTSTRAP}, "rules": list(rules)}


def _binding(name: str, role: str, *groups: str) -> Json:
    api = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": name, "labels": _BOOTSTRAP},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": group} for group in groups],
    }


_VIEW = [
    *(_rule(_READ, group, resources) for group, resources in _NAMESPACED.items()),
    _rule(_READ, "", ["namespaces"]),
]
_EDIT = [
    *_VIEW,
    *(_rule(_WRITE, group, resources) for group, resources in _NAMESPACED.items()),
    _rule([*_READ, *_WRITE], "", ["secrets"]),
    _rule(["create"], "", ["pods/eviction"]),
    _rule([*_READ, *_WRITE], "coordination.k8s.io", ["leases"]),
]
_ADMIN = [
    *_EDIT,
    _rule([*_READ, *_WRITE], "rbac.authorization.k8s.io", ["roles", "rolebindings"]),
]
_SELF = [
    _rule(
        ["create"],
        "authorization.k8s.io",
        ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    ),
    _rule(["create"], "authentication.k8s.io", ["selfsubjectreviews"]),
]

CLUSTER_ROLES: tuple[Json, ...] = (
    _role(
        "cluster-admin",
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ),
    _role("admin", *_ADMIN),
    _role("edit", *_EDIT),
    _role("view", *_VIEW),
    _role("system:basic-user", *_SELF),
    _role("system:discovery", {"verbs": ["get"], "nonResourceURLs": [*_OPEN, *_DISCOVERY]}),
    _role("system:public-info-viewer", {"verbs": ["get"], "nonResourceURLs": _OPEN}),
)
CLUSTER_ROLE_BINDINGS: tuple[Json, ...] = (
    _binding("cluster-admin", "cluster-admin", "system:masters"),
    _binding("system:basic-user", "system:basic-user", "system:authenticated"),
    _binding("system:discovery", "system:discovery", "system:authenticated"),
    _binding(
        "system:public-info-viewer",
        "system:public-info-viewer",
        "system:authenticated",
        "system:unauthenticated",
    ),
)
