"""Make a stored resource what it should be, whoever else writes it at the same time.

`plan` gets what is stored now and says what should be; it is asked again after every conflict, so
it must be a function of that value alone. What it leaves in place stays, unknown fields too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from libtortie.datastore.port import Check, Create, Datastore, Op, Update
from libtortie.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from libtortie.model.keys import ResourceKey
from libtortie.model.resources import Resource

T = TypeVar("T", bound=Resource)
ATTEMPTS = 20


def ensure(
    store: Datastore,
    key: ResourceKey,
    model: type[T],
    plan: Callable[[T | None], T | None],
    checks: Callable[[], tuple[Check, ...]] = tuple,
) -> bool:
    """True when something was written; None from `plan` (and an equal value) writes nothing.

    `checks` is asked before each write for what must still hold when it is made. Raises what it
    raises, `Conflict` after many conflicts, `Malformed`, and other errors of the store.
    """
    for _ in range(ATTEMPTS):
        stored: T | None = None
        revision = ""
        try:
            record = store.get(key)
        except NotFound:
            pass
        else:
            if not isinstance(record.value, model):
                raise InvalidInput(f"stored {key.kind} {key.name} is no {model.__name__}")
            stored, revision = record.value, record.revision
        wanted = plan(stored)
        if wanted is None or wanted == stored:
            return False
        write: Op = Update(key, wanted, revision) if revision else Create(key, wanted)
        try:
            store.commit((*checks(), write))
        except (Conflict, AlreadyExists, NotFound):
            continue
        return True
    raise Conflict(f"{key.kind} {key.name}: {ATTEMPTS} writes met another writer's")
