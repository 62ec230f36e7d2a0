"""What `ipam show` says, from blocks, pools and reservations; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, timedelta
from typing import Any

from ipam.pools import Pool
from ipam.settings import Setting
from ipam.usage import Use, inside_of, use_of
from libtortie.model.ipam import Attribute, Block, IPAddress, IPAMConfig, Owner
from libtortie.model.keys import IPNetwork
from libtortie.model.times import rfc3339
from libtortie.wording import visible

USE_HEADINGS = ("GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE")
BORROWED_HEADINGS = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")
CONFIG_HEADINGS = ("PROPERTY", "VALUE")


def cells(use: Use) -> tuple[str, str, str, str]:
    """Total, in use, reserved, free; with percentages of the total."""
    used, reserved, free = (_part(n, use.total) for n in (use.used, use.reserved, use.free))
    return f"{use.total:.5g}", used, reserved, free


def use_rows(
    pools: Sequence[Pool],
    blocks: Sequence[Block],
    reserved: Sequence[IPNetwork],
    *,
    show_blocks: bool,
) -> list[tuple[str, ...]]:
    """A row for each pool, with its blocks' beneath it; blocks of no pool come last."""
    rows: list[tuple[str, ...]] = []
    left = sorted(blocks, key=lambda block: (block.cidr.version, block.cidr))
    for pool in sorted(pools, key=lambda one: (one.cidr.version, one.cidr)):
        inside = [block for block in left if inside_of(block.cidr, pool.cidr)]
        left = [block for block in left if not inside_of(block.cidr, pool.cidr)]
        rows.append(("IP Pool", str(pool.cidr), *cells(use_of(pool.cidr, inside, reserved))))
        if show_blocks:
            rows += [_block_row(block, reserved) for block in inside]
    if show_blocks:
        rows += [_block_row(block, reserved) for block in left]
    return rows


def borrowed_rows(blocks: Iterable[Block]) -> list[tuple[str, ...]]:
    """Addresses used on another node than their block's, by address."""
    rows: list[tuple[str, ...]] = []
    for block in sorted(blocks, key=lambda one: (one.cidr.version, one.cidr)):
        for ordinal in range(len(block.allocations)):
            attribute = block.attribute(ordinal)
            owner = {} if attribute is None else attribute.active or attribute.alternate
            node = owner.get("node", "")
            if attribute is None or not node or block.node in (None, node):
                continue
            address = str(block.address(ordinal))
            kind, name = _holder(owner, attribute)
            rows.append((address, node, str(block.cidr), str(block.node), kind, name))
    return rows


def address_lines(address: IPAddress, attribute: Attribute | None) -> Iterator[str]:
    """What is known of an address that is not cooling down."""
    if attribute is None:
        yield f"{address} is not assigned"
        return
    yield f"IP {address} is in use"
    yield visible(f"Handle ID: {attribute.handle_id or ''}")
    for title, owner in (("Active", attribute.active), ("Alternate", attribute.alternate)):
        yield f"{title} Owner Attributes:"
        yield from (visible(f"  {key}: {owner[key]}") for key in sorted(owner))


def cooling_text(address: IPAddress, attribute: Attribute, seconds: int) -> str:
    """Why a released address cannot be had; `seconds` is the cooldown."""
    assert attribute.released_at is not None
    try:
        end = attribute.released_at.astimezone(UTC) + timedelta(seconds=seconds)
        free = f"free from {rfc3339(end)}"
    except OverflowError:  # beyond the last year there is
        free = f"free {seconds} s after that, which is never"
    return f"{address} is cooling down: released at {rfc3339(attribute.released_at)}, {free}"


def config_rows(config: IPAMConfig, persistence: Setting) -> list[tuple[str, str]]:
    """Settings in force."""
    values: dict[str, Any] = {
        "StrictAffinity": str(config.strict_affinity).lower(),
        "AutoAllocateBlocks": str(config.auto_allocate_blocks).lower(),
        "MaxBlocksPerHost": config.max_blocks_per_host,
        "KubeVirtVMAddressPersistence": persistence.value,
        "IPCooldownSeconds": config.cooldown_seconds,
    }
    return [(name, str(value)) for name, value in values.items()]


def persistence_text(persistence: Setting, stored: Setting) -> str:
    """Which place decides, and the value of one that does not."""
    text = f"KubeVirtVMAddressPersistence is {persistence.value}: {persistence.place}"
    if persistence.value is stored.value:
        return text
    return f"{text} ({stored.place} has {stored.value}, which does not count)"


def _holder(owner: Owner, attribute: Attribute) -> tuple[str, str]:
    """What uses an address, and its name."""
    if owner.get("vmi-name"):
        return "vmi", f"{owner.get('namespace', '')}/{owner['vmi-name']}"
    if owner.get("pod"):
        return "pod", f"{owner.get('namespace', '')}/{owner['pod']}"
    return owner.get("type", ""), attribute.handle_id or ""


def _block_row(block: Block, reserved: Sequence[IPNetwork]) -> tuple[str, ...]:
    return ("Block", str(block.cidr), *cells(use_of(block.cidr, [block], reserved)))


def _part(count: int, total: int) -> str:
    return f"{count:.5g} ({100 * count / total:.0f}%)"
