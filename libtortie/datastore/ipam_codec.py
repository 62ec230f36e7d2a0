"""IPAM's records as Calico's etcd JSON objects: field names, order and omission are Calico's.

Pure functions between model values and JSON objects. Reading is strict about what allocation
relies on (ordinals in range, indices that exist, the block the path names), because a block
that is guessed at hands one address to two owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

from libtortie.datastore.wire_object import UINT64_MAX, WireObject
from libtortie.model.ipam import (
    AffinityState,
    Attribute,
    Block,
    BlockAffinity,
    Handle,
    IPAMConfig,
    Persistence,
)
from libtortie.model.keys import IPNetwork
from libtortie.model.times import rfc3339


def block_to_wire(block: Block) -> dict[str, Any]:
    """A block. A never-used one has `"attributes":null`, a used and emptied one `[]`."""
    _check_block(block)
    wire: dict[str, Any] = {"cidr": str(block.cidr), "affinity": block.affinity}
    if block.affinity_claim_time is not None:
        wire["affinity_claim_time"] = rfc3339(block.affinity_claim_time)
    wire["allocations"] = list(block.allocations)
    wire["unallocated"] = list(block.unallocated)
    wire["attributes"] = (
        None if _never_used(block) else [_attribute_to_wire(item) for item in block.attributes]
    )
    wire["sequenceNumber"] = block.sequence_number
    by_ordinal = {str(ordinal): number for ordinal, number in block.sequence_numbers.items()}
    wire["sequenceNumberForAllocation"] = dict(sorted(by_ordinal.items()))
    wire["deleted"] = block.deleted
    return _with_extra(wire, block.extra)


def block_from_wire(path: str, cidr: IPNetwork, data: Mapping[str, Any]) -> Block:
    """The block stored at `path`, which is block `cidr`."""
    wire = WireObject(path, data)
    if wire.text("cidr") != str(cidr):
        wire.refuse("cidr", f"{data.get('cidr')!r} is not the block the path names, {cidr}")
    numbers = wire.integer_map("sequenceNumberForAllocation", most=UINT64_MAX)
    block = Block(
        cidr=cidr,
        affinity=wire.text("affinity"),
        allocations=wire.optional_integers("allocations"),
        unallocated=wire.integers("unallocated"),
        attributes=tuple(_attribute_from_wire(item) for item in wire.objects("attributes")),
        affinity_claim_time=wire.time("affinity_claim_time"),
        sequence_number=wire.integer("sequenceNumber", most=UINT64_MAX),
        sequence_numbers={_ordinal(wire, text): number for text, number in numbers.items()},
        deleted=wire.boolean("deleted"),
        extra=wire.rest(),
    )
    try:
        _check_block(block)
    except ValueError as error:
        field, _, reason = str(error).partition(": ")
        wire.refuse(field, reason)
    return block


def affinity_to_wire(affinity: BlockAffinity) -> dict[str, Any]:
    """A block affinity; node, block and type are in its path."""
    wire = {"state": affinity.state.value, "deleted": affinity.deleted}
    return _with_extra(wire, affinity.extra)


def affinity_from_wire(path: str, data: Mapping[str, Any]) -> BlockAffinity:
    """A block affinity; an empty state reads as confirmed."""
    wire = WireObject(path, data)
    state = wire.choice("state", AffinityState, AffinityState.CONFIRMED)
    return BlockAffinity(state, wire.boolean("deleted"), wire.rest())


def handle_to_wire(handle: Handle) -> dict[str, Any]:
    """A handle: addresses per block; its id is in its path."""
    counts = {str(cidr): count for cidr, count in handle.blocks.items()}
    wire = {"block": dict(sorted(counts.items())), "deleted": handle.deleted}
    return _with_extra(wire, handle.extra)


def handle_from_wire(path: str, data: Mapping[str, Any]) -> Handle:
    """A handle."""
    wire = WireObject(path, data)
    blocks: dict[IPNetwork, int] = {}
    for text, count in wire.integer_map("block").items():
        try:
            blocks[ip_network(text)] = count
        except ValueError as error:
            wire.refuse(f"block[{text}]", str(error))
    return Handle(blocks, wire.boolean("deleted"), wire.rest())


def config_to_wire(config: IPAMConfig) -> dict[str, Any]:
    """The IPAM configuration, in Calico's mix of snake and camel case; empties are left out."""
    wire: dict[str, Any] = {
        "strict_affinity": config.strict_affinity,
        "auto_allocate_blocks": config.auto_allocate_blocks,
        "maxBlocksPerHost": config.max_blocks_per_host,
        "kubeVirtVMAddressPersistence": config.kubevirt_persistence.value,
        "ipCooldownSeconds": config.cooldown_seconds,
    }
    return _with_extra({name: value for name, value in wire.items() if value}, config.extra)


def config_from_wire(path: str, data: Mapping[str, Any]) -> IPAMConfig:
    """The IPAM configuration. A stored one without `auto_allocate_blocks` means false."""
    wire = WireObject(path, data)
    return IPAMConfig(
        strict_affinity=wire.boolean("strict_affinity"),
        auto_allocate_blocks=wire.boolean("auto_allocate_blocks"),
        max_blocks_per_host=wire.integer("maxBlocksPerHost"),
        kubevirt_persistence=wire.choice(
            "kubeVirtVMAddressPersistence", Persistence, Persistence.ENABLED
        ),
        cooldown_seconds=wire.integer("ipCooldownSeconds"),
        extra=wire.rest(),
    )


def _attribute_to_wire(attribute: Attribute) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    if attribute.handle_id is not None:
        wire["handle_id"] = attribute.handle_id
    if attribute.active:
        wire["secondary"] = dict(sorted(attribute.active.items()))
    if attribute.alternate:
        wire["alternateOwnerAttrs"] = dict(sorted(attribute.alternate.items()))
    if attribute.released_at is not None:
        wire["releasedAt"] = rfc3339(attribute.released_at)
    return _with_extra(wire, attribute.extra)


def _attribute_from_wire(wire: WireObject) -> Attribute:
    return Attribute(
        handle_id=wire.text("handle_id"),
        active=wire.text_map("secondary"),
        alternate=wire.text_map("alternateOwnerAttrs"),
        released_at=wire.time("releasedAt"),
        extra=wire.rest(),
    )


def _never_used(block: Block) -> bool:
    """Every ordinal still in its first place in the queue: nothing was ever assigned."""
    return not block.attributes and block.unallocated == tuple(range(len(block.allocations)))


def _check_block(block: Block) -> None:
    """ValueError `field: reason` for a block whose ordinals or indices point nowhere."""
    size = block.cidr.num_addresses
    if len(block.allocations) != size:
        raise ValueError(f"allocations: {len(block.allocations)} entries for {size} addresses")
    for ordinal, index in enumerate(block.allocations):
        if index is not None and not 0 <= index < len(block.attributes):
            raise ValueError(f"allocations[{ordinal}]: there is no attribute {index}")
    for place, ordinal in enumerate(block.unallocated):
        if not 0 <= ordinal < size:
            raise ValueError(f"unallocated[{place}]: there is no ordinal {ordinal}")
    for ordinal in block.sequence_numbers:
        if not 0 <= ordinal < size:
            raise ValueError(f"sequenceNumberForAllocation: there is no ordinal {ordinal}")


def _ordinal(wire: WireObject, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        wire.refuse("sequenceNumberForAllocation", f"{text!r} is not an ordinal")
    return int(text)


def _with_extra(wire: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Unknown fields, as they were, after the known ones."""
    for name, value in extra.items():
        wire.setdefault(name, value)
    return wire
