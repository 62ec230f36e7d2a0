"""Profile `projectcalico-default-allow`: always read, never stored, as Calico's clients have it.

A view over a datastore for those who show or edit resources. Nothing else of the store changes;
the profile has no events, since it never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from libtortie.datastore.forwarding import ForwardingDatastore
from libtortie.datastore.port import (
    Listing,
    Op,
    Record,
    Snapshot,
    Unchanged,
    Value,
)
from libtortie.errors import InvalidInput
from libtortie.model.keys import Key, Kind, ResourceKey, Resources, Scope, path_of
from libtortie.model.resources import parse_resource

KEY = ResourceKey(Kind.PROFILE, "projectcalico-default-allow")
ALLOW = {"action": "Allow"}
RECORD = Record(
    KEY,
    parse_resource(
        Kind.PROFILE,
        {
            "kind": Kind.PROFILE.value,
            "metadata": {"name": KEY.name},
            "spec": {"ingress": [ALLOW], "egress": [ALLOW]},
        },
    ),
    "1",
)


class WithDefaultProfile(ForwardingDatastore):
    """A datastore in which the profile is."""

    __slots__ = ()

    def get(self, key: Key) -> Record:
        """See `Datastore`."""
        return RECORD if key == KEY else self.inner.get(key)

    def list(self, scope: Scope) -> Listing:
        """See `Datastore`."""
        return _with_profile(scope, self.inner.list(scope))

    def parts(self, scope: Scope) -> Iterator[Listing]:
        """See `Datastore`."""
        return iter([self.list(scope)]) if _holds(scope) else self.inner.parts(scope)

    def names(self, scope: Scope) -> tuple[Key, ...]:
        """See `Datastore`."""
        found = self.inner.names(scope)
        if not _holds(scope) or KEY in found:
            return found
        return tuple(sorted((*found, KEY), key=path_of))

    def snapshot(self, keys: Sequence[Key], scopes: Sequence[Scope] = ()) -> Snapshot:
        """See `Datastore`."""
        found = self.inner.snapshot([key for key in keys if key != KEY], scopes)
        records = dict(found.records)
        if KEY in keys:
            records[KEY] = RECORD
        listings = {scope: _with_profile(scope, one) for scope, one in found.listings.items()}
        return replace(found, records=records, listings=listings)

    def create(self, key: Key, value: Value) -> Record:
        """See `Datastore`. Raises `InvalidInput` for the profile."""
        _refuse("Create", key)
        return self.inner.create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Record:
        """See `Datastore`. Raises `InvalidInput` for the profile."""
        _refuse("Update", key)
        return self.inner.update(key, value, revision)

    def delete(self, key: Key, revision: str | None = None) -> None:
        """See `Datastore`. Raises `InvalidInput` for the profile."""
        _refuse("Delete", key)
        self.inner.delete(key, revision)

    def commit(self, ops: Sequence[Op]) -> tuple[Record | None, ...]:
        """See `Datastore`. Raises `InvalidInput` for the profile."""
        for op in ops:
            if not isinstance(op, Unchanged):
                _refuse(type(op).__name__, op.key)
        return self.inner.commit(ops)


def _holds(scope: Scope) -> bool:
    return scope in (KEY, Resources(Kind.PROFILE))


def _with_profile(scope: Scope, listing: Listing) -> Listing:
    if not _holds(scope):
        return listing
    others = [record for record in listing.records if record.key != KEY]
    records = sorted([*others, RECORD], key=lambda record: path_of(record.key))
    return replace(listing, records=tuple(records))


def _refuse(verb: str, key: Key) -> None:
    if key == KEY:
        raise InvalidInput(
            f"operation {verb} is not supported on {KEY.kind}({KEY.name}): "
            "it always exists, and allows everything"
        )
