"""Policies of the v1 group under the names that Calico before v3.32 gave their objects.

It kept a policy of the default tier as `default.<name>`, without a stored name. It is found, read,
replaced and deleted where it is, and stays as that release knows it; whoever renames it is Calico's
own controller, which makes the new object first. While there are both the new one is the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from libtortie.datastore.crd_names import Json, Place, metadata_of, revision_of
from libtortie.datastore.crd_shapes import ResourceShape, Shape, where_of
from libtortie.datastore.kubernetes_shelves import CrdShelf, absent, changed
from libtortie.datastore.port import Value
from libtortie.errors import AlreadyExists, InvalidInput, Malformed, NotFound, Unavailable
from libtortie.kube.raw import RawObjects
from libtortie.model.keys import Key


class PolicyShelf(CrdShelf):
    """Resources that may be under either of two names."""

    def __init__(self, objects: RawObjects, shape: ResourceShape, now: Callable[[], str]) -> None:
        super().__init__(objects, shape, now)
        self._policies = shape

    def read(self, key: Key) -> Json | None:
        """See `Shelf`. One more request where nothing has the policy's own name."""
        found = super().read(key)
        if found is None or not self._is(found, key):
            return self._former(key)
        return found

    def create(self, key: Key, value: Value) -> Json:
        """See `Shelf`. The old name counts: else there would be two policies of one name."""
        former = self._former(key)
        if former is not None:
            raise AlreadyExists(f"{where_of(self._policies.api, former)} already exists")
        return super().create(key, value)

    def delete(self, key: Key, revision: str | None) -> None:
        """See `Shelf`. Read first: which of the names it has."""
        place, found = self.shape.place(key), self.read(key)
        if found is None:
            raise absent(place)
        place = Place(place.api, str(metadata_of(found)["name"]), place.namespace)
        if revision is not None and revision != revision_of(found):
            raise changed(place, revision, revision_of(found))
        self._remove(place, version=revision or "")

    def _former(self, key: Key) -> Json | None:
        """The object under the old name, if it is this policy."""
        try:
            place = self._policies.former_place(key)
            found = self._objects.get(place.api, place.name, place.namespace)
        except (InvalidInput, NotFound):
            return None
        return found if self._is(found, key) else None

    def _is(self, found: Json, key: Key) -> bool:
        """Whether an object with one of the policy's names is it; so is one that cannot be read."""
        try:
            return self.shape.key(found) == key
        except Malformed:
            return True


def current(shape: Shape, bodies: Iterable[Json]) -> Iterable[Json]:
    """Objects of a kind without those that have been renamed and not yet been removed."""
    if not (isinstance(shape, ResourceShape) and shape.has_former_names):
        return bodies
    bodies = tuple(bodies)
    places = {_name(body) for body in bodies}
    return [body for body in bodies if not _renamed(shape, body, places)]


def require_plain_end(shape: Shape, body: Json) -> None:
    """Raise `Unavailable` ("list again") for the removal of an object with an old name: the policy
    may live on under its new one, of which a watch told before."""
    if isinstance(shape, ResourceShape) and shape.is_former(body):
        where = where_of(shape.api, body)
        raise Unavailable(f"{where} was removed or renamed: list again")


def _renamed(shape: ResourceShape, body: Json, places: Set[tuple[str, str]]) -> bool:
    """Whether there is an object with the new name too; one that cannot be read is named so."""
    try:
        return shape.is_former(body) and (_name(body)[0], shape.name_of(body)) in places
    except Malformed:
        return False


def _name(body: Json) -> tuple[str, str]:
    meta = metadata_of(body)
    return str(meta.get("namespace") or ""), str(meta.get("name") or "")
