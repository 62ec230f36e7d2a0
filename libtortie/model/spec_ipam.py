"""What pools, reservations, tiers and cluster-wide settings may say when they are written. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Any

from libtortie.model.fields import DEFAULT_BLOCK_SIZES, block_size_of
from libtortie.model.spec_shape import (
    Check,
    flag,
    list_of,
    network,
    number,
    one_of,
    real,
    selector,
    struct,
    text,
    valued,
)

COOLDOWN_LIMIT = 1200
"""Seconds."""
MAX_BLOCKS_LIMIT = 1_000_000
_LINK_LOCAL = (ip_network("169.254.0.0/16"), ip_network("fe80::/10"))
_ENCAPSULATION = one_of("Never", "Always", "CrossSubnet")
_USES = ["Workload", "Tunnel"]


@valued()
def _reserved(value: Any) -> Any:
    """A network, or one address alone."""
    from libtortie.model.fields import reserved_of

    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a network or address")
    return str(reserved_of(value))


def _consistent_pool(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the fields of a pool must be to each other."""
    cidr = ip_network(spec["cidr"])
    try:
        block_size_of(spec.get("blockSize") or 0, spec["cidr"])
    except ValueError as error:
        yield "blockSize", str(error)
    if any(cidr.version == no.version and cidr.overlaps(no) for no in _LINK_LOCAL):
        yield "cidr", f"{cidr} overlaps the link-local addresses"
    ipip, vxlan = spec.get("ipipMode", "Never"), spec.get("vxlanMode", "Never")
    if ipip != "Never" and vxlan != "Never":
        yield "vxlanMode", "excludes ipipMode: one of them must be Never"
    if ipip != "Never" and cidr.version == 6:
        yield "ipipMode", "IPIP is for IPv4 only"
    yield from _consistent_uses(spec)


def _consistent_uses(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    uses = spec.get("allowedUses") or _USES
    if spec.get("namespaceSelector") and "Tunnel" in uses:
        yield "namespaceSelector", "not with allowedUses Tunnel; give allowedUses: [Workload]"
    if "LoadBalancer" not in uses:
        return
    if len(uses) > 1:
        yield "allowedUses", "LoadBalancer excludes other uses"
    if spec.get("nodeSelector", "all()") != "all()":
        yield "nodeSelector", "a pool of LoadBalancer addresses needs all()"
    for field in ("ipipMode", "vxlanMode"):
        if spec.get(field, "Never") != "Never":
            yield field, "a pool of LoadBalancer addresses has no encapsulation"
    if spec.get("disableBGPExport"):
        yield "disableBGPExport", "not for a pool of LoadBalancer addresses"


_POOL = struct(
    {
        "cidr": network,
        "vxlanMode": _ENCAPSULATION,
        "ipipMode": _ENCAPSULATION,
        "natOutgoing": flag,
        "disabled": flag,
        "disableBGPExport": flag,
        "blockSize": number(0, 128),
        "nodeSelector": selector,
        "namespaceSelector": selector,
        "allowedUses": list_of(one_of("Workload", "Tunnel", "LoadBalancer"), most=10),
        "assignmentMode": one_of("Automatic", "Manual"),
    },
    required=["cidr"],
    defaults={
        "vxlanMode": "Never",
        "ipipMode": "Never",
        "nodeSelector": "all()",
        "allowedUses": _USES,
        "assignmentMode": "Automatic",
    },
    rules=[_consistent_pool],
)


def _pool_spec(value: Any, path: str, problems: list[str]) -> Any:
    """A pool's; the default block size depends on its family."""
    found = _POOL(value, path, problems)
    if isinstance(found, dict) and not found.get("blockSize") and not problems:
        found["blockSize"] = DEFAULT_BLOCK_SIZES[ip_network(found["cidr"]).version]
    return found


POOL = Check(_pool_spec, _POOL.schema)


RESERVATION = struct({"reservedCIDRs": list_of(_reserved)})


def _consistent_ipam(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    strict = spec.get("strictAffinity", False)
    if not strict and spec.get("autoAllocateBlocks") is False:
        yield "autoAllocateBlocks", "cannot be false while strictAffinity is not true"
    if spec.get("maxBlocksPerHost") and not strict:
        yield "maxBlocksPerHost", "needs strictAffinity"


IPAM_CONFIGURATION = struct(
    {
        "strictAffinity": flag,
        "autoAllocateBlocks": flag,
        "maxBlocksPerHost": number(0, MAX_BLOCKS_LIMIT),
        "kubeVirtVMAddressPersistence": one_of("Enabled", "Disabled"),
        "ipCooldownSeconds": number(0, COOLDOWN_LIMIT),
    },
    defaults={"strictAffinity": False, "autoAllocateBlocks": True, "maxBlocksPerHost": 0},
    rules=[_consistent_ipam],
)
CLUSTER_INFORMATION = struct(
    {
        "clusterGUID": text(),
        "clusterType": text(),
        "calicoVersion": text(),
        "variant": text(),
        "datastoreReady": flag,
    }
)
TIER = struct({"order": real, "defaultAction": one_of("Deny", "Pass")})
