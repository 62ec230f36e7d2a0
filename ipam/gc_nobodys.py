"""Addresses that are nobody's: allocated, but under an attribute without handle, owner or rest.

An older Calico that writes a block drops `releasedAt`: what was cooling down stays allocated to
nobody, and no release by handle can ever reach it. It is a leak unless somebody reports it as his,
whoever that is. It goes back at once: it is waited for at least as long as it would have rested,
and a new rest would only be forgotten again. Pure, but for `release`, a compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from libtortie.model.ipam import IPAddress
from libtortie.model.keys import BlockKey, IPNetwork

from . import block as blocks
from . import gc_addresses, tidy
from .attempts import Progress
from .gc_cluster import Cluster
from .gc_effects import Means
from .gc_inventory import ENDPOINTS, NODES, Allocated, Inventory, is_nobodys
from .gc_verdicts import Opinion, Subject, Unknown, blind, doubt, good
from .settings import read_config, require_ready
from .transaction import Transaction
from .vm_handles import Piece


def opine_all(
    found: Iterable[Allocated], inventory: Inventory, cluster: Cluster
) -> Iterator[Opinion[Allocated]]:
    """What one observation says of each address that is no VM's."""
    used: frozenset[IPAddress] | None = None
    for one in found:
        if not one.nobodys:
            yield gc_addresses.opine(one, cluster)
            continue
        if used is None:
            used = _used(inventory, cluster)
        yield _opine(one, inventory, cluster, used)


def grace_of(subject: Subject, inventory: Inventory, grace: float) -> float:
    """How long (seconds) something must have been doubtful: nobody's also rests meanwhile."""
    if isinstance(subject, Allocated) and subject.nobodys:
        return max(grace, inventory.cooldown or 0)
    return grace


def release(
    means: Means, cidr: IPNetwork, judged: Sequence[Piece], rested: int
) -> frozenset[IPAddress]:
    """Free those ordinals of a block that still are nobody's, as judged, and say which.

    None is, if the cooldown is more than `rested` seconds by now.
    """
    freed: set[IPAddress] = set()

    def decide(tx: Transaction, progress: Progress) -> bool:
        require_ready(tx)
        if not progress.uncertain:
            freed.clear()  # else an earlier attempt may have freed what is not there any more
        block = tx.block(cidr)
        if block is None or read_config(tx).cooldown_seconds > rested:
            return True
        pieces = {piece.address: piece for piece in judged}
        due: list[int] = []
        for ordinal, attribute in enumerate(map(block.attribute, range(len(block.allocations)))):
            piece = pieces.get(block.address(ordinal))
            if attribute is None or piece is None:
                continue
            same = block.sequence_numbers.get(ordinal) == piece.number
            if same and is_nobodys(attribute):
                due.append(ordinal)
            else:
                freed.discard(piece.address)
        if due:
            freed.update(block.address(ordinal) for ordinal in due)
            left = blocks.release(block, due, now=means.now(), cooldown=0)
            if blocks.is_empty(left):
                tidy.stage_emptied(tx, left)
            else:
                tx.put(BlockKey(cidr), left)
        return True

    means.run(f"free addresses of nobody in {cidr}", decide)
    return frozenset(freed)


def _opine(
    found: Allocated, inventory: Inventory, cluster: Cluster, used: frozenset[IPAddress]
) -> Opinion[Allocated]:
    what = "it has neither handle nor owner"
    if found.piece.address in used:
        return good(found, f"{what}, but is in use")
    if isinstance(cluster.pods, Unknown):
        return blind(found, f"{what}, and pods are not known: {cluster.pods.reason}")
    if {NODES, ENDPOINTS} & inventory.blind:
        return blind(found, f"{what}, and a Node or a WorkloadEndpoint cannot be read")
    if inventory.cooldown is None:
        return blind(found, f"{what}, and it is not known how long it must rest")
    return doubt(found, f"{what}: nobody can release it")


def _used(inventory: Inventory, cluster: Cluster) -> frozenset[IPAddress]:
    """Every address that a pod has, as far as it says, or that a stored endpoint or node names."""
    found = set(cluster.tunnels)
    for endpoint in inventory.endpoints:
        found.update(endpoint.addresses)
    if not isinstance(cluster.pods, Unknown):
        for pod in cluster.pods.values():
            found.update(() if pod.finished else pod.addresses)
    return frozenset(found)
