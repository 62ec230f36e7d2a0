"""OpenAPI v3 documents: what `kubectl explain` shows and `kubectl apply` asks about. Pure.

A kind without a schema is described down to `spec` and `status`. Patches of built-in kinds are
not described as strategic, so that kubectl merges by what it knows of them itself.
"""

from __future__ import annotations

from typing import Any

from lab.apiserver.errors import Json
from lab.apiserver.kind import Kind
from lab.apiserver.kinds import Catalogue

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_OBJECT = "application/json"
MEDIA_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
# An OpenAPI v2 document without definitions: `swagger: "2.0"`, a title, a version. kubectl wants it
# for lists (it then leaves the judgement to us); what there is to know is in v3.
DOCUMENT_V2 = b"\x0a\x032.0\x12\x10\x0a\x0aKubernetes\x12\x02v1"
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")


def _parameter(name: str, where: str, kind: str = "string") -> Json:
    return {"name": name, "in": where, "required": where == "path", "schema": {"type": kind}}


_QUERY = [_parameter(name, "query") for name in ("dryRun", "fieldManager", "fieldValidation")]
_METADATA: Json = {
    "type": "object",
    "description": "What every object has: its name, labels, owners.",
    "properties": {
        "name": {"type": "string", "description": "Unique in its namespace and kind."},
        "namespace": {"type": "string", "description": "Where the name is unique."},
        "generateName": {"type": "string", "description": "Prefix of a name the server makes."},
        "labels": {
            "type": "object",
            "description": "What selectors select by.",
            "additionalProperties": {"type": "string"},
        },
        "annotations": {
            "type": "object",
            "description": "Notes of tools.",
            "additionalProperties": {"type": "string"},
        },
        "finalizers": {
            "type": "array",
            "description": "Who must agree before the object is gone.",
            "items": {"type": "string"},
        },
        "ownerReferences": {
            "type": "array",
            "description": "Objects without which this one is collected.",
            "items": {"type": "object"},
        },
        "uid": {"type": "string", "description": "Of this object alone, for ever."},
        "resourceVersion": {"type": "string", "description": "Changes with every write."},
        "generation": {"type": "integer", "description": "Counts changes of what is wanted."},
        "creationTimestamp": {"type": "string", "description": "When it was made."},
        "deletionTimestamp": {"type": "string", "description": "When it is to be gone."},
    },
}


def document(segments: tuple[str, ...], catalogue: Catalogue) -> Json | None:
    """The document below /openapi, or None when there is none."""
    if segments == ("openapi", "v3"):
        versions = dict.fromkeys(_place(kind) for kind in catalogue.served())
        urls = {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in versions}
        return {"paths": urls}
    if segments[:2] != ("openapi", "v3"):
        return None
    wanted = "/".join(segments[2:])
    kinds = [kind for kind in catalogue.served() if _place(kind) == wanted]
    if not kinds:
        return None
    paths: Json = {}
    for kind in kinds:
        paths |= _paths(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths,
        "components": {
            "schemas": {_META: _METADATA, **{_name(kind): _schema(kind) for kind in kinds}}
        },
    }


def _place(kind: Kind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _name(kind: Kind) -> str:
    return f"{kind.group or 'core'}.{kind.version}.{kind.kind}"


def _gvk(kind: Kind) -> Json:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _schema(kind: Kind) -> Json:
    properties: Json = {
        "apiVersion": {"type": "string", "description": "The API group and its version."},
        "kind": {"type": "string", "description": "What the object is."},
        "metadata": {
            "description": "Its name, labels, owners.",
            "allOf": [{"$ref": f"#/components/schemas/{_META}"}],
        },
    }
    if kind.schema is not None:
        properties |= kind.schema["properties"]
    else:
        loose: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        properties["spec"] = {**loose, "description": "What is wanted."}
        if kind.status:
            properties["status"] = {**loose, "description": "What is."}
    described = kind.schema or {"description": f"{kind.kind}, as far as this server knows it."}
    return {
        "type": "object",
        "description": described["description"],
        "properties": properties,
        "x-kubernetes-group-version-kind": [_gvk(kind)],
    }


def _paths(kind: Kind) -> Json:
    """The paths of a kind: of all of them, and of one."""
    root = f"/{_place(kind)}/"
    where = [_parameter("namespace", "path")] if kind.namespaced else []
    if kind.namespaced:
        root += "namespaces/{namespace}/"
    reference = {"schema": {"$ref": f"#/components/schemas/{_name(kind)}"}}

    def operation(action: str, media: tuple[str, ...]) -> Json:
        found: Json = {
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(kind),
            "responses": {"200": {"description": "OK", "content": {_OBJECT: reference}}},
        }
        if media:
            found["parameters"] = _QUERY
            found["requestBody"] = {"content": dict.fromkeys(media, reference)}
        return found

    several: Json = {"parameters": where, "post": operation("post", (_OBJECT,))}
    if kind.virtual:
        return {f"{root}{kind.plural}": several}
    several["get"] = operation("list", ())
    one: dict[str, Any] = {
        "parameters": [*where, _parameter("name", "path")],
        "get": operation("get", ()),
        "put": operation("put", (_OBJECT,)),
        "patch": operation("patch", _PATCHES),
        "delete": operation("delete", ()),
    }
    return {f"{root}{kind.plural}": several, f"{root}{kind.plural}/{{name}}": one}
