"""CustomResourceDefinitions of the groups that are withheld: their kinds are served once defined.

A group that `Catalogue.hide` withholds (`--without`) is as one whose CRDs are not installed: each
of its kinds is served from the moment its definition is created, in the versions that it says are
served, and no more once that is deleted. As in a real cluster the kind's objects go then, too, but
whatever their finalizers. Definitions of other groups mean nothing: their kinds are served anyway.
"""

from __future__ import annotations

from lab.apiserver.errors import ApiError, Json
from lab.apiserver.kinds import Catalogue
from lab.apiserver.store import Store

RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"


class Definitions:
    """The hook of the API that follows them (`lab.apiserver.api`)."""

    def __init__(self, catalogue: Catalogue, store: Store) -> None:
        self._catalogue, self._store = catalogue, store

    def __call__(self, verb: str, resource: str, body: Json, old: Json | None) -> Json:
        """See the module. Raises 422 for a definition that names no kind."""
        if resource != RESOURCE:
            return body
        group, plural, versions = _place(body if old is None or verb != "delete" else old)
        if verb == "delete":
            self._catalogue.define(group, plural, ())
            self._remove_all(f"{plural}.{group}")
        else:
            self._catalogue.define(group, plural, versions)
        self._store.wake()
        return body

    def _remove_all(self, resource: str) -> None:
        if not self._catalogue.withholds(resource.partition(".")[2]):
            return
        for body in self._store.list(resource)[0]:
            meta = body["metadata"]
            self._store.remove(
                resource,
                (meta.get("namespace", ""), meta["name"]),
                expected=meta["resourceVersion"],
            )


def _place(definition: Json) -> tuple[str, str, tuple[str, ...]]:
    try:
        spec = definition["spec"]
        versions = tuple(str(one["name"]) for one in spec["versions"] if one["served"])
        return str(spec["group"]), str(spec["names"]["plural"]), versions
    except (KeyError, TypeError) as error:
        raise ApiError(
            422, "Invalid", f"spec: a CustomResourceDefinition has no {error}"
        ) from error
