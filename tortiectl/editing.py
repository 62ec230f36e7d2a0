"""A change to one stored resource, made again when somebody else was quicker.

What the change makes wrong is refused with paths; what was wrong before it is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libtortie.datastore.port import Datastore
from libtortie.errors import Conflict, InvalidInput, NotFound
from libtortie.model.keys import ResourceKey
from libtortie.model.resources import Resource
from libtortie.model.written import checked, revision_of
from tortiectl.manifests import Wanted
from tortiectl.output import wire_of
from tortiectl.references import missing
from tortiectl.writing import ATTEMPTS, Verb, write_all

Edit = Callable[[dict[str, Any]], Any]


def edit(store: Datastore, key: ResourceKey, change: Edit, *, insist: str = "") -> Resource:
    """Change a resource. `insist` is a revision that it must have.

    Raises `NotFound`, `Conflict`, `InvalidInput` with everything that the change makes wrong.
    """
    full = f"{key.namespace}/{key.name}" if key.namespace else key.name
    called = f"{key.kind}({full})"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            record = store.get(key)
        except NotFound as error:
            raise NotFound(f"resource does not exist: {called} with error: <nil>") from error
        before = wire_of(record)
        after = change(wire_of(record))
        wanted = _checked(key, before, after, called)
        at = insist or revision_of(after) or record.revision
        problems = list(missing(store, [wanted.resource]))
        if problems:
            raise InvalidInput("\n".join(problems))
        pinned = Wanted(wanted.where, wanted.resource, at)
        outcome = write_all(store, Verb.REPLACE, [pinned])
        if not outcome.errors:
            return outcome.done[0]
        again = at == record.revision and not insist
        changed = again and _revision(store, key) not in ("", record.revision)
        if not changed or attempt == ATTEMPTS:
            raise InvalidInput(outcome.errors[0][1])
    raise Conflict(f"update conflict: {called}")


def _checked(key: ResourceKey, before: Any, after: Any, called: str) -> Wanted:
    if not isinstance(after, dict):
        raise InvalidInput(f"{called}: the change leaves no object")
    for field, now, was in (
        ("kind", after.get("kind"), key.kind.value),
        ("metadata.name", _meta(after).get("name"), key.name),
        (
            "metadata.namespace",
            _meta(after).get("namespace", ""),
            _meta(before).get("namespace", ""),
        ),
    ):
        if now != was:
            raise InvalidInput(f"{called}: {field}: cannot be changed from {was!r} to {now!r}")
    resource, problems = checked(key.kind, after)
    known = checked(key.kind, before)[1]
    fresh = [one for one in problems if one not in known]
    if fresh or resource is None:
        raise InvalidInput("\n".join(f"{called}: {one}" for one in fresh or problems))
    return Wanted(called, resource)


def _meta(wire: Any) -> dict[str, Any]:
    found = wire.get("metadata") if isinstance(wire, dict) else None
    return found if isinstance(found, dict) else {}


def _revision(store: Datastore, key: ResourceKey) -> str:
    found = store.snapshot([key]).records.get(key)
    return found.revision if found else ""
