"""What the server itself decides about an object: names, system fields, status. Pure.

Sources: Kubernetes API conventions ("Metadata", "Spec and Status"), and for which fields each
subresource may touch, the behaviour of pods, nodes and custom resources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.apiserver import errors
from lab.apiserver.deletion import finalizers, timestamp
from lab.apiserver.kind import Kind
from lab.apiserver.selectors import LABEL_KEY, LABEL_VALUE

Json = dict[str, Any]
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_PATH_SEGMENT = re.compile(r"(?!\.{1,2}\Z)[^/%]+\Z")
_ANNOTATIONS_CAP = 256 << 10
_KEPT = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "generation",
)
_NEVER = ("selfLink", "managedFields")
_NAME_CAP = 253
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_GENERATED_CAP = 63


@dataclass(frozen=True, slots=True)
class Source:
    """Where new facts come from."""

    now: Callable[[], datetime]
    uid: Callable[[], str]
    choice: Callable[[str], str]


def checked(kind: Kind, namespace: str, body: Any) -> Json:
    """A request's body as an object of `kind` in `namespace`. Raises 400."""
    if not isinstance(body, Mapping):
        raise errors.bad_request("the body is not an object")
    for key, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if body.get(key, wanted) != wanted:
            raise errors.bad_request(
                f"{key} in the body ({body[key]!r}) does not match the URL ({wanted!r})"
            )
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise errors.bad_request("metadata is not an object")
    found = metadata.get("namespace") or namespace
    if found != namespace:
        raise errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    meta = {key: value for key, value in metadata.items() if key not in _NEVER}
    meta.pop("namespace", None)
    if namespace:
        meta["namespace"] = namespace
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": meta,
        **{k: v for k, v in body.items() if k not in ("apiVersion", "kind", "metadata")},
    }


def created(kind: Kind, body: Json, source: Source) -> Json:
    """A new object with its system fields. Raises 400 and 422."""
    meta = dict(body["metadata"])
    if meta.get("resourceVersion"):
        raise errors.bad_request("resourceVersion should not be set on objects to be created")
    for key in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(key, None)
    prefix = meta.get("generateName")
    if not meta.get("name") and isinstance(prefix, str) and prefix:
        suffix = "".join(source.choice(SUFFIX_ALPHABET) for _ in range(5))
        meta["name"] = prefix[: _GENERATED_CAP - 5] + suffix
    meta["uid"] = source.uid()
    meta["creationTimestamp"] = timestamp(source.now())
    meta["generation"] = 1
    if kind.resource == "namespaces" and isinstance(meta.get("labels", {}), dict):
        meta["labels"] = {**meta.get("labels", {}), NAMESPACE_LABEL: meta.get("name", "")}
    result = {**body, "metadata": meta}
    if kind.on_create == "drop":
        result.pop("status", None)
    elif kind.on_create != "keep":
        result["status"] = dict(kind.on_create)
    validate(kind, result)
    return result


def updated(kind: Kind, old: Json, new: Json, subresource: str) -> Json:
    """`old` as changed by `new` through the main resource or its status. Raises 409 and 422."""
    _check_identity(kind, old, new)
    if subresource == "status":
        return _status_updated(kind, old, new)
    meta = {k: v for k, v in new["metadata"].items() if k not in _KEPT}
    meta |= {k: old["metadata"][k] for k in _KEPT if k in old["metadata"]}
    meta["resourceVersion"] = old["metadata"]["resourceVersion"]
    result = {**new, "metadata": meta}
    if kind.status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if _content(result) != _content(old):
        meta["generation"] = int(old["metadata"].get("generation", 1)) + 1
    _check_finalizers(kind, old, result)
    _check_immutable(kind, old, result)
    validate(kind, result)
    return result


def bound(kind: Kind, old: Json, node: str, annotations: Mapping[str, Any]) -> Json:
    """A pod put on a node. Raises 409 when it is on one, or is being deleted."""
    name, spec = old["metadata"]["name"], old.get("spec") or {}
    resource = f"{kind.resource}/binding"
    if spec.get("nodeName"):
        why = f"pod {name} is already assigned to node {json.dumps(spec['nodeName'])}"
        raise errors.conflict(resource, name, why)
    if old["metadata"].get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
        raise errors.conflict(resource, name, why)
    meta = dict(old["metadata"])
    if annotations:
        meta["annotations"] = {**(meta.get("annotations") or {}), **annotations}
    status = dict(old.get("status") or {})
    others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    status["conditions"] = [*others, {"type": "PodScheduled", "status": "True"}]
    result = {**old, "metadata": meta, "spec": {**spec, "nodeName": node}, "status": status}
    validate(kind, result)
    return result


def _status_updated(kind: Kind, old: Json, new: Json) -> Json:
    meta = dict(old["metadata"])
    if kind.builtin:
        for key in ("labels", "annotations"):
            meta.pop(key, None)
            if new["metadata"].get(key):
                meta[key] = new["metadata"][key]
    result = {**old, "metadata": meta}
    result.pop("status", None)
    if "status" in new:
        result["status"] = new["status"]
    validate(kind, result)
    return result


def _check_identity(kind: Kind, old: Json, new: Json) -> None:
    before, after = old["metadata"], new["metadata"]
    name = before["name"]
    if after.get("name", name) != name:
        raise errors.bad_request(
            "the name of the object does not match the name on the URL: "
            f"{after.get('name')!r}, {name!r}"
        )
    if after.get("uid") and after["uid"] != before["uid"]:
        raise uid_conflict(kind, name, after["uid"], before["uid"])
    version = after.get("resourceVersion")
    if version and version != before["resourceVersion"]:
        raise errors.stale(kind.resource, name)


def uid_conflict(kind: Kind, name: str, wanted: str, actual: str) -> errors.ApiError:
    """409: the object of this name is another one."""
    return errors.conflict(
        kind.resource,
        name,
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}",
    )


def _check_finalizers(kind: Kind, old: Json, new: Json) -> None:
    if not old["metadata"].get("deletionTimestamp"):
        return
    added = set(finalizers(new)) - set(finalizers(old))
    if added:
        why = (
            "Forbidden: no new finalizers can be added if the object is being deleted, "
            f"found new finalizers {sorted(added)}"
        )
        raise errors.invalid(
            kind.resource, kind.kind, new["metadata"]["name"], "metadata.finalizers", why
        )


def _check_immutable(kind: Kind, old: Json, new: Json) -> None:
    """Fields that are set stay as they are."""
    for path in kind.immutable:
        before, after = _at(old, path), _at(new, path)
        if before and before != after:
            why = f"Invalid value: {json.dumps(after)}: field is immutable"
            raise errors.invalid(kind.resource, kind.kind, new["metadata"]["name"], path, why)


def _at(body: Any, path: str) -> Any:
    for step in path.split("."):
        body = body.get(step) if isinstance(body, Mapping) else None
    return body


def _content(body: Json) -> Json:
    return {key: value for key, value in body.items() if key not in ("metadata", "status")}


def validate(kind: Kind, body: Json) -> None:
    """Names, labels and annotations as Kubernetes demands them. Raises 422."""
    meta = body["metadata"]
    name = meta.get("name")

    def refuse(field: str, why: str) -> errors.ApiError:
        return errors.invalid(kind.resource, kind.kind, str(name or ""), field, why)

    if not isinstance(name, str) or not name:
        raise refuse("metadata.name", "Required value: name or generateName is required")
    pattern = _LABEL if kind.resource == "namespaces" else _SUBDOMAIN
    if kind.group == "rbac.authorization.k8s.io":
        pattern = _PATH_SEGMENT  # `system:discovery`
    if len(name) > (63 if pattern is _LABEL else _NAME_CAP) or not pattern.match(name):
        raise refuse("metadata.name", f"Invalid value: {name!r}: not a DNS name in lower case")
    for field in ("labels", "annotations"):
        _validate_map(meta, field, refuse)
    for key, value in (meta.get("labels") or {}).items():
        if not LABEL_VALUE.match(value):
            raise refuse("metadata.labels", f"Invalid value: {value!r} of label {key}")
    for field in ("finalizers", "ownerReferences"):
        if not isinstance(meta.get(field) or [], list):
            raise refuse(f"metadata.{field}", "Invalid value: not a list")
    _validate_owners(meta.get("ownerReferences") or [], refuse)
    size = sum(len(k) + len(v) for k, v in (meta.get("annotations") or {}).items())
    if size > _ANNOTATIONS_CAP:
        raise refuse("metadata.annotations", f"Too long: may not be more than {_ANNOTATIONS_CAP}")


def _validate_owners(owners: list[Any], refuse: Callable[[str, str], errors.ApiError]) -> None:
    """Each owner is named fully, and at most one is the controller."""
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not (isinstance(owner, dict) and owner.get(key)):
                field = f"metadata.ownerReferences[{index}].{key}"
                raise refuse(field, f"Required value: {key} must not be empty")
    controllers = [str(owner["name"]) for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        why = (
            f"Invalid value: {json.dumps(owners)}: Only one reference can have Controller set to "
            f'true. Found "true" in references for {" and ".join(controllers)}'
        )
        raise refuse("metadata.ownerReferences", why)


def _validate_map(meta: Json, field: str, refuse: Callable[[str, str], errors.ApiError]) -> None:
    """A mapping of qualified names to strings."""
    found = meta.get(field)
    if found is None:
        meta.pop(field, None)
        return
    if not isinstance(found, dict) or any(not isinstance(v, str) for v in found.values()):
        raise refuse(f"metadata.{field}", "Invalid value: not a map of strings")
    for key in found:
        if not LABEL_KEY.match(key) or len(key.rsplit("/", 1)[-1]) > 63:
            raise refuse(f"metadata.{field}", f"Invalid value: {key!r}: not a qualified name")
