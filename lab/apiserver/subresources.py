"""What is asked of a pod by creating something below it: put it on a node, evict it.

Admission hooks see verb `create`, resource `pods/binding` or `pods/eviction`, the Binding or
Eviction as the object and the pod as the old one. A hook that answers 429 makes `kubectl drain`
try again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.apiserver import errors, lifecycle
from lab.apiserver.errors import Json
from lab.apiserver.kind import Kind, Subresource

if TYPE_CHECKING:
    from lab.apiserver.api import Api

_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def create_below(
    api: Api, kind: Kind, place: tuple[str, str], below: Subresource, body: Any, *, dry_run: bool
) -> Json:
    """Create a pod's Binding or Eviction; `place` is its namespace and name. Raises 400, 404,
    409, 422, and what admission says."""
    body = _checked(below, place, body)
    if below.name == "binding":
        return _bind(api, kind, place, body, dry_run=dry_run)
    return _evict(api, kind, place, body, dry_run=dry_run)


def _checked(below: Subresource, place: tuple[str, str], body: Any) -> Json:
    if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
        raise errors.bad_request("the body is not an object")
    for key, wanted in (("kind", below.kind), ("apiVersion", below.api_version)):
        if body.get(key, wanted) != wanted:
            raise errors.bad_request(f"{key} in the body is {body[key]!r}, not {wanted!r}")
    meta = dict(body.get("metadata") or {})
    for key, wanted in zip(("namespace", "name"), place, strict=True):
        if meta.get(key, wanted) != wanted:
            raise errors.bad_request(f"{key} in URL does not match {key} in {below.kind} object")
        meta[key] = wanted
    return {**body, "kind": below.kind, "apiVersion": below.api_version, "metadata": meta}


def _bind(api: Api, kind: Kind, place: tuple[str, str], body: Json, *, dry_run: bool) -> Json:
    body = api.admit("create", f"{kind.resource}/binding", body, api.get(kind, *place))
    found = body.get("target")
    target: Json = found if isinstance(found, dict) else {}
    node = target.get("name")
    if not isinstance(node, str) or not node:
        why = "Required value"
        raise errors.invalid(kind.resource, "Binding", place[1], "target.name", why)
    if target.get("kind", "Node") not in ("", "Node"):
        why = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise errors.invalid(kind.resource, "Binding", place[1], "target.kind", why)
    wanted = body["metadata"].get("uid")

    def changed(old: Json) -> Json:
        uid = old["metadata"]["uid"]
        if wanted and wanted != uid:
            raise lifecycle.uid_conflict(kind, place[1], wanted, uid)
        return lifecycle.bound(kind, old, node, body["metadata"].get("annotations") or {})

    api.change(kind, *place, changed, dry_run=dry_run)
    return {**_SUCCESS, "code": 201}


def _evict(api: Api, kind: Kind, place: tuple[str, str], body: Json, *, dry_run: bool) -> Json:
    body = api.admit("create", f"{kind.resource}/eviction", body, api.get(kind, *place))
    options = body.get("deleteOptions") or {}
    if not isinstance(options, dict):
        raise errors.bad_request("deleteOptions is not an object")
    dry_run = dry_run or "All" in (options.get("dryRun") or ())
    api.delete(kind, *place, options, dry_run=dry_run, admission=False)
    return {**_SUCCESS, "code": 201}
