"""Sets of what only Kubernetes knows: whom Services lead to, and its nodes' addresses.

They are no endpoints: no selector of a policy selects them, not even `all()`. So each kind has an
index of its own, and selectors of its own kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from felix_shim.policy_sets import Elements, PolicySets
from felix_shim.rules import SetKey, SetKind
from felix_shim.snapshots import Snapshot, touched
from libtortie.model.policy import Item

PeerKey = tuple[str, str]
"""Namespace and name."""


class PeerKind(StrEnum):
    """What there is beside endpoints."""

    SLICES = "slices"
    NODES = "nodes"


_KINDS: Mapping[SetKind, PeerKind] = {
    SetKind.SERVICES: PeerKind.SLICES,
    SetKind.SERVICE_PORTS: PeerKind.SLICES,
    SetKind.KUBE_NODES: PeerKind.NODES,
}


@dataclass(slots=True)
class PeerSets:
    """See the module."""

    _sets: Mapping[PeerKind, PolicySets[PeerKey]] = field(
        default_factory=lambda: {kind: PolicySets() for kind in PeerKind}
    )
    _parts: tuple[Snapshot[SetKey, Elements], ...] = ()
    _all: Snapshot[SetKey, Elements] = field(default_factory=Snapshot)

    def put(self, kind: PeerKind, key: PeerKey, item: Item) -> None:
        """One of them is this now."""
        self._sets[kind].put(key, item)

    def remove(self, kind: PeerKind, key: PeerKey) -> None:
        """It is no more."""
        self._sets[kind].remove(key)

    def use(self, wanted: frozenset[SetKey]) -> frozenset[SetKey]:
        """Keep exactly those of these sets that are of a kind here; the others."""
        for kind, sets in self._sets.items():
            sets.use(frozenset(key for key in wanted if _KINDS.get(key.kind) is kind))
        return frozenset(key for key in wanted if key.kind not in _KINDS)

    def added_to(self, others: Snapshot[SetKey, Elements]) -> Snapshot[SetKey, Elements]:
        """These sets and all of the others; the others themselves while there are none here."""
        parts = (others, *(sets.elements() for sets in self._sets.values()))
        if not any(parts[1:]):
            self._parts = ()
            return others
        before, self._parts = self._parts, parts
        if not before:
            self._all = Snapshot({key: one for part in parts for key, one in part.items()})
            return self._all
        come: dict[SetKey, Elements] = {}
        gone: set[SetKey] = set()
        for old, new in zip(before, parts, strict=True):
            for key in touched(old, new):
                if key in new:
                    come[key] = new[key]
                else:
                    gone.add(key)
        if come or gone:
            self._all = self._all.next(come, gone)
        return self._all
