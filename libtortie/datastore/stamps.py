"""What a store adds to a resource on its way in: `uid` and `creationTimestamp`.

Calico's own client refuses to update a resource that lacks either, so none is ever stored
without them (Calico: caller's values survive a create; an update writes back what it was given).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from libtortie.datastore.port import Value
from libtortie.model.resources import Resource
from libtortie.model.times import rfc3339


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def random_uid() -> str:
    """A new UUID v4, lower case and hyphenated."""
    return str(uuid.uuid4())


class Stamps:
    """Fills in a resource's birth marks; other values pass unchanged."""

    def __init__(
        self, now: Callable[[], datetime] = utc_now, new_uid: Callable[[], str] = random_uid
    ) -> None:
        self._now = now
        self._new_uid = new_uid

    def born(self, value: Value) -> Value:
        """A value about to be created."""
        if not isinstance(value, Resource):
            return value
        return _marked(value, self._new_uid(), rfc3339(self._now()))

    def replacing(self, value: Value, stored: Value | None) -> Value:
        """A value about to replace `stored` (None: unreadable), whose marks it inherits."""
        if not isinstance(value, Resource):
            return value
        if isinstance(stored, Resource):
            value = _marked(value, stored.metadata.uid, stored.metadata.creation_timestamp)
        return self.born(value)


def is_marked(value: Value) -> bool:
    """Whether a value needs nothing from here."""
    if not isinstance(value, Resource):
        return True
    return bool(value.metadata.uid and value.metadata.creation_timestamp)


def _marked(value: Resource, uid: str, created: str | None) -> Resource:
    metadata = value.metadata
    marks = {
        "uid": metadata.uid or uid,
        "creation_timestamp": metadata.creation_timestamp or created,
    }
    return value.model_copy(update={"metadata": metadata.model_copy(update=marks)})
