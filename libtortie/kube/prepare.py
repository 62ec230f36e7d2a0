"""What to ask: pure builders of API requests. Nothing here touches a socket or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from libtortie.errors import InvalidInput
from libtortie.kube.objects import Api
from libtortie.kube.port import PatchType

JSON = "application/json"
_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `subject` is what its errors name: resource, namespace/name."""

    verb: str
    method: str
    path: str
    subject: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = ""

    def url(self, server: str) -> str:
        """The full URL on a server."""
        return f"{server}{self.path}" + (f"?{urlencode(self.query)}" if self.query else "")


def get(api: Api, name: str, namespace: str = "") -> Request:
    """Read one object."""
    return _named("get", api, name, namespace)


def list_(
    api: Api,
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
    limit: int = 0,
    continuation: str = "",
) -> Request:
    """Read a collection, or one page of it; an empty namespace means all."""
    query = _pairs(
        labelSelector=label_selector,
        fieldSelector=field_selector,
        limit=str(limit) if limit else "",
        **{"continue": continuation},
    )
    return _collection("list", api, namespace, query)


def watch(
    api: Api,
    namespace: str = "",
    *,
    resource_version: str,
    seconds: int,
    label_selector: str = "",
    field_selector: str = "",
) -> Request:
    """Stream a collection's changes; the server ends it after `seconds`."""
    query = _pairs(
        watch="true",
        allowWatchBookmarks="true",
        resourceVersion=resource_version,
        timeoutSeconds=str(seconds),
        labelSelector=label_selector,
        fieldSelector=field_selector,
    )
    return _collection("watch", api, namespace, query)


def create(api: Api, body: Mapping[str, Any]) -> Request:
    """Create an object in the namespace its metadata names."""
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    namespace = str(metadata.get("namespace") or "")
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    if api.namespaced and not namespace:
        raise InvalidInput(f"create {resource(api)} {name}: metadata.namespace is missing")
    if not name:
        raise InvalidInput(f"create {resource(api)}: metadata.name is missing")
    full = {"apiVersion": _api_version(api), "kind": api.kind, **body}
    return Request(
        "create",
        "POST",
        _path(api, namespace),
        _subject(api, namespace, name),
        body=_encode(full),
        content_type=JSON,
    )


def update(api: Api, body: Mapping[str, Any], subresource: str = "") -> Request:
    """Replace an object; its `metadata.resourceVersion` guards against lost updates."""
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "")
    full = {"apiVersion": _api_version(api), "kind": api.kind, **body}
    return _named(
        "update", api, name, namespace, subresource, body=_encode(full), content_type=JSON
    )


def patch(
    api: Api,
    name: str,
    namespace: str,
    body: Mapping[str, Any] | list[Any],
    *,
    patch_type: PatchType = PatchType.MERGE,
    subresource: str = "",
) -> Request:
    """Change part of an object."""
    if isinstance(body, list) != (patch_type is PatchType.JSON):
        raise InvalidInput(f"patch {resource(api)} {name}: a JSON patch is a list, others are not")
    return _named(
        "patch",
        api,
        name,
        namespace,
        subresource,
        body=_encode(body),
        content_type=patch_type.value,
    )


def delete(
    api: Api,
    name: str,
    namespace: str = "",
    *,
    uid: str = "",
    version: str = "",
    grace_seconds: int | None = None,
) -> Request:
    """Delete an object, only the one with this UID and at this resourceVersion when given."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    preconditions = dict(_pairs(uid=uid, resourceVersion=version))
    if preconditions:
        options["preconditions"] = preconditions
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return _named("delete", api, name, namespace, body=_encode(options), content_type=JSON)


def raw(
    method: str,
    path: str,
    body: Any = None,
    query: Mapping[str, str] | None = None,
    content_type: str = JSON,
) -> Request:
    """Any request by path, for tools and tests. The path is sent as given."""
    if not path.startswith("/"):
        raise InvalidInput(f"{method} {path!r}: the path does not begin with a slash")
    verb = method.upper()
    encoded = None if body is None else _encode(body)
    return Request(
        verb,
        verb,
        path,
        "",
        tuple((query or {}).items()),
        encoded,
        content_type if encoded is not None else "",
    )


def resource(api: Api) -> str:
    """`pods`, `ippools.projectcalico.org`: what messages call a kind."""
    return f"{api.plural}.{api.group}" if api.group else api.plural


def _api_version(api: Api) -> str:
    return f"{api.group}/{api.version}" if api.group else api.version


def _encode(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _pairs(**values: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in values.items() if value)


def _subject(api: Api, namespace: str, name: str, subresource: str = "") -> str:
    what = resource(api) + (f"/{subresource}" if subresource else "")
    where = f"{namespace}/{name}" if namespace and name else name or namespace
    return f"{what} {where}".strip()


def _collection(verb: str, api: Api, namespace: str, query: tuple[tuple[str, str], ...]) -> Request:
    return Request(verb, _METHODS[verb], _path(api, namespace), _subject(api, namespace, ""), query)


def _named(
    verb: str,
    api: Api,
    name: str,
    namespace: str,
    subresource: str = "",
    *,
    body: bytes | None = None,
    content_type: str = "",
) -> Request:
    subject = _subject(api, namespace, name, subresource)
    if not name:
        raise InvalidInput(f"{verb} {resource(api)}: the name is empty")
    if api.namespaced and not namespace:
        raise InvalidInput(f"{verb} {subject}: the namespace is empty")
    path = f"{_path(api, namespace)}/{_segment(name, subject)}"
    if subresource:
        path += f"/{_segment(subresource, subject)}"
    return Request(verb, _METHODS[verb], path, subject, body=body, content_type=content_type)


def _path(api: Api, namespace: str) -> str:
    root = f"/apis/{api.group}/{api.version}" if api.group else f"/api/{api.version}"
    if namespace and api.namespaced:
        root += f"/namespaces/{_segment(namespace, api.plural)}"
    return f"{root}/{api.plural}"


def _segment(value: str, subject: str) -> str:
    """A name as one path segment: what Kubernetes itself refuses never becomes another path."""
    if value in (".", "..") or "/" in value or "%" in value:
        raise InvalidInput(f"{subject}: {value!r} cannot be a Kubernetes name")
    return quote(value, safe="")
