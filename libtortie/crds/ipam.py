"""The schemas of IPAM's own kinds, as Calico's CRDs have them in each of its two groups. Data.

The groups differ in one type (`deleted` of an affinity is a text in the older one) and in what is
required and defaulted.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _STRING}


def _object(
    text: str, required: tuple[str, ...], spec: dict[str, Schema], *, strict: bool
) -> Schema:
    """The schema of a kind; `strict`: its spec has to be there."""
    inner: Schema = {"type": "object", "description": text, "properties": spec}
    if required:
        inner["required"] = list(required)
    outer: Schema = {"type": "object", "description": text, "properties": {"spec": inner}}
    return outer | {"required": ["spec"]} if strict else outer


_ATTRIBUTE: Schema = {
    "type": "object",
    "properties": {
        "handle_id": {**_STRING, "nullable": True},
        "secondary": {**_TEXTS, "nullable": True},
        "alternateOwnerAttrs": {**_TEXTS, "nullable": True},
        "releasedAt": {**_STRING, "nullable": True},
    },
}


def _block(*, strict: bool) -> Schema:
    affinity = {**_STRING, "pattern": r"^(host|virtual):[a-zA-Z0-9.\-_]+$"} if strict else _STRING
    return _object(
        "A range of addresses, who has it, and who has each of them.",
        ("allocations", "attributes", "cidr", "deleted", "strictAffinity", "unallocated"),
        {
            "cidr": _STRING,
            "affinity": affinity,
            "affinityClaimTime": _STRING,
            "allocations": {"type": "array", "items": {**_INTEGER, "nullable": True}},
            "unallocated": {"type": "array", "items": _INTEGER},
            "attributes": {"type": "array", "items": _ATTRIBUTE},
            "sequenceNumber": {**_INTEGER, "default": 0},
            "sequenceNumberForAllocation": {"type": "object", "additionalProperties": _INTEGER},
            "deleted": _BOOLEAN,
            "strictAffinity": _BOOLEAN,
        },
        strict=strict,
    )


def _handle(*, strict: bool) -> Schema:
    return _object(
        "How many addresses an owner has in each block.",
        ("block", "handleID"),
        {
            "handleID": _STRING,
            "block": {"type": "object", "additionalProperties": _INTEGER},
            "deleted": _BOOLEAN,
        },
        strict=strict,
    )


_AFFINITY = "A node's claim on a block."
_CLAIM: dict[str, Schema] = {"node": _STRING, "type": _STRING, "cidr": _STRING}

IPAM_V1: dict[str, Schema] = {
    "IPAMBlock": _block(strict=False),
    "IPAMHandle": _handle(strict=False),
    "BlockAffinity": _object(
        _AFFINITY,
        ("cidr", "deleted", "node", "state"),
        {**_CLAIM, "state": _STRING, "deleted": _STRING},
        strict=False,
    ),
    "IPAMConfig": _object(
        "How addresses are handed out, for the whole cluster.",
        ("autoAllocateBlocks", "strictAffinity"),
        {
            "strictAffinity": _BOOLEAN,
            "autoAllocateBlocks": _BOOLEAN,
            "maxBlocksPerHost": {**_INTEGER, "minimum": 0, "maximum": 2147483647},
            "kubeVirtVMAddressPersistence": {**_STRING, "enum": ["Enabled", "Disabled"]},
            "ipCooldownSeconds": {**_INTEGER, "minimum": 0, "maximum": 1200},
        },
        strict=False,
    ),
}
"""By kind, in `crd.projectcalico.org/v1`."""

IPAM_V3: dict[str, Schema] = {
    "IPAMBlock": _block(strict=True),
    "IPAMHandle": _handle(strict=True),
    "BlockAffinity": _object(
        _AFFINITY,
        ("cidr", "node", "state"),
        {
            **_CLAIM,
            "state": {**_STRING, "enum": ["", "confirmed", "pending", "pendingDeletion"]},
            "deleted": {**_BOOLEAN, "default": False},
        },
        strict=True,
    ),
}
"""By kind, in `projectcalico.org/v3`; the configuration is a resource there."""
