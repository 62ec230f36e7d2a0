"""Whether an API is the one of the cluster whose addresses these are. Pure.

With another cluster's kubeconfig every pod and every node of ours looks deleted, in both
observations and in the last question by name. So an API is only believed when it knows one of our
nodes, and one of our pods if there are many. `--trust-empty-lists` says that it is the right one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from libtortie.model.ipam import Owner

from .gc_inventory import Inventory
from .ownership import is_pod

PodName = tuple[str, str]
OurPod = tuple[str, str, str]
"""Namespace, name, and UID ("": not recorded)."""

MANY = 10
"""So many pods that have addresses do not all go at once without any other that has one."""
SHOWN = 3
BELIEVED = "(tortie-controllers gc --trust-empty-lists believes it)"
STRANGE = f"is it another cluster's? {BELIEVED}"


def unknown_nodes(ours: Collection[str], theirs: Collection[str]) -> str:
    """Why an API that lists `theirs` is not ours, by its nodes; "" when it may be."""
    if not ours or not set(ours).isdisjoint(theirs):
        return ""
    return f"the API has none of the nodes that IPAM knows ({_some(ours)}): {STRANGE}"


def unknown_pods(ours: Collection[OurPod], theirs: Mapping[PodName, Collection[str]]) -> str:
    """The same by its pods: the UIDs that it has for each name."""
    if len(ours) < MANY or any(_is_there(pod, theirs) for pod in ours):
        return ""
    return f"the API has none of the {len(ours)} pods that have addresses: {STRANGE}"


def _is_there(pod: OurPod, theirs: Mapping[PodName, Collection[str]]) -> bool:
    namespace, name, uid = pod
    uids = theirs.get((namespace, name))
    return uids is not None and (not uid or uid in uids)


def nodes_of(inventory: Inventory) -> frozenset[str]:
    """Every node that claims a block or has an address."""
    claims = {key.node for key in inventory.affinities}
    claims |= {block.node for block in inventory.blocks.values() if block.node}
    return frozenset(claims | {one.get("node", "") for one in _owners(inventory)}) - {""}


def pods_of(inventory: Inventory) -> frozenset[OurPod]:
    """Every pod that an address was given to."""
    owners = (one for one in _owners(inventory) if is_pod(one))
    return frozenset((o.get("namespace", ""), o["pod"], o.get("pod-uid", "")) for o in owners)


def _owners(inventory: Inventory) -> Iterator[Owner]:
    for one in inventory.allocated:
        yield from (one.piece.owners.active, one.piece.owners.alternate)


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:SHOWN]
    return ", ".join(shown) + (", …" if len(names) > SHOWN else "")
