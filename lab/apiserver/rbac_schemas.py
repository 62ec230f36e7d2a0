"""The shape of roles and bindings, so that what is stored can be judged by. Data."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def _strings(text: str) -> Schema:
    return {"type": "array", "description": text, "items": {"type": "string"}}


_RULES: Schema = {
    "type": "array",
    "description": "What it allows.",
    "items": {
        "type": "object",
        "required": ["verbs"],
        "properties": {
            "verbs": _strings("What may be done; * is everything."),
            "apiGroups": _strings("Groups of the resources; the core group is empty."),
            "resources": _strings("Plurals, and subresources as pods/status."),
            "resourceNames": _strings("Names it is limited to."),
            "nonResourceURLs": _strings("Paths that are no resources."),
        },
    },
}
_SELECTOR: Schema = {
    "type": "object",
    "properties": {
        "matchLabels": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "matchExpressions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["key", "operator"],
                "properties": {
                    "key": {"type": "string"},
                    "operator": {
                        "type": "string",
                        "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                    },
                    "values": _strings("What it is compared with."),
                },
            },
        },
    },
}

ROLE: Schema = {
    "type": "object",
    "description": "A set of things that may be done.",
    "properties": {"rules": _RULES},
}

CLUSTER_ROLE: Schema = {
    "type": "object",
    "description": "A set of things that may be done, in any namespace.",
    "properties": {
        "rules": _RULES,
        "aggregationRule": {
            "type": "object",
            "description": "Roles whose rules it has, too.",
            "properties": {"clusterRoleSelectors": {"type": "array", "items": _SELECTOR}},
        },
    },
}

BINDING: Schema = {
    "type": "object",
    "description": "Who has a role.",
    "required": ["roleRef"],
    "properties": {
        "roleRef": {
            "type": "object",
            "description": "The role.",
            "required": ["kind", "name"],
            "properties": {
                "apiGroup": {"type": "string", "default": "rbac.authorization.k8s.io"},
                "kind": {"type": "string", "enum": ["ClusterRole", "Role"]},
                "name": {"type": "string"},
            },
        },
        "subjects": {
            "type": "array",
            "description": "Users, groups and service accounts.",
            "items": {
                "type": "object",
                "required": ["kind", "name"],
                "properties": {
                    "apiGroup": {"type": "string"},
                    "kind": {"type": "string", "enum": ["User", "Group", "ServiceAccount"]},
                    "name": {"type": "string"},
                    "namespace": {"type": "string"},
                },
            },
        },
    },
}
