"""IPAM's records as the `spec` of Calico's CRDs, both ways. Pure.

What a record means is `ipam_codec`'s, which knows etcd's spelling; here is only where a CRD's
differs: names of fields, what is required, how `deleted` is written, keys that are fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.datastore.crd_names import Group, Json
from libtortie.datastore.ipam_codec import (
    affinity_from_wire,
    affinity_to_wire,
    block_from_wire,
    block_to_wire,
    config_from_wire,
    config_to_wire,
    handle_from_wire,
    handle_to_wire,
)
from libtortie.errors import Malformed
from libtortie.model.ipam import Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, IPNetwork
from libtortie.model.plain_ip import plain_network

_CLAIM_TIME, _ETCDS_CLAIM_TIME = "affinityClaimTime", "affinity_claim_time"
_TYPES = ("host", "virtual")
_CONFIG = {"strictAffinity": "strict_affinity", "autoAllocateBlocks": "auto_allocate_blocks"}
_SETTINGS = ("maxBlocksPerHost", "kubeVirtVMAddressPersistence", "ipCooldownSeconds")


def block_to_spec(block: Block) -> Json:
    """A block. `strictAffinity` is required and means nothing."""
    wire = block_to_wire(block)
    if wire["affinity"] is None:
        del wire["affinity"]
    wire["attributes"] = wire["attributes"] or []
    wire["strictAffinity"] = False
    return {_CLAIM_TIME if key == _ETCDS_CLAIM_TIME else key: wire[key] for key in wire}


def block_from_spec(where: str, key: BlockKey, spec: Mapping[str, Any]) -> Block:
    """The block of a key."""
    wire = {name: value for name, value in spec.items() if name != "strictAffinity"}
    wire[_ETCDS_CLAIM_TIME] = wire.pop(_CLAIM_TIME, None)
    try:
        return block_from_wire(where, key.cidr, wire)
    except Malformed as error:
        raise Malformed(str(error).replace(_ETCDS_CLAIM_TIME, _CLAIM_TIME)) from error


def affinity_to_spec(group: Group, key: AffinityKey, affinity: BlockAffinity) -> Json:
    """An affinity; `deleted` is a string in the v1 group."""
    wire = affinity_to_wire(affinity)
    deleted = wire.pop("deleted")
    return {
        "state": wire.pop("state"),
        "node": key.node,
        "type": key.type,
        "cidr": str(key.cidr),
        "deleted": str(deleted).lower() if group is Group.V1 else deleted,
        **wire,
    }


def affinity_key(where: str, spec: Mapping[str, Any]) -> AffinityKey:
    """Whose claim on which block a spec is; an empty type is a host's."""
    node = _text(where, "node", spec)
    kind = spec.get("type") or _TYPES[0]
    if kind not in _TYPES:
        raise Malformed(f"{where}: type: {kind!r} is none of {', '.join(_TYPES)}")
    return AffinityKey(node, _network(where, spec), kind)


def affinity_from_spec(where: str, spec: Mapping[str, Any]) -> BlockAffinity:
    """An affinity of either group."""
    names = ("node", "type", "cidr", "deleted")
    wire = {name: value for name, value in spec.items() if name not in names}
    return affinity_from_wire(where, {**wire, "deleted": is_deleted(spec)})


def handle_to_spec(key: HandleKey, handle: Handle) -> Json:
    """A handle, with its id as it is."""
    return {"handleID": key.handle_id, **handle_to_wire(handle)}


def handle_key(where: str, spec: Mapping[str, Any]) -> HandleKey:
    """Whose handle a spec is: the object's name has lost the case of the id."""
    return HandleKey(_text(where, "handleID", spec))


def handle_from_spec(where: str, spec: Mapping[str, Any]) -> Handle:
    """A handle."""
    return handle_from_wire(where, {k: v for k, v in spec.items() if k != "handleID"})


def config_to_spec(config: IPAMConfig) -> Json:
    """The configuration; the two flags are always written."""
    wire = config_to_wire(config)
    flags = {name: wire.pop(old, False) for name, old in _CONFIG.items()}
    settings = {name: wire.pop(name) for name in _SETTINGS if name in wire}
    return flags | settings | wire


def config_from_spec(where: str, spec: Mapping[str, Any]) -> IPAMConfig:
    """The configuration, in which a flag that is absent is false."""
    for name in _CONFIG:
        if not isinstance(spec.get(name, False), bool | None):
            raise Malformed(f"{where}: {name}: {spec[name]!r} is not a boolean")
    return config_from_wire(where, {_CONFIG.get(name, name): v for name, v in spec.items()})


def is_deleted(spec: Mapping[str, Any]) -> bool:
    """Whether the first half of a deletion was carried out."""
    return spec.get("deleted") in (True, "true")


def _network(where: str, spec: Mapping[str, Any]) -> IPNetwork:
    text = _text(where, "cidr", spec)
    try:
        return plain_network(text, strict=True)
    except ValueError as error:
        raise Malformed(f"{where}: cidr: {error}") from error


def _text(where: str, field: str, spec: Mapping[str, Any]) -> str:
    value = spec.get(field)
    if not isinstance(value, str) or not value:
        raise Malformed(f"{where}: {field}: {value!r} is not a text")
    return value
