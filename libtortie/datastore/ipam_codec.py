"""IPAM's records as Calico's etcd JSON objects: field names, order and omission are Calico's.

Pure functions between model values and JSON objects. Both ways are strict about what allocation
relies on (ordinals in range, indices that exist, the block the path names), because a block
that is guessed at hands one address to two owners. What is written without an error is read
again without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from libtortie.datastore import gojson
from libtortie.datastore.attribute_codec import (
    attribute_text,
    attribute_to_wire,
    attributes_from_wire,
)
from libtortie.datastore.wire_object import (
    INT64_MAX,
    UINT64_MAX,
    WireObject,
    are_integers,
    is_integer,
    with_extra,
)
from libtortie.model.ipam import (
    AffinityState,
    Block,
    BlockAffinity,
    Handle,
    IPAMConfig,
    Persistence,
)
from libtortie.model.keys import IPNetwork
from libtortie.model.plain_ip import plain_network
from libtortie.model.times import rfc3339

Place = TypeVar("Place")
_NUMBER = f"an integer from 0 to {UINT64_MAX}"


def block_to_wire(block: Block) -> dict[str, Any]:
    """A block. A never-used one has `"attributes":null`, a used and emptied one `[]`."""
    wire = _block_without_attributes(block)
    if not _never_used(block):
        wire["attributes"] = [attribute_to_wire(item) for item in block.attributes]
    return wire


def block_to_text(block: Block) -> bytes:
    """The text of `block_to_wire`, in half the time: most attributes are those of the last one."""
    text = gojson.dumps(_block_without_attributes(block), floats=False)
    if _never_used(block):
        return text
    attributes = b",".join(map(attribute_text, block.attributes))
    return text.replace(b'"attributes":null', b'"attributes":[' + attributes + b"]", 1)


def _block_without_attributes(block: Block) -> dict[str, Any]:
    _check_block(block)
    wire: dict[str, Any] = {"cidr": str(block.cidr), "affinity": block.affinity}
    if block.affinity_claim_time is not None:
        wire["affinity_claim_time"] = rfc3339(block.affinity_claim_time)
    wire["allocations"] = list(block.allocations)
    wire["unallocated"] = list(block.unallocated)
    wire["attributes"] = None
    wire["sequenceNumber"] = block.sequence_number
    numbers = block.sequence_numbers
    wire["sequenceNumberForAllocation"] = dict(
        sorted(zip(map(str, numbers), numbers.values(), strict=True))
    )
    wire["deleted"] = block.deleted
    return with_extra(wire, block.extra)


def block_from_wire(path: str, cidr: IPNetwork, data: Mapping[str, Any]) -> Block:
    """The block stored at `path`, which is block `cidr`."""
    wire = WireObject(path, data)
    if wire.text("cidr") != str(cidr):
        wire.refuse("cidr", f"{data.get('cidr')!r} is not the block the path names, {cidr}")
    numbers = wire.map("sequenceNumberForAllocation")
    block = Block(
        cidr=cidr,
        affinity=wire.text("affinity"),
        allocations=tuple(wire.list("allocations")),
        unallocated=tuple(wire.list("unallocated")),
        attributes=tuple(attributes_from_wire(wire)),
        affinity_claim_time=wire.time("affinity_claim_time"),
        sequence_number=wire.integer("sequenceNumber", most=UINT64_MAX),
        sequence_numbers=dict(zip(_ordinals(wire, numbers), numbers.values(), strict=True)),
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
    return with_extra(wire, affinity.extra)


def affinity_from_wire(path: str, data: Mapping[str, Any]) -> BlockAffinity:
    """A block affinity; an empty state reads as confirmed."""
    wire = WireObject(path, data)
    state = wire.choice("state", AffinityState, AffinityState.CONFIRMED)
    return BlockAffinity(state, wire.boolean("deleted"), wire.rest())


def handle_to_wire(handle: Handle) -> dict[str, Any]:
    """A handle: addresses per block; its id is in its path."""
    counts = {str(cidr): count for cidr, count in handle.blocks.items()}
    if not are_integers(counts.values(), INT64_MAX):
        place, odd = _odd_one(counts.items(), INT64_MAX)
        raise ValueError(f"block[{place}]: {odd!r} is not an integer from 0 to {INT64_MAX}")
    wire = {"block": dict(sorted(counts.items())), "deleted": handle.deleted}
    return with_extra(wire, handle.extra)


def handle_to_text(handle: Handle) -> bytes:
    """The text of `handle_to_wire`: remembered, as most of a node's handles say the same."""
    counts = tuple(handle.blocks.values())
    if handle.deleted or handle.extra or not are_integers(counts, INT64_MAX):
        return gojson.dumps(handle_to_wire(handle), floats=False)
    return _ordinary_handle(tuple(handle.blocks), counts)


@lru_cache(maxsize=256)
def _ordinary_handle(blocks: tuple[IPNetwork, ...], counts: tuple[int, ...]) -> bytes:
    wire = handle_to_wire(Handle(dict(zip(blocks, counts, strict=True))))
    return gojson.dumps(wire, floats=False)


def handle_from_wire(path: str, data: Mapping[str, Any]) -> Handle:
    """A handle."""
    wire = WireObject(path, data)
    blocks: dict[IPNetwork, int] = {}
    for text, count in wire.integer_map("block").items():
        try:
            blocks[_network(text)] = count
        except ValueError as error:
            wire.refuse(f"block[{text}]", str(error))
    return Handle(blocks, wire.boolean("deleted"), wire.rest())


@lru_cache(maxsize=1 << 14)
def _network(text: str) -> IPNetwork:
    """The same object for all of a block's handles: parsing it costs more than all the rest."""
    return plain_network(text, strict=True)


def config_to_wire(config: IPAMConfig) -> dict[str, Any]:
    """The IPAM configuration, in Calico's mix of snake and camel case; empties are left out."""
    numbers = {
        "maxBlocksPerHost": config.max_blocks_per_host,
        "ipCooldownSeconds": config.cooldown_seconds,
    }
    if not are_integers(numbers.values(), INT64_MAX):
        place, odd = _odd_one(numbers.items(), INT64_MAX)
        raise ValueError(f"{place}: {odd!r} is not an integer from 0 to {INT64_MAX}")
    wire: dict[str, Any] = {
        "strict_affinity": config.strict_affinity,
        "auto_allocate_blocks": config.auto_allocate_blocks,
        "maxBlocksPerHost": config.max_blocks_per_host,
        "kubeVirtVMAddressPersistence": config.kubevirt_persistence.value,
        "ipCooldownSeconds": config.cooldown_seconds,
    }
    return with_extra({name: value for name, value in wire.items() if value}, config.extra)


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


def is_plain(value: Block | BlockAffinity | Handle | IPAMConfig) -> bool:
    """Whether reading what is written of a value gives the very same: nothing is cut or renamed."""
    match value:
        case Block():
            times = [value.affinity_claim_time, *(item.released_at for item in value.attributes)]
            extras = [item.extra for item in value.attributes]
            return not (value.extra or any(extras)) and all(map(_is_exact, times))
        case _:
            return not value.extra


def _is_exact(time: datetime | None) -> bool:
    return time is None or (time.tzinfo is UTC and not time.microsecond)


def _never_used(block: Block) -> bool:
    """Every ordinal still in its first place in the queue: nothing was ever assigned."""
    return not block.attributes and block.unallocated == tuple(range(len(block.allocations)))


def _check_block(block: Block) -> None:
    """ValueError `field: reason` for a block whose ordinals, indices or numbers say nothing."""
    size = block.cidr.num_addresses
    if len(block.allocations) != size:
        raise ValueError(f"allocations: {len(block.allocations)} entries for {size} addresses")
    used = [index for index in block.allocations if index is not None]
    if not are_integers(used, len(block.attributes) - 1):
        pairs = [(at, index) for at, index in enumerate(block.allocations) if index is not None]
        place, odd = _odd_one(pairs, len(block.attributes) - 1)
        raise ValueError(f"allocations[{place}]: there is no attribute {odd!r}")
    if not are_integers(block.unallocated, size - 1):
        place, odd = _odd_one(enumerate(block.unallocated), size - 1)
        raise ValueError(f"unallocated[{place}]: there is no ordinal {odd!r}")
    if not are_integers(block.sequence_numbers, size - 1):
        _, odd = _odd_one(enumerate(block.sequence_numbers), size - 1)
        raise ValueError(f"sequenceNumberForAllocation: there is no ordinal {odd!r}")
    if not is_integer(block.sequence_number, UINT64_MAX):
        raise ValueError(f"sequenceNumber: {block.sequence_number!r} is not {_NUMBER}")
    if not are_integers(block.sequence_numbers.values(), UINT64_MAX):
        place, odd = _odd_one(block.sequence_numbers.items(), UINT64_MAX)
        raise ValueError(f"sequenceNumberForAllocation[{place}]: {odd!r} is not {_NUMBER}")


def _odd_one(values: Iterable[tuple[Place, Any]], most: int) -> tuple[Place, Any]:
    return next((place, value) for place, value in values if not is_integer(value, most))


def _ordinals(wire: WireObject, texts: Collection[str]) -> list[int]:
    digits = "".join(texts)
    try:
        if digits and not (digits.isascii() and digits.isdecimal()):
            raise ValueError
        return list(map(int, texts))  # refuses an empty one, and thousands of digits
    except ValueError:
        odd = [text for text in texts if not (text.isascii() and text.isdecimal())]
        named = (odd or [max(texts, key=len)])[0]
        wire.refuse("sequenceNumberForAllocation", f"{named[:40]!r} is not an ordinal")
