"""The API's verbs over a store, without HTTP: what the server, its controllers and the tests call.

Admission hooks run before each write, outside of the store's lock: `hook(verb, resource, object,
old)` with verb create, update or delete, and resource like `pods` or
`virtualmachineinstances.kubevirt.io/status`; each returns the object to go on with or raises
`ApiError`. For a delete the object returned is ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import random
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from lab.apiserver import errors, lifecycle
from lab.apiserver.errors import ApiError
from lab.apiserver.kinds import Catalogue, Kind
from lab.apiserver.lifecycle import Source
from lab.apiserver.patch import json_patch, merge_patch
from lab.apiserver.selectors import Test, field_test, label_test
from lab.apiserver.store import Json, Store
from lab.apiserver.strategic import strategic_merge

Hook = Callable[[str, str, Json, Json | None], Json]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
INITIAL_NAMESPACES = ("default", "kube-system", "kube-public")
_ATTEMPTS = 8
_SNAPSHOTS = 32


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
        self._snapshots: OrderedDict[str, tuple[tuple[Json, ...], int]] = OrderedDict()
        self._snapshots_lock = threading.Lock()

    def bootstrap(self) -> None:
        """Create the namespaces every cluster has."""
        kind = self.kind("", "v1", "namespaces")
        for name in INITIAL_NAMESPACES:
            if self.store.get(kind.resource, ("", name)) is None:
                self.create(kind, "", {"metadata": {"name": name}})

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
            snapshot, start = _decode_token(continuation)
            with self._snapshots_lock:
                held = self._snapshots.get(snapshot)
            if held is None:
                raise errors.expired("The provided continue parameter is too old")
            found, version = held
        else:
            everything, version = self.store.list(kind.resource, namespace)
            found = tuple(body for body in everything if test(body))
        page = found[start : start + limit] if limit else found[start:]
        metadata: Json = {"resourceVersion": str(version)}
        left = len(found) - start - len(page)
        if left > 0:
            metadata["continue"] = _encode_token(
                snapshot or self._hold(found, version), start + limit
            )
            metadata["remainingItemCount"] = left
        return {
            "apiVersion": kind.api_version,
            "kind": kind.list_kind,
            "metadata": metadata,
            "items": list_of(page),
        }

    def forget_pages(self) -> None:
        """Make every continue token answer 410, as a compaction does."""
        with self._snapshots_lock:
            self._snapshots.clear()

    def _hold(self, found: tuple[Json, ...], version: int) -> str:
        token = uuid.uuid4().hex
        with self._snapshots_lock:
            self._snapshots[token] = (found, version)
            while len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)
        return token

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

    def create(self, kind: Kind, namespace: str, body: Any, *, dry_run: bool = False) -> Json:
        """Create an object."""
        checked = lifecycle.checked(kind, namespace, body)
        generated = not checked["metadata"].get("name")
        for attempt in range(_ATTEMPTS):
            new = lifecycle.created(kind, checked, self._source)
            self._check_namespace(kind, namespace, new["metadata"]["name"])
            new = self._admit("create", kind.resource, new, None)
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
    ) -> Json:
        """Replace an object or its status."""
        self._check_subresource(kind, subresource)
        new = lifecycle.checked(kind, namespace, body)
        guarded = bool(new["metadata"].get("resourceVersion"))
        if not guarded and not kind.builtin:
            why = "Invalid value: 0x0: must be specified for an update"
            raise errors.invalid(kind.resource, kind.kind, name, "metadata.resourceVersion", why)
        return self._change(kind, namespace, name, lambda _: new, subresource, dry_run=dry_run)

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
            return lifecycle.checked(kind, namespace, apply(old, body))

        return self._change(kind, namespace, name, changed, subresource, dry_run=dry_run)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
    ) -> Json:
        """Delete an object, or begin to; returns a Status when it is gone, else the object."""
        options = options or {}
        for _ in range(_ATTEMPTS):
            old = self.get(kind, namespace, name)
            self._check_preconditions(kind, old, options)
            self._admit("delete", kind.resource, old, old)
            marked = lifecycle.deleting(kind, old, options, self._source.now())
            if kind.resource == "namespaces" and not dry_run:
                return self._delete_namespace(kind, old)
            if dry_run:
                return marked or _gone(kind, old)
            try:
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

    def _change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        subresource: str,
        *,
        dry_run: bool,
    ) -> Json:
        """Read, change, admit, write; again when another writer came between."""
        for attempt in range(_ATTEMPTS):
            old = self.get(kind, namespace, name)
            new = lifecycle.updated(kind, old, change(old), subresource)
            resource = f"{kind.resource}/{subresource}" if subresource else kind.resource
            new = self._admit("update", resource, new, old)
            lifecycle.validate(kind, new)
            if new == old or dry_run:
                return new  # as Kubernetes: a write that changes nothing is none
            version = old["metadata"]["resourceVersion"]
            try:
                if lifecycle.finished(new):
                    return self._remove(kind, namespace, name, old, new)
                return self.store.put(kind.resource, (namespace, name), new, expected=version)
            except ApiError as error:
                if error.reason != "Conflict" or attempt == _ATTEMPTS - 1:
                    raise
        raise errors.stale(kind.resource, name)

    def _remove(
        self, kind: Kind, namespace: str, name: str, old: Json, last: Json | None = None
    ) -> Json:
        version = old["metadata"]["resourceVersion"]
        gone = self.store.remove(kind.resource, (namespace, name), expected=version, last=last)
        if namespace:
            self._finish_namespace(namespace)
        return gone

    def _admit(self, verb: str, resource: str, body: Json, old: Json | None) -> Json:
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

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        """The namespace of a new object exists and is not being deleted."""
        if not kind.namespaced or not self._namespaces_must_exist:
            return
        found = self.store.get("namespaces", ("", namespace))
        if found is None:
            raise errors.not_found("namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            text = (
                f'{kind.resource} "{name}" is forbidden: unable to create new content in '
                f"namespace {namespace} because it is being terminated"
            )
            raise ApiError(403, "Forbidden", text)

    def _delete_namespace(self, kind: Kind, old: Json) -> Json:
        """Mark it, delete what is in it; it goes with the last object inside."""
        name = old["metadata"]["name"]
        if not old["metadata"].get("deletionTimestamp"):
            moment = lifecycle.timestamp(self._source.now())
            marked = {
                **old,
                "metadata": {**old["metadata"], "deletionTimestamp": moment},
                "status": {**(old.get("status") or {}), "phase": "Terminating"},
            }
            version = old["metadata"]["resourceVersion"]
            old = self.store.put(kind.resource, ("", name), marked, expected=version)
        for inner in self.catalogue.kinds:
            if inner.namespaced:
                for body in self.store.list(inner.resource, name)[0]:
                    try:
                        self.delete(inner, name, body["metadata"]["name"])
                    except ApiError as error:
                        if error.code != 404:
                            raise
        self._finish_namespace(name)
        left = self.store.get(kind.resource, ("", name))
        return left if left is not None else _gone(kind, old)

    def _finish_namespace(self, name: str) -> None:
        """Remove a namespace that is being deleted once it is empty."""
        found = self.store.get("namespaces", ("", name))
        if found is None or not lifecycle.finished(found):
            return
        for inner in self.catalogue.kinds:
            if inner.namespaced and self.store.list(inner.resource, name)[0]:
                return
        try:
            version = found["metadata"]["resourceVersion"]
            self.store.remove("namespaces", ("", name), expected=version)
        except ApiError as error:
            if error.reason != "Conflict":  # another thread removed it
                raise


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


def _encode_token(snapshot: str, start: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([snapshot, start]).encode()).decode()


def _decode_token(token: str) -> tuple[str, int]:
    try:
        snapshot, start = json.loads(base64.urlsafe_b64decode(token))
    except (binascii.Error, ValueError, TypeError) as error:
        raise errors.bad_request("continue key is not valid") from error
    if not isinstance(snapshot, str) or not isinstance(start, int) or start < 0:
        raise errors.bad_request("continue key is not valid")
    return snapshot, start
