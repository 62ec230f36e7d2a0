"""Metadata of Calico's objects in Kubernetes, both ways. Pure.

In the v3 group metadata is what it is. In the v1 group an object's own metadata is the storage's
and the resource's lives, as JSON, in one annotation: labels and annotations of any form, owner
references, finalizers that hold nothing back, the time of creation. UIDs are shown converted.

What the server owns (resourceVersion, managedFields, …) never becomes part of a value. Finalizers
of the object itself are the storage's too: a rewrite keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.datastore import gojson
from libtortie.datastore.crd_names import Group, Json, converted_uid, metadata_of
from libtortie.errors import Malformed
from libtortie.model.keys import NAMED_IN_ANNOTATION, Kind

ANNOTATION = "projectcalico.org/metadata"

POLICIES = NAMED_IN_ANNOTATION
"""Their annotation holds the name too: older releases stored them under another."""

_SERVERS = ("resourceVersion", "selfLink", "managedFields")
_STORED_APART = ("namespace", "resourceVersion", "uid")
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_CALICOS = ("projectcalico.org/", "operator.tigera.io/")
_V1, _V3 = Group.V1.value, Group.V3.value


def shown(group: Group, where: str, body: Mapping[str, Any]) -> Json:
    """The metadata a value shows of a stored object. Raises `Malformed`."""
    raw = metadata_of(body)
    meta = {key: value for key, value in raw.items() if key not in _SERVERS}
    if group is Group.V3:
        return meta
    meta["uid"] = converted_uid(str(meta.get("uid") or ""))
    annotations = _texts(where, "annotations", meta)
    packed = annotations.pop(ANNOTATION, None)
    if packed is None:
        return meta
    inner = _unpacked(where, packed)
    inner = {key: value for key, value in inner.items() if key not in (*_SERVERS, *_DELETION)}
    result: Json = {"name": raw.get("name", ""), **inner}
    for field, own in (("labels", _texts(where, "labels", meta)), ("annotations", annotations)):
        if merged := own | _texts(where, field, inner):
            result[field] = merged
    result["annotations"] = result.get("annotations", {})
    result["annotations"].pop(ANNOTATION, None)
    if not result["annotations"]:
        del result["annotations"]
    result["creationTimestamp"] = inner.get("creationTimestamp") or meta.get("creationTimestamp")
    result |= {key: meta[key] for key in ("uid", "namespace", *_DELETION) if meta.get(key)}
    if owners := _owners(inner, _V1, _V3):
        result["ownerReferences"] = owners
    return result


def told_name(where: str, body: Mapping[str, Any]) -> str:
    """The name that the annotation of an object of the v1 group has; "" where there is none.

    Raises `Malformed`.
    """
    packed = _texts(where, "annotations", metadata_of(body)).get(ANNOTATION)
    return "" if packed is None else str(_unpacked(where, packed).get("name") or "")


def stored(group: Group, kind: Kind | None, meta: Mapping[str, Any], old: Json | None) -> Json:
    """The metadata of the object to store for a value's; `old` is the object it replaces.

    `kind` is None for IPAM's own objects. The caller adds name, namespace and resourceVersion.
    """
    kept = {key: value for key, value in metadata_of(old or {}).items() if key == "finalizers"}
    if group is Group.V3:
        dropped = (*_SERVERS, *_DELETION, "uid", "generation")
        return {**kept, **{k: v for k, v in meta.items() if k not in dropped}}
    result = dict(kept)
    for field in ("labels", "annotations"):
        given = meta.get(field) or {}
        calicos = {key: given[key] for key in sorted(given) if any(c in key for c in _CALICOS)}
        if calicos:
            result[field] = calicos
    inner = {k: v for k, v in meta.items() if k not in (*_STORED_APART, *_DELETION)}
    if kind not in POLICIES:
        inner.pop("name", None)
    if owners := _owners(meta, _V3, _V1):
        inner["ownerReferences"] = owners
    packed = gojson.dumps(inner).decode()
    result["annotations"] = dict(
        sorted({**result.get("annotations", {}), ANNOTATION: packed}.items())
    )
    return result


def _unpacked(where: str, packed: str) -> Json:
    field = f"{where}: metadata.annotations[{ANNOTATION}]"
    try:
        inner = gojson.loads(packed.encode())
    except ValueError as error:
        raise Malformed(f"{field}: not JSON: {error}") from error
    if not isinstance(inner, dict):
        raise Malformed(f"{field}: not a JSON object")
    return {key: value for key, value in inner.items() if value is not None}


def _texts(where: str, field: str, meta: Mapping[str, Any]) -> dict[str, str]:
    found = meta.get(field) or {}
    if not isinstance(found, Mapping) or any(not isinstance(v, str) for v in found.values()):
        raise Malformed(f"{where}: metadata.{field}: not a map of strings")
    return dict(found)


def _owners(meta: Mapping[str, Any], before: str, after: str) -> list[Any]:
    """Owner references with those of one group made the other's."""
    found = meta.get("ownerReferences") or []
    return [
        {**one, "apiVersion": after, "uid": converted_uid(str(one.get("uid") or ""))}
        if isinstance(one, Mapping) and one.get("apiVersion") == before
        else one
        for one in (found if isinstance(found, list) else [])
    ]
