"""Resources into the datastore: looked at together, written together where the store can.

Everything is compared with what is stored before anything is written: one resource that cannot be
written, and none is. A store with transactions takes a batch whole; one without is written one by
one, and what was done before a failure is told. A resource that somebody else changes meanwhile is
looked at anew, unless its manifest insists on a revision.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from libtortie.datastore.port import Create, Datastore, Op, Record, Update
from libtortie.errors import AlreadyExists, Conflict, InvalidInput, NotFound, TortieError
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Key, Kind
from libtortie.model.resources import IPAMConfiguration, IPPool, Resource, parse_resource
from libtortie.model.times import rfc3339
from tortiectl.manifests import Wanted, called

ATTEMPTS = 20
"""Most times that a batch is decided anew after a conflict."""
BATCH = 60
"""Most resources in one transaction; etcd takes 128 operations."""
_IMMUTABLE = ("cidr", "block_size")


class Verb(StrEnum):
    """What to do with a resource that is there, or is not."""

    CREATE = "create"
    APPLY = "apply"
    REPLACE = "replace"


@dataclass(slots=True)
class Outcome:
    """What became of resources, in the order in which they were written."""

    done: list[Resource] = field(default_factory=list)
    errors: list[tuple[Resource, str]] = field(default_factory=list)


def write_all(
    store: Datastore, verb: Verb, wanted: Sequence[Wanted], *, skip_exists: bool = False
) -> Outcome:
    """Store resources; the outcome has errors for those that could not be, after the first none."""
    outcome = Outcome()
    if skip_exists:
        there = store.snapshot([one.resource.key for one in wanted])
        wanted = [one for one in wanted if one.resource.key not in there.records]
    problems = list(_refusals(store, verb, wanted))
    if problems:
        outcome.errors = problems
        return outcome
    size = BATCH if store.atomic else 1
    for start in range(0, len(wanted), size):
        batch = wanted[start : start + size]
        try:
            _write(store, verb, batch)
        except TortieError as error:
            outcome.errors = [(one.resource, str(error)) for one in batch[:1]]
            return outcome
        outcome.done += [one.resource for one in batch]
    return outcome


def _refusals(
    store: Datastore, verb: Verb, wanted: Sequence[Wanted]
) -> Iterator[tuple[Resource, str]]:
    """Why resources could not be written as things are now."""
    found = store.snapshot([one.resource.key for one in wanted])
    for one in wanted:
        why = found.broken.get(one.resource.key, "")
        if not why:
            try:
                op_of(verb, one, found.records.get(one.resource.key))
            except TortieError as error:
                why = str(error)
        if why:
            yield one.resource, why


def _write(store: Datastore, verb: Verb, batch: Sequence[Wanted]) -> None:
    """One batch. Raises what the store raises, `Conflict` after the last attempt."""
    keys: list[Key] = [one.resource.key for one in batch]
    settings = any(isinstance(one.resource, IPAMConfiguration) for one in batch)
    for attempt in range(1, ATTEMPTS + 1):
        found = store.snapshot([*keys, IPAMConfigKey()] if settings else keys)
        ops: list[Op] = []
        for one in batch:
            ops.append(op_of(verb, one, found.records.get(one.resource.key)))
            if isinstance(one.resource, IPAMConfiguration) and store.atomic:
                ops.append(_record_of(one.resource, found.records.get(IPAMConfigKey())))
        try:
            _store(store, ops)
            return
        except (Conflict, AlreadyExists, NotFound):
            if attempt == ATTEMPTS:
                raise


def _store(store: Datastore, ops: Sequence[Op]) -> None:
    """Alone without a transaction: the store's words are then about that one."""
    if len(ops) > 1:
        store.commit(ops)
        return
    match ops[0]:
        case Create(key, value):
            store.create(key, value)
        case Update(key, value, revision):
            store.update(key, value, revision)


def op_of(verb: Verb, wanted: Wanted, stored: Record | None) -> Create | Update:
    """What stores a resource. Raises `AlreadyExists`, `NotFound`, `Conflict`, `InvalidInput`."""
    resource, name = wanted.resource, wanted.name
    if stored is None:
        if verb is Verb.REPLACE:
            raise NotFound(f"resource does not exist: {name} with error: <nil>")
        if verb is Verb.CREATE and wanted.revision:
            raise InvalidInput(
                f"{name}: metadata.resourceVersion: a new resource has none: leave it out"
            )
        stamp = {
            "uid": resource.metadata.uid or str(uuid.uuid4()),
            "creation_timestamp": resource.metadata.creation_timestamp
            or rfc3339(datetime.now(UTC)),
        }
        meta = resource.metadata.model_copy(update=stamp)
        return Create(resource.key, resource.model_copy(update={"metadata": meta}))
    if verb is Verb.CREATE:
        raise AlreadyExists(f"resource already exists: {name} with error: <nil>")
    if wanted.revision and wanted.revision != stored.revision:
        raise Conflict(
            f"update conflict: {name}: it was changed since it was read at "
            f"resourceVersion {wanted.revision} (it is at {stored.revision}): read it again"
        )
    assert isinstance(stored.value, Resource)
    _require_same(resource, stored.value)
    return Update(resource.key, _succeeding(resource, stored.value), stored.revision)


def _require_same(new: Resource, old: Resource) -> None:
    """Refuse to change what cannot be changed."""
    if isinstance(new, IPPool) and isinstance(old, IPPool):
        for name in _IMMUTABLE:
            before, after = getattr(old.spec, name), getattr(new.spec, name)
            if before != after:
                shown = "blockSize" if name == "block_size" else name
                raise InvalidInput(
                    f"{called(new)}: spec.{shown} is {before} and cannot be changed (to {after}): "
                    "make another pool, and disable this one"
                )


def _succeeding(new: Resource, old: Resource) -> Resource:
    """A resource in place of another: the same object, whose status is not its writer's."""
    kept = {
        "uid": old.metadata.uid,
        "creation_timestamp": old.metadata.creation_timestamp,
        "generation": old.metadata.generation,
    }
    resource = new.model_copy(update={"metadata": new.metadata.model_copy(update=kept)})
    before, after = old.to_wire(), resource.to_wire()
    if before.get("status") and not after.get("status"):
        return parse_resource(Kind(new.kind), {**after, "status": before["status"]})
    return resource


def _record_of(resource: IPAMConfiguration, stored: Record | None) -> Create | Update:
    """What allocation reads in a store that keeps it apart from the resource."""
    spec = resource.spec
    known = stored.value if stored and isinstance(stored.value, IPAMConfig) else IPAMConfig()
    config = replace(
        known,
        strict_affinity=spec.strict_affinity,
        auto_allocate_blocks=spec.auto_allocate_blocks,
        max_blocks_per_host=spec.max_blocks_per_host,
        cooldown_seconds=spec.ip_cooldown_seconds,
    )
    if spec.kubevirt_persistence is not None:
        config = replace(config, kubevirt_persistence=Persistence(spec.kubevirt_persistence))
    if stored is None:
        return Create(IPAMConfigKey(), config)
    return Update(IPAMConfigKey(), config, stored.revision)
