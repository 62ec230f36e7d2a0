"""One resource request, watches apart: from what was asked to code and answer. No sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.apiserver import errors, protobuf, reviews, subresources
from lab.apiserver.api import MERGE, Api
from lab.apiserver.auth import User
from lab.apiserver.errors import ApiError, Json
from lab.apiserver.rbac import Authorizer
from lab.apiserver.routes import Target
from lab.apiserver.schema import FieldValidation

_MODES = ("Ignore", "Warn", "Strict")


@dataclass(frozen=True, slots=True)
class Request:
    """A request's body, its Content-Type (empty when there was none), and who sent it."""

    target: Target
    user: User
    body: bytes
    media: str

    def json(self) -> Any:
        """The body. Raises 400 and 415."""
        if self.media == protobuf.MEDIA and self.target.kind.builtin:
            return protobuf.decode(self.body)
        if self.media not in ("", "application/json"):
            raise errors.unknown_format(self.media, ["application/json"])
        return decode(self.body)

    def options(self) -> Json:
        """DeleteOptions of body and query. Raises 400 and 415."""
        options = self.json() if self.body else {}
        if not isinstance(options, dict):
            raise errors.bad_request("DeleteOptions is not an object")
        query = self.target.query
        if "gracePeriodSeconds" in query:
            options = {**options, "gracePeriodSeconds": number(query, "gracePeriodSeconds")}
        if "propagationPolicy" in query:
            options = {**options, "propagationPolicy": query["propagationPolicy"]}
        return options


@dataclass(frozen=True, slots=True)
class Answer:
    """HTTP code, body, and the warnings kubectl shows."""

    code: int
    body: Json
    warnings: tuple[str, ...] = ()


def perform(api: Api, authorizer: Authorizer, request: Request) -> Answer:
    """Everything but a watch. Raises `ApiError`."""
    target = request.target
    if target.kind.virtual:
        found = reviews.answer(target.kind, request.json(), request.user, authorizer)
        return Answer(201, found)
    if target.verb in ("create", "update", "patch"):
        return _write(api, request)
    place = (target.kind, target.namespace, target.name)
    match target.verb:
        case "get":
            return Answer(200, api.get(*place, subresource=target.subresource))
        case "list":
            return Answer(200, _list(api, target))
        case "delete":
            return Answer(200, api.delete(*place, request.options(), dry_run=_dry(request)))
        case _:
            return Answer(200, _delete_collection(api, request))


def _dry(request: Request) -> bool:
    """Whether nothing may be stored: the query says it, or the options of a deletion."""
    deleting = request.target.verb.startswith("delete")
    named = deleting and "All" in (request.options().get("dryRun") or ())
    return request.target.dry_run or named


def _write(api: Api, request: Request) -> Answer:
    target = request.target
    kind, sub, dry = target.kind, target.subresource, target.dry_run
    fields = FieldValidation(target.query.get("fieldValidation") or "Warn")
    if fields.mode not in _MODES:
        known = ", ".join(f'"{mode}"' for mode in _MODES)
        raise errors.bad_request(f'fieldValidation: "{fields.mode}" is none of {known}')
    below = kind.subresource(sub)
    code = 200
    if below is not None:
        code, where = 201, (target.namespace, target.name)
        body = subresources.create_below(api, kind, where, below, request.json(), dry_run=dry)
    elif target.verb == "create":
        code = 201
        body = api.create(kind, target.namespace, request.json(), dry_run=dry, fields=fields)
    elif target.verb == "update":
        body = api.update(
            kind,
            target.namespace,
            target.name,
            request.json(),
            subresource=sub,
            dry_run=dry,
            fields=fields,
        )
    else:
        body = api.patch(
            kind,
            target.namespace,
            target.name,
            decode(request.body),
            content_type=request.media or MERGE,
            subresource=sub,
            dry_run=dry,
            fields=fields,
        )
    return Answer(code, body, tuple(fields.warnings))


def _list(api: Api, target: Target) -> Json:
    query = target.query
    return api.list(
        target.kind,
        target.namespace,
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=number(query, "limit"),
        continuation=query.get("continue", ""),
    )


def _delete_collection(api: Api, request: Request) -> Json:
    target, options = request.target, request.options()
    query = target.query
    found = api.list(
        target.kind,
        target.namespace,
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
    )
    for body in found["items"]:
        name = body["metadata"]["name"]
        try:
            api.delete(target.kind, target.namespace, name, options, dry_run=_dry(request))
        except ApiError as error:
            if error.code != 404:
                raise
    return found


def decode(raw: bytes) -> Any:
    """JSON. Raises 400."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise errors.bad_request("the body is not JSON") from error


def number(query: Mapping[str, str], key: str) -> int:
    """A non-negative whole number of the query; 0 when absent. Raises 400."""
    text = query.get(key, "") or "0"
    if not (text.isascii() and text.isdigit()):
        raise errors.bad_request(f"{key} is not a number")
    return int(text)
