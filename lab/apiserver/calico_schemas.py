"""The schema of two Calico kinds, as their CRDs have it: types, enums, limits, stored defaults.

The other kinds take any field. Source: Calico's API reference, "IP pool" and "IPAM configuration".
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
_FIXED = [{"rule": "self == oldSelf", "message": "Value is immutable"}]


def _string(text: str, *values: str, **more: Any) -> Schema:
    found: Schema = {"type": "string", "description": text, **more}
    return found | {"enum": list(values)} if values else found


def _boolean(text: str, **more: Any) -> Schema:
    return {"type": "boolean", "description": text, **more}


def _integer(text: str, **more: Any) -> Schema:
    return {"type": "integer", "description": text, **more}


IPAM_CONFIGURATION: Schema = {
    "type": "object",
    "description": "How addresses are handed out, for the whole cluster.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "description": "The settings; what is absent has its default.",
            "properties": {
                "strictAffinity": _boolean(
                    "Whether a node may use only addresses of its own blocks.", default=False
                ),
                "autoAllocateBlocks": _boolean(
                    "Whether a node takes a new block when its own are full.", default=True
                ),
                "maxBlocksPerHost": _integer(
                    "Most blocks a node may have; 0 means 20 of each family.",
                    minimum=0,
                    maximum=1_000_000,
                    default=0,
                ),
                "kubeVirtVMAddressPersistence": _string(
                    "Whether a VM keeps its addresses when it moves or boots again.",
                    "Enabled",
                    "Disabled",
                ),
                "ipCooldownSeconds": _integer(
                    "How long a freed address rests before it is used again, in seconds.",
                    minimum=0,
                    maximum=1200,
                ),
            },
        }
    },
}

_ENCAPSULATIONS = ("Never", "Always", "CrossSubnet")

IP_POOL: Schema = {
    "type": "object",
    "description": "A range of addresses for workloads.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "description": "The range and how its addresses are used.",
            "required": ["cidr"],
            "properties": {
                "cidr": _string("The range.", **{"x-kubernetes-validations": _FIXED}),
                "vxlanMode": _string("Use of VXLAN.", *_ENCAPSULATIONS, default="Never"),
                "ipipMode": _string("Use of IP in IP.", *_ENCAPSULATIONS, default="Never"),
                "natOutgoing": _boolean("Whether traffic that leaves the pools is masqueraded."),
                "disabled": _boolean("Whether no new address is taken from it."),
                "disableBGPExport": _boolean("Whether BGP keeps quiet about it."),
                "blockSize": _integer(
                    "Prefix length of a node's blocks: 20 to 32, or 116 to 128 for IPv6.",
                    minimum=20,
                    maximum=128,
                    **{"x-kubernetes-validations": _FIXED},
                ),
                "nodeSelector": _string("Nodes that may use it.", default="all()", maxLength=1024),
                "namespaceSelector": _string("Namespaces that may use it.", maxLength=1024),
                "allowedUses": {
                    "type": "array",
                    "description": "What its addresses are for.",
                    "maxItems": 10,
                    "default": ["Workload", "Tunnel"],
                    "items": _string("One use.", "Workload", "Tunnel", "LoadBalancer"),
                },
                "assignmentMode": _string(
                    "Whether only those who ask get an address from it.",
                    "Automatic",
                    "Manual",
                    default="Automatic",
                ),
            },
        },
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
