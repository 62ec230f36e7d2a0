"""Who owns whom, and what the collector is to do about one object. Pure.

An owner counts if the object of that kind and name has that UID, in the dependent's own namespace
or at cluster scope; an object elsewhere is no owner. While a kind is not served nothing is known
of its objects, and their dependents stay. Source: Kubernetes, "Owners and Dependents".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from lab.apiserver.deletion import FOREGROUND, ORPHAN, finalizers
from lab.apiserver.errors import Json
from lab.apiserver.store import Event, ObjectKey

OwnerState = Literal["solid", "waiting", "absent", "unknown"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of `metadata.ownerReferences`."""

    api_version: str
    kind: str
    name: str
    uid: str
    blocks: bool


@dataclass(frozen=True, slots=True)
class Node:
    """An object, as far as ownership goes."""

    resource: str
    key: ObjectKey
    uid: str
    owners: tuple[Owner, ...]
    finalizers: tuple[str, ...]
    deleting: bool

    @property
    def concerned(self) -> bool:
        """Whether the collector may have something to do with it."""
        waits = self.deleting and bool({ORPHAN, FOREGROUND}.intersection(self.finalizers))
        return bool(self.owners) or waits


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object with a propagation policy."""

    node: Node
    policy: str


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove these owners from an object."""

    node: Node
    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unblock:
    """An object no longer holds up the deletion of its owners."""

    node: Node


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let an object go."""

    node: Node
    finalizer: str


Action = Delete | DropOwners | Unblock | RemoveFinalizer
Resolve = Callable[[Node, Owner], OwnerState]


def node_of(resource: str, key: ObjectKey, body: Json) -> Node:
    """What of an object matters here."""
    meta = body["metadata"]
    owners = tuple(
        Owner(
            str(found.get("apiVersion", "")),
            str(found.get("kind", "")),
            str(found.get("name", "")),
            str(found.get("uid", "")),
            bool(found.get("blockOwnerDeletion")),
        )
        for found in meta.get("ownerReferences") or ()
    )
    deleting = bool(meta.get("deletionTimestamp"))
    held = tuple(finalizers(body))
    return Node(resource, key, str(meta.get("uid", "")), owners, held, deleting)


class Graph:
    """All objects that own or are owned."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._owned: dict[str, set[str]] = {}

    def node(self, uid: str) -> Node | None:
        """An object by UID."""
        return self._nodes.get(uid)

    def dependents(self, owner: Node) -> Iterator[Node]:
        """Objects that name this one as owner, from where it can be one."""
        for uid in sorted(self._owned.get(owner.uid, ())):
            found = self._nodes[uid]
            if owner.key[0] in ("", found.key[0]):
                yield found

    def apply(self, event: Event) -> set[str]:
        """Take in a write; returns the UIDs of the objects to look at again."""
        new = node_of(event.resource, event.key, event.body)
        old = self._nodes.pop(new.uid, None)
        touched = {new.uid}
        for owner in old.owners if old else ():
            touched.add(owner.uid)
            self._owned[owner.uid].discard(new.uid)
            if not self._owned[owner.uid]:
                del self._owned[owner.uid]
        if event.type == "DELETED":
            return touched | self._owned.get(new.uid, set())
        self._nodes[new.uid] = new
        for owner in new.owners:
            touched.add(owner.uid)
            self._owned.setdefault(owner.uid, set()).add(new.uid)
        if FOREGROUND in new.finalizers and new.deleting:
            touched |= self._owned.get(new.uid, set())
        return touched


def plan(node: Node, graph: Graph, resolve: Resolve) -> Iterator[Action]:
    """What is to be done about one object."""
    if node.deleting:
        yield from _plan_deleting(node, graph)
        return
    states = {owner: resolve(node, owner) for owner in node.owners}
    if not states or "unknown" in states.values():
        return
    gone = frozenset(owner.uid for owner, state in states.items() if state != "solid")
    if "solid" in states.values():
        if gone:
            yield DropOwners(node, gone)
        return
    dependents = list(graph.dependents(node))
    waiting = "waiting" in states.values() and bool(dependents)
    if waiting and any(FOREGROUND in other.finalizers for other in dependents):
        yield Unblock(node)  # owners in a circle would wait for each other
    yield Delete(node, "Foreground" if waiting else _own_policy(node))


def _plan_deleting(node: Node, graph: Graph) -> Iterator[Action]:
    if ORPHAN in node.finalizers:
        for other in graph.dependents(node):
            yield DropOwners(other, frozenset((node.uid,)))
        yield RemoveFinalizer(node, ORPHAN)
    elif FOREGROUND in node.finalizers:
        blocked = any(
            owner.blocks and owner.uid == node.uid
            for other in graph.dependents(node)
            for owner in other.owners
        )
        if not blocked:
            yield RemoveFinalizer(node, FOREGROUND)


def _own_policy(node: Node) -> str:
    if ORPHAN in node.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in node.finalizers else "Background"
