"""What `ipam check` tells: the narrative for people, the report for `ipam release`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ipam.check import Examination, Problem
from ipam.gc import Opinions
from ipam.gc_claims import Flaw
from libtortie.datastore.port import Record
from libtortie.model.ipam import Attribute, Block
from libtortie.model.resources import ClusterInformation

TOP_NODES = 20


def narrative(
    seen: Opinions, found: Examination, *, show_all: bool, show_problems: bool
) -> Iterator[str]:
    """The report's lines, the last one with the number of problems."""
    yield "Checking IPAM for inconsistencies..."
    yield ""
    yield from _inventory(seen, found)
    yield from _usage(seen, found, show_all=show_all, show_problems=show_problems or show_all)
    sections = (
        (found.handles, "handles that disagree with the blocks", True),
        (found.claims, "affinities that stand for nothing", True),
        (found.blocks, "unsound places in blocks", True),
        (found.unreadable, "records that cannot be read", True),
    )
    for problems, what, shown in sections:
        yield from _section(problems, what, shown=shown)
    yield f"Check complete; found {len(found.problems)} problems."


def report(
    seen: Opinions, found: Examination, cluster: Record | None, version: str
) -> dict[str, Any]:
    """The report's JSON; `inUse` is false only for what is known to be used by nobody."""
    about = cluster.value if cluster else None
    spec = about.spec if isinstance(about, ClusterInformation) else None
    allocations: dict[str, list[dict[str, Any]]] = {}
    for block in seen.inventory.blocks.values():
        for ordinal in range(len(block.allocations)):
            attribute = block.attribute(ordinal)
            if attribute is not None:
                address = str(block.address(ordinal))
                allocations[address] = [_allocation(block, ordinal, attribute, found)]
    return {
        "version": version,
        "clusterGUID": spec.cluster_guid if spec else "",
        "datastoreLocked": bool(spec) and spec is not None and spec.datastore_ready is False,
        "clusterInformationRevision": cluster.revision if cluster else "",
        "clusterType": spec.cluster_type if spec else "",
        "allocations": allocations,
        "leakedHandles": [
            {"ID": one.subject.handle_id, "UID": None, "Revision": one.subject.revision}
            for one in seen.handles
            if one.doubted and one.subject.revision is not None and not one.subject.held
        ],
    }


def _inventory(seen: Opinions, found: Examination) -> Iterator[str]:
    """What was loaded."""
    inventory = seen.inventory
    held = inventory.allocated
    yield "Loading all IPAM blocks..."
    yield f"Found {len(inventory.blocks)} IPAM blocks."
    for block in inventory.blocks.values():
        yield f" IPAM block {block.cidr} affinity={block.affinity or '<none>'}"
    yield f"IPAM blocks record {len(held)} allocations."
    yield ""
    yield "Loading all IPAM pools..."
    for pool in inventory.pools or ():
        yield f"  {pool.cidr}"
    yield f"Found {len(inventory.pools or ())} IP pools."
    yield ""
    users = [user for theirs in found.users.values() for user in theirs]
    workloads = sum(user.endpoint is not None for user in users)
    yield "Loading all nodes and workload endpoints..."
    yield f"Found {len(users) - workloads} node tunnel IPs."
    yield f"Found {workloads} workload IPs."
    yield f"Workloads and nodes are using {len(found.users)} IPs."
    yield ""
    nodes = Counter(_node(one.piece.owners.active) for one in held)
    yield f"Nodes by allocations (up to {TOP_NODES}):"
    for node, count in sorted(nodes.items(), key=lambda one: (-one[1], one[0]))[:TOP_NODES]:
        yield f"  {node or '(no node)'} has {count} allocations"
    yield ""


def _usage(
    seen: Opinions, found: Examination, *, show_all: bool, show_problems: bool
) -> Iterator[str]:
    """Addresses that are allocated or used, and not both."""
    yield "Scanning for IPs that are allocated but not actually in use..."
    if show_all:
        for one in seen.inventory.allocated:
            address = one.piece.address
            if address not in found.leaked:
                users = ", ".join(user.name for user in found.users.get(address, ()))
                why = found.unjudged.get(address) or users or "reserved for its owner"
                yield f"  {address} handle={one.handle_id}: {why}"
    if show_problems:
        yield from (f"  {address} leaked: {why}" for address, why in found.leaked.items())
    yield f"Found {len(found.leaked)} IPs that are allocated in IPAM but not actually in use."
    if found.unjudged:
        reasons = Counter(found.unjudged.values())
        yield f"{len(found.unjudged)} IPs could not be judged:"
        yield from (f"  {count} of them: {reason}" for reason, count in sorted(reasons.items()))
    spare = sum(one.doubted and one.subject.flaw is Flaw.EMPTY for one in seen.claims)
    yield f"Found {spare} empty blocks that will be released (no problem)."
    yield ""
    yield "Scanning for IPs that are in use by a workload or node but not allocated in IPAM..."
    yield f"Found {len(found.foreign)} in-use IPs that are not in any pool (no problem)."
    what = "in-use IPs that are in a pool and have no IPAM allocation"
    yield from _section(found.unallocated, what, shown=show_problems)
    what = "IPs that are used by another than they are allocated to"
    yield from _section(found.disputed, what, shown=show_problems)


def _section(problems: Sequence[Problem], what: str, *, shown: bool) -> Iterator[str]:
    if shown:
        yield from (f"  {problem.text}" for problem in problems)
    yield f"Found {len(problems)} {what}."
    yield ""


def _allocation(
    block: Block, ordinal: int, attribute: Attribute, found: Examination
) -> dict[str, Any]:
    address = block.address(ordinal)
    owner = attribute.active or attribute.alternate
    cooling = attribute.released_at is not None
    node = owner.get("node", "")
    return {
        "ip": str(address),
        "handle": attribute.handle_id or "",
        "sequenceNumber": block.sequence_numbers.get(ordinal),
        "pod": owner.get("pod", ""),
        "namespace": owner.get("namespace", ""),
        "node": node,
        "type": owner.get("type", ""),
        "creationTimestamp": owner.get("timestamp", ""),
        "inUse": not cooling and address not in found.leaked,
        "borrowed": bool(node) and block.node not in (None, node),
        "coolingDown": cooling,
        "owners": [user.name for user in found.users.get(address, ())],
    }


def _node(owner: Any) -> str:
    return str(owner.get("node", ""))
