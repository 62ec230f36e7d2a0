"""API errors as Kubernetes words them: code, reason, message, details; and the Status object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attributes:
    """What somebody wants to do: to a resource, or to a `path` that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class ApiError(Exception):
    """An answer that is not 2xx."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.retry_after = retry_after

    def status(self) -> Json:
        """The Status body."""
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        details = dict(self.details)
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details:
            body["details"] = details
        return body


def _about(resource: str, name: str) -> Json:
    plural, _, group = resource.partition(".")
    details: Json = {"name": name, "kind": plural}
    if group:
        details["group"] = group
    return details


def not_found(resource: str, name: str) -> ApiError:
    """404: no such object."""
    text = f'{resource} "{name}" not found'
    return ApiError(404, "NotFound", text, details=_about(resource, name))


def not_served() -> ApiError:
    """404: no such resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> ApiError:
    """409 on create."""
    text = f'{resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, details=_about(resource, name))


def conflict(resource: str, name: str, why: str) -> ApiError:
    """409 on update or delete."""
    text = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, "Conflict", text, details=_about(resource, name))


def stale(resource: str, name: str) -> ApiError:
    """409: the resourceVersion in hand is old."""
    why = (
        "the object has been modified; please apply your changes to the latest version "
        "and try again"
    )
    return conflict(resource, name, why)


Refusal = tuple[str, str, str]  # field, reason ("FieldValueInvalid"), why


def invalid(resource: str, kind: str, name: str, field: str, why: str) -> ApiError:
    """422: a field's value is refused."""
    return refused(resource, kind, name, [(field, "FieldValueInvalid", why)])


def refused(resource: str, kind: str, name: str, refusals: Sequence[Refusal]) -> ApiError:
    """422: some fields' values are refused."""
    group = resource.partition(".")[2]
    causes = [{"reason": code, "message": why, "field": field} for field, code, why in refusals]
    texts = [f"{field}: {why}" for field, _, why in refusals]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind}.{group}" if group else kind
    details = _about(resource, name) | {"kind": kind, "causes": causes}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)


def bad_request(why: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", why)


def unknown_format(media: str, accepted: Iterable[str]) -> ApiError:
    """415."""
    text = (
        f"the body of the request was in an unknown format ({media}) - "
        f"accepted media types include: {', '.join(accepted)}"
    )
    return ApiError(415, "UnsupportedMediaType", text)


def expired(why: str) -> ApiError:
    """410: the history or page asked for is gone."""
    return ApiError(410, "Expired", why)


def unauthorized() -> ApiError:
    """401."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(user: str, asked: Attributes, reason: str = "") -> ApiError:
    """403 as the authorizer words it."""
    because = f": {reason}" if reason else ""
    if asked.path:
        text = f'forbidden: User "{user}" cannot {asked.verb} path "{asked.path}"{because}'
        return ApiError(403, "Forbidden", text)
    resource = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    nested = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
    subject = f'{resource} "{asked.name}"' if asked.name else resource
    text = (
        f'{subject} is forbidden: User "{user}" cannot {asked.verb} resource "{nested}" '
        f'in API group "{asked.group}"{where}{because}'
    )
    return ApiError(403, "Forbidden", text, details=_about(resource, asked.name))


def too_large_version(asked: int, current: int) -> ApiError:
    """504: a resourceVersion from the future (a restored or another cluster)."""
    text = f"Timeout: Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(504, "Timeout", text, details={"causes": [cause]}, retry_after=1)
