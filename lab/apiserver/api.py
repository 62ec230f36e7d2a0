"""The API's verbs over a store, without HTTP: what the server, its controllers and the tests call.

Admission hooks run before each write, outside of the store's lock: `hook(verb, resource, object,
old)` with verb create, update or delete, and resource like `pods` or
`virtualmachineinstances.kubevirt.io/status`; each returns the object to go on with or raises
`ApiError`. For a delete the object returned is ignored. For `pods/binding` and `pods/eviction` see
`subresources`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from lab.apiserver import deletion, errors, lifecycle
from lab.apiserver.errors import ApiError
from lab.apiserver.kind import Kind
from lab.apiserver.kinds import Catalogue
from lab.apiserver.lifecycle import Source
from lab.apiserver.namespaces import check_namespace, delete_namespace, finish_namespace
from lab.apiserver.pages import Pages, decode_token, encode_token
from lab.apiserver.patch import json_patch
from lab.apiserver.schema import FieldValidation, conform
from lab.apiserver.selectors import Test, field_test, label_test
from lab.apiserver.store import Json, Store
from lab.apiserver.strategic import strategic_merge
from libtortie.patches import merge_patch

Hook = Callable[[str, str, Json, Json | None], Json]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
INITIAL_NAMESPACES = ("default", "kube-system", "kube-public")
_ATTEMPTS = 8


def real_source() -> Source:
    """The real clock and real randomness."""
    return Source(lambda: datetime.now(UTC), lambda: str(uuid.uuid4()), random.choice)


class Api:
    """Verbs. Every method raises `ApiError` for what is not a success. Thread-safe."""

    def __init__(
        self,
        store: Store | None = None,
        catalogue: Catalogue | None = None,
        *,
        source: Source | None = None,
        namespaces_must_exist: bool = True,
    ) -> None:
        self.store = store or Store()
        self.catalogue = catalogue or Catalogue()
        self.hooks: list[Hook] = []
        self._source = source or real_source()
        self._namespaces_must_exist = namespaces_must_exist
        self._pages = Pages()

    def bootstrap(self) -> None:
        """Create the namespaces every cluster has."""
        found = tuple({"metadata": {"name": name}} for name in INITIAL_NAMESPACES)
        self.bootstrap_kind("namespaces", found)

    def bootstrap_kind(self, plural: str, bodies: tuple[Json, ...]) -> None:
        """Create those cluster-wide objects of a kind that do not exist."""
        kind = next(kind for kind in self.catalogue.kinds if kind.plural == plural)
        for body in bodies:
            if self.store.get(kind.resource, ("", body["metadata"]["name"])) is None:
                self.create(kind, "", body)

    def kind(self, group: str, version: str, plural: str) -> Kind:
        """A served kind. Raises 404."""
        found = self.catalogue.find(group, version, plural)
        if found is None:
            raise errors.not_served()
        return found

    # --- reading -------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str, *, subresource: str = "") -> Json:
        """One object; its status subresource is the same object."""
        self._check_subresource(kind, subresource)
        found = self.store.get(kind.resource, (namespace, name))
        if found is None:
            raise errors.not_found(kind.resource, name)
        return found

    def list(
        self,
        kind: Kind,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continuation: str = "",
    ) -> Json:
        """A list object; pages of one list show one state."""
        test = self.test(kind, namespace, label_selector, field_selector)
        start = 0
        snapshot = ""
        if continuation:
            snapshot, start = decode_token(continuation)
            found, version = self._pages.resume(snapshot)
        else:
            everything, version = self.store.list(kind.resource, namespace)
            found = tuple(body for body in everything if test(body))
        page = found[start : start + limit] if limit else found[start:]
        metadata: Json = {"resourceVersion": str(version)}
        left = len(found) - start - len(page)
        if left > 0:
            snapshot = snapshot or self._pages.hold(found, version)
            metadata["continue"] = encode_token(snapshot, start + limit)
            metadata["remainingItemCount"] = left
        return {
            "apiVersion": kind.api_version,
            "kind": kind.list_kind,
            "metadata": metadata,
            "items": list_of(page),
        }

    def forget_pages(self) -> None:
        """Make every continue token answer 410, as a compaction does."""
        self._pages.forget()

    @staticmethod
    def test(kind: Kind, namespace: str, label_selector: str, field_selector: str) -> Test:
        """Whether an object is in a list or watch with these selectors. Raises 400."""
        labels = label_test(label_selector)
        fields = field_test(field_selector, kind.selectable)

        def matches(body: Mapping[str, Any]) -> bool:
            inside = not namespace or body["metadata"].get("namespace") == namespace
            return inside and labels(body) and fields(body)

        return matches

    # --- writing -------------------------------------------------------------------------------

    def create(
        self,
        kind: Kind,
        namespace: str,
        body: Any,
        *,
        dry_run: bool = False,
        fields: FieldValidation | None = None,
    ) -> Json:
        """Create an object."""
        checked = lifecycle.checked(kind, namespace, body)
        generated = not checked["metadata"].get("name")
        for attempt in range(_ATTEMPTS):
            new = lifecycle.created(kind, checked, self._source)
            if kind.namespaced and self._namespaces_must_exist:
                check_namespace(self, kind, namespace, new["metadata"]["name"])
            new = conform(kind, new, None, fields)
            new = self.admit("create", kind.resource, new, None)
            lifecycle.validate(kind, new)
            name = new["metadata"]["name"]
            if self.store.get(kind.resource, (namespace, name)) is not None:
                if generated and attempt < _ATTEMPTS - 1:
                    continue
                raise errors.already_exists(kind.resource, name)
            if dry_run:
                return new
            try:
                return self.store.put(kind.resource, (namespace, name), new, expected=None)
            except ApiError:
                if not generated:
                    raise errors.already_exists(kind.resource, name) from None
        raise errors.already_exists(kind.resource, str(checked["metadata"].get("generateName")))

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Any,
        *,
        subresource: str = "",
        dry_run: bool = False,
        fields: FieldValidation | None = None,
    ) -> Json:
        """Replace an object or its status."""
        self._check_subresource(kind, subresource)
        new = lifecycle.checked(kind, namespace, body)
        guarded = bool(new["metadata"].get("resourceVersion"))
        if not guarded and not kind.builtin:
            why = "Invalid value: 0x0: must be specified for an update"
            raise errors.invalid(kind.resource, kind.kind, name, "metadata.resourceVersion", why)

        def changed(old: Json) -> Json:
            return self._updated(kind, old, new, subresource, fields)

        return self.change(kind, namespace, name, changed, dry_run=dry_run)

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: Any,
        *,
        content_type: str = MERGE,
        subresource: str = "",
        dry_run: bool = False,
        fields: FieldValidation | None = None,
    ) -> Json:
        """Patch an object or its status."""
        self._check_subresource(kind, subresource)
        known = {MERGE: merge_patch, JSON_PATCH: json_patch}
        if kind.builtin:
            known[STRATEGIC] = strategic_merge
        apply = known.get(content_type)
        if apply is None:
            raise errors.unknown_format(content_type, known)
        if content_type != JSON_PATCH and not isinstance(body, Mapping):
            raise errors.bad_request("the patch is not an object")

        def changed(old: Json) -> Json:
            new = lifecycle.checked(kind, namespace, apply(old, body))
            return self._updated(kind, old, new, subresource, fields)

        return self.change(kind, namespace, name, changed, dry_run=dry_run)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        admission: bool = True,
    ) -> Json:
        """Delete an object, or begin to; returns a Status when it is gone, else the object."""
        options = options or {}
        for _ in range(_ATTEMPTS):
            old = self.get(kind, namespace, name)
            self._check_preconditions(kind, old, options)
            if admission:
                self.admit("delete", kind.resource, old, old)
            marked = deletion.deleting(kind, old, options, self._source.now())
            if dry_run:
                return marked or _gone(kind, old)
            try:
                if kind.resource == "namespaces":
                    left = delete_namespace(self, old, self._source.now())
                    return left or _gone(kind, old)
                if marked is None:
                    self._remove(kind, namespace, name, old)
                    return _gone(kind, old)
                if marked == old:
                    return old
                version = old["metadata"]["resourceVersion"]
                return self.store.put(kind.resource, (namespace, name), marked, expected=version)
            except ApiError as error:
                if error.reason != "Conflict":
                    raise
        raise errors.stale(kind.resource, name)

    # --- inside --------------------------------------------------------------------------------

    def change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        *,
        dry_run: bool = False,
    ) -> Json:
        """Read, change, write; again when another writer came between. `change` has the last
        word on what is written."""
        for attempt in range(_ATTEMPTS):
            old = self.get(kind, namespace, name)
            new = change(old)
            if new == old or dry_run:
                return new  # as Kubernetes: a write that changes nothing is none
            version = old["metadata"]["resourceVersion"]
            try:
                if deletion.finished(new):
                    return self._remove(kind, namespace, name, old, new)
                return self.store.put(kind.resource, (namespace, name), new, expected=version)
            except ApiError as error:
                if error.reason != "Conflict" or attempt == _ATTEMPTS - 1:
                    raise
        raise errors.stale(kind.resource, name)

    def _updated(
        self, kind: Kind, old: Json, new: Json, subresource: str, fields: FieldValidation | None
    ) -> Json:
        """What becomes of an object that somebody wants to change into `new`, or its status."""
        new = conform(kind, lifecycle.updated(kind, old, new, subresource), old, fields)
        resource = f"{kind.resource}/{subresource}" if subresource else kind.resource
        new = self.admit("update", resource, new, old)
        lifecycle.validate(kind, new)
        return new

    def _remove(
        self, kind: Kind, namespace: str, name: str, old: Json, last: Json | None = None
    ) -> Json:
        version = old["metadata"]["resourceVersion"]
        gone = self.store.remove(kind.resource, (namespace, name), expected=version, last=last)
        if namespace:
            finish_namespace(self, namespace)
        return gone

    def admit(self, verb: str, resource: str, body: Json, old: Json | None) -> Json:
        """What the hooks make of a write. Raises what they raise."""
        for hook in list_of(self.hooks):
            body = hook(verb, resource, body, old)
        return body

    @staticmethod
    def _check_subresource(kind: Kind, subresource: str) -> None:
        if subresource and not (subresource == "status" and kind.status):
            raise errors.not_served()

    @staticmethod
    def _check_preconditions(kind: Kind, old: Json, options: Mapping[str, Any]) -> None:
        wanted = options.get("preconditions") or {}
        meta = old["metadata"]
        if wanted.get("uid") and wanted["uid"] != meta["uid"]:
            raise lifecycle.uid_conflict(kind, meta["name"], wanted["uid"], meta["uid"])
        version = wanted.get("resourceVersion")
        if version and version != meta["resourceVersion"]:
            why = (
                f"Precondition failed: ResourceVersion in precondition: {version}, "
                f"ResourceVersion in object meta: {meta['resourceVersion']}"
            )
            raise errors.conflict(kind.resource, meta["name"], why)


def list_of(items: Any) -> list[Any]:
    """A new list (inside `Api` the name `list` is a verb)."""
    return [*items]


def _gone(kind: Kind, old: Json) -> Json:
    meta = old["metadata"]
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": meta["name"], "kind": kind.plural, "uid": meta["uid"]},
    }
