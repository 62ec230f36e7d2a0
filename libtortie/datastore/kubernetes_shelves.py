"""One value at a time in Kubernetes, where a value is an object of a CRD.

A shelf reads, creates, replaces and deletes by compare-and-swap on the resourceVersion. IPAM's
objects go in two steps, as Calico's do: first `deleted` is written, then the object is removed.
Whoever reads an object that is marked finishes its removal, so that a writer killed between the
two leaves nothing behind. A marked object is never written to again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from libtortie.datastore.crd_ipam import is_deleted
from libtortie.datastore.crd_ipam_shapes import AffinityShape
from libtortie.datastore.crd_names import Group, Json, Place, metadata_of, revision_of
from libtortie.datastore.crd_shapes import CrdShape, Shape
from libtortie.datastore.port import Value
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    TortieError,
    first_line,
)
from libtortie.kube.raw import RawObjects, copy_of
from libtortie.model.keys import Key

LOG = logging.getLogger(__name__)
SECOND_OWNER = "alternateOwnerAttrs"
"""Of a block's attributes: the target of a migration."""
ATTEMPTS = 5
"""Of a deletion that names no revision, each beginning with a new look."""


class Shelf(Protocol):
    """Where values of one kind are kept."""

    @property
    def shape(self) -> Shape:
        """How they look."""
        ...

    def read(self, key: Key) -> Json | None:
        """The object of a value; None where there is none. Raises `Malformed`."""
        ...

    def check(self, key: Key, value: Value) -> None:
        """Raise `InvalidInput` for a value that cannot be stored; nothing is sent."""
        ...

    def create(self, key: Key, value: Value) -> Json:
        """Store a new value; the object as it is then. Raises `AlreadyExists`."""
        ...

    def update(self, key: Key, value: Value, revision: str) -> Json:
        """Replace a value; the object as it is then. Raises `Conflict`, `NotFound`."""
        ...

    def delete(self, key: Key, revision: str | None) -> None:
        """Remove a value. Raises `NotFound`, `Conflict`."""
        ...


def absent(place: Place) -> NotFound:
    """The error of a value that is not there."""
    return NotFound(f"{place} does not exist")


def changed(place: Place, expected: str, found: str) -> Conflict:
    """The error of a value that is at another revision."""
    return Conflict(f"{place} changed: expected resourceVersion {expected}, found {found}")


def fetch(objects: RawObjects, shape: Shape, key: Key) -> Json | None:
    """The object at a value's place; None also where no object can have that name."""
    try:
        place = shape.place(key)
    except InvalidInput:
        return None
    try:
        return objects.get(place.api, place.name, place.namespace)
    except NotFound:
        return None


class CrdShelf:
    """Resources: user's data, replaced with care for what only the object has."""

    def __init__(self, objects: RawObjects, shape: CrdShape, now: Callable[[], str]) -> None:
        self._objects = objects
        self._shape = shape
        self._now = now

    @property
    def shape(self) -> CrdShape:
        """See `Shelf`."""
        return self._shape

    def read(self, key: Key) -> Json | None:
        """See `Shelf`."""
        return fetch(self._objects, self._shape, key)

    def check(self, key: Key, value: Value) -> None:
        """See `Shelf`."""
        self._shape.body(key, value, None, self._now())

    def create(self, key: Key, value: Value) -> Json:
        """See `Shelf`."""
        place = self._shape.place(key)
        body = self._shape.body(key, value, None, self._now())
        try:
            return self._objects.create(place.api, body)
        except AlreadyExists as error:
            raise AlreadyExists(f"{place} already exists") from error

    def update(self, key: Key, value: Value, revision: str) -> Json:
        """See `Shelf`. Read first: marks, finalizers and foreign metadata stay."""
        place = self._shape.place(key)
        old = self.read(key)
        if old is None:
            raise absent(place)
        if revision_of(old) != revision:
            raise changed(place, revision, revision_of(old))
        return self._replace(key, value, revision, old)

    def delete(self, key: Key, revision: str | None) -> None:
        """See `Shelf`. An object with finalizers stays until they are gone."""
        place = self._shape.place(key)
        self._remove(place, version=_checked(place, revision) if revision is not None else "")

    def _replace(self, key: Key, value: Value, revision: str, old: Json | None) -> Json:
        place = self._shape.place(key)
        body = self._shape.body(key, value, old, self._now())
        body["metadata"]["resourceVersion"] = _checked(place, revision)
        return self._put(place, body)

    def _put(self, place: Place, body: Json) -> Json:
        try:
            return self._objects.update(place.api, body)
        except NotFound as error:
            raise absent(place) from error
        except Conflict as error:
            raise Conflict(f"{place} changed: {first_line(error)}") from error

    def _remove(self, place: Place, *, uid: str = "", version: str = "") -> None:
        try:
            self._objects.delete(place.api, place.name, place.namespace, uid=uid, version=version)
        except NotFound as error:
            raise absent(place) from error
        except Conflict as error:
            raise Conflict(f"{place} changed: {first_line(error)}") from error


class IpamShelf(CrdShelf):
    """Blocks, affinities and handles: rebuilt on each write, deleted in two steps."""

    def read(self, key: Key) -> Json | None:
        """See `Shelf`. Finishes the removal of an object that is marked; it is not there."""
        found = super().read(key)
        if found is None or not _is_marked(found):
            return found
        self._finish(self.shape.place(key), found)
        return None

    def create(self, key: Key, value: Value) -> Json:
        """See `Shelf`. An object that is marked is in nobody's way."""
        try:
            return super().create(key, value)
        except AlreadyExists:
            if self.read(key) is not None:
                raise
        return super().create(key, value)

    def update(self, key: Key, value: Value, revision: str) -> Json:
        """See `Shelf`; one round trip. What a list showed as marked is not written to."""
        if getattr(value, "deleted", False):
            place = self.shape.place(key)
            self.read(key)
            raise Conflict(f"{place} is being deleted: read again")
        made = self._replace(key, value, revision, None)
        if metadata_of(made).get("deletionTimestamp"):
            # Somebody had deleted it and a finalizer held it. As Calico's, a rewrite has none:
            # the server removed the object with what was just written.
            raise Conflict(f"{self.shape.place(key)} was being deleted, and is gone: read again")
        return made

    def _put(self, place: Place, body: Json) -> Json:
        """Raises `InvalidInput` when the server has dropped the second owner of an address: the
        next write would take the VM's address for nobody's but its first pod's."""
        made = super()._put(place, body)
        if _second_owners(made) < _second_owners(body):
            raise InvalidInput(
                f"{place}: the API server does not keep {SECOND_OWNER}: its CRD is older than"
                " Calico v3.32's; apply a newer one (conf/crds), or do not migrate VMs"
            )
        return made

    def delete(self, key: Key, revision: str | None) -> None:
        """See `Shelf`: mark it by compare-and-swap, then remove what was marked."""
        for attempt in range(ATTEMPTS):
            try:
                self._delete(key, revision)
                return
            except Conflict:
                if revision is not None or attempt == ATTEMPTS - 1:
                    raise

    def _delete(self, key: Key, revision: str | None) -> None:
        place = self.shape.place(key)
        found = fetch(self._objects, self.shape, key)
        if found is None:
            raise absent(place)
        at = revision_of(found)
        if _is_marked(found):
            self._finish(place, found)
            if revision == at:
                return
            raise absent(place)
        if revision is not None and revision != at:
            raise changed(place, revision, at)
        with contextlib.suppress(InvalidInput):  # no spec that the server takes: it goes as it is
            found = self._put(place, self._marked(found))
        try:
            self._remove(place, uid=_uid(found), version=revision_of(found))
        except NotFound:
            return  # a reader saw the mark and was faster

    def _marked(self, body: Json) -> Json:
        """The object with its mark: as it is otherwise, what we do not know of it too."""
        marked = copy_of(body)
        shape = self.shape
        as_text = isinstance(shape, AffinityShape) and shape.group is Group.V1
        if isinstance(marked.get("spec"), dict):
            marked["spec"]["deleted"] = "true" if as_text else True
        return marked

    def _finish(self, place: Place, found: Json) -> None:
        """Remove a marked object. Who may not, or cannot now, leaves it to the next reader."""
        try:
            self._remove(place, uid=_uid(found), version=revision_of(found))
        except NotFound:
            return
        except TortieError as error:
            LOG.warning("the removal of %s stays unfinished: %s", place, first_line(error))


def _is_marked(body: Json) -> bool:
    spec = body.get("spec")
    return isinstance(spec, dict) and is_deleted(spec)


def _uid(body: Json) -> str:
    return str(metadata_of(body).get("uid") or "")


def _checked(place: Place, revision: str) -> str:
    """A resourceVersion that the server would take. Raises `Conflict` for another's."""
    if not (revision.isascii() and revision.isdecimal()):
        raise Conflict(f"{place}: {revision!r} is no resourceVersion: read again")
    return revision


def _second_owners(body: Json) -> int:
    """How many attributes of a block have one; 0 of what is no block."""
    spec = body.get("spec")
    attributes = spec.get("attributes") if isinstance(spec, dict) else None
    return sum(bool(one.get(SECOND_OWNER)) for one in attributes or () if isinstance(one, dict))
