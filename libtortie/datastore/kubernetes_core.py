"""One value at a time in Kubernetes, where a value is a view of an object that others own.

Nodes and pods are the kubelet's, namespaces and service accounts their users': we write
annotations, through the status subresource and by compare-and-swap, and make or remove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from libtortie.datastore.crd_endpoint import EndpointShape, pod_uid, recorded, removed
from libtortie.datastore.crd_names import Json, Place, metadata_of, revision_of
from libtortie.datastore.crd_node import NodeShape, annotations_of
from libtortie.datastore.crd_profile import ProfileShape
from libtortie.datastore.kubernetes_shelves import ATTEMPTS, absent, fetch
from libtortie.datastore.port import Value
from libtortie.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    Unavailable,
    first_line,
)
from libtortie.kube.raw import RawObjects
from libtortie.model.keys import Key

_UID = "UID in precondition"
"""In the API server's words for an object of the same name that is another."""


class NodeShelf:
    """Calico's Node on the core Node."""

    def __init__(self, objects: RawObjects) -> None:
        self._objects = objects
        self.shape = NodeShape()

    def read(self, key: Key) -> Json | None:
        """See `Shelf`."""
        return fetch(self._objects, self.shape, key)

    def check(self, key: Key, value: Value) -> None:
        """See `Shelf`."""
        annotations_of(key, value, {})

    def create(self, key: Key, value: Value) -> Json:
        """Always an error: the node is there, or `Unavailable` until a kubelet registers it."""
        place = self.shape.place(key)
        if self.read(key) is not None:
            raise AlreadyExists(f"{place} already exists")
        raise Unavailable(
            f"{place} does not exist: in the Kubernetes datastore a Node is what its kubelet "
            "registers; is the node's name the kubelet's?"
        )

    def update(self, key: Key, value: Value, revision: str) -> Json:
        """See `Shelf`."""
        place = self.shape.place(key)
        old = self.read(key)
        if old is None:
            raise absent(place)
        annotations = annotations_of(key, value, old)
        return _annotate(self._objects, place, annotations, revision=revision)

    def delete(self, key: Key, revision: str | None) -> None:
        """Refused: `InvalidInput`."""
        place = self.shape.place(key)
        raise InvalidInput(f"{place}: a Node is Kubernetes': `kubectl delete node {place.name}`")


class EndpointShelf:
    """WorkloadEndpoints on pods."""

    def __init__(self, objects: RawObjects) -> None:
        self._objects = objects
        self.shape = EndpointShape()

    def read(self, key: Key) -> Json | None:
        """See `Shelf`. A pod without an endpoint has none to read."""
        found = fetch(self._objects, self.shape, key)
        return found if found is not None and self.shape.key(found) == key else None

    def check(self, key: Key, value: Value) -> None:
        """See `Shelf`."""
        self.shape.place(key)
        recorded(key, value)

    def create(self, key: Key, value: Value) -> Json:
        """See `Shelf`. The pod has to be there, of the UID that the value names."""
        place, annotations = self.shape.place(key), recorded(key, value)
        for attempt in range(ATTEMPTS):
            pod = fetch(self._objects, self.shape, key)
            if pod is None:
                raise absent(place)
            if self.shape.key(pod) == key:
                raise AlreadyExists(f"{place} has its endpoint already")
            try:
                made = _annotate(
                    self._objects,
                    place,
                    annotations,
                    revision=revision_of(pod),
                    uid=pod_uid(value),
                )
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue  # the kubelet wrote something else of the pod
            if self.shape.key(made) != key:
                raise NotFound(f"{place} has ended, is another node's or has the node's network")
            return made
        raise AssertionError("every attempt returns, raises or goes on to the next")

    def update(self, key: Key, value: Value, revision: str) -> Json:
        """See `Shelf`."""
        place, annotations = self.shape.place(key), recorded(key, value)
        if self.read(key) is None:
            raise absent(place)
        return _annotate(self._objects, place, annotations, revision=revision, uid=pod_uid(value))

    def delete(self, key: Key, revision: str | None) -> None:
        """See `Shelf`. The pod stays; it has no address of ours any more."""
        place = self.shape.place(key)
        pod = self.read(key)
        if pod is None:
            raise absent(place)
        uid = str(metadata_of(pod).get("uid") or "")
        _annotate(self._objects, place, removed(), revision=revision or revision_of(pod), uid=uid)


class ProfileShelf:
    """Profiles, which are namespaces and service accounts: read-only."""

    def __init__(self, objects: RawObjects) -> None:
        self._objects = objects
        self.shape = ProfileShape()

    def read(self, key: Key) -> Json | None:
        """See `Shelf`."""
        return fetch(self._objects, self.shape, key)

    def check(self, key: Key, value: Value) -> None:
        """Refused: `InvalidInput`."""
        raise self._refusal(key)

    def create(self, key: Key, value: Value) -> Json:
        """Refused: `InvalidInput`."""
        raise self._refusal(key)

    def update(self, key: Key, value: Value, revision: str) -> Json:
        """Refused: `InvalidInput`."""
        raise self._refusal(key)

    def delete(self, key: Key, revision: str | None) -> None:
        """Refused: `InvalidInput`."""
        raise self._refusal(key)

    @staticmethod
    def _refusal(key: Key) -> InvalidInput:
        return InvalidInput(
            f"{key}: in the Kubernetes datastore profiles are namespaces and service accounts: "
            "change their labels"
        )


def _annotate(
    objects: RawObjects,
    place: Place,
    annotations: Mapping[str, str | None],
    *,
    revision: str,
    uid: str = "",
) -> Json:
    """Change annotations of the object that has this resourceVersion and UID."""
    meta = {"annotations": dict(annotations), "resourceVersion": revision}
    if uid:
        meta["uid"] = uid
    try:
        return objects.patch_status(place.api, place.name, place.namespace, {"metadata": meta})
    except NotFound as error:
        raise absent(place) from error
    except Conflict as error:
        if _UID in str(error):
            raise NotFound(f"{place}: the one that was meant is gone") from error
        raise Conflict(f"{place} changed: {first_line(error)}") from error
