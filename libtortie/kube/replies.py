"""What an answer means: pure translation of HTTP statuses, Status objects and object bodies."""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from libtortie import errors
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import NotServed, Overloaded

T = TypeVar("T", bound=KubeObject)
LOG = logging.getLogger(__name__)
_MESSAGE_CAP = 400
_RETRY_AFTER_CAP = 300.0
_BY_CODE: Mapping[int, type[errors.TortieError]] = {
    401: errors.Unauthorized,
    403: errors.Unauthorized,
    404: errors.NotFound,
    408: errors.Unavailable,
    409: errors.Conflict,
    410: errors.Compacted,
}


def failure(
    code: int, body: bytes, *, creating: bool = False, retry_after: str = "", context: str
) -> errors.TortieError:
    """The typed error of an HTTP answer that is not 2xx; `context` names request and server."""
    status = _status_of(body)
    reason = str(status.get("reason") or "")
    message = status.get("message")
    detail = message if isinstance(message, str) and message else _plain(body)
    text = f"{context}: {_brief(code, detail)}"
    if code == 404 and not _names_object(status):
        return NotServed(text)
    return error_of(code, reason, text, creating=creating, wait=retry_after)


def _names_object(status: Mapping[str, Any]) -> bool:
    """Whether a Status says which object is missing; without, its kind is."""
    details = status.get("details")
    return isinstance(details, Mapping) and bool(details.get("name"))


def error_of(
    code: int, reason: str, text: str, *, creating: bool = False, wait: str = ""
) -> errors.TortieError:
    """The typed error of a status code and a reason, with `text` as its message."""
    if code in (429, 503, 504):
        return Overloaded(text, retry_after=_seconds(wait))
    if code == 409 and (creating or reason == "AlreadyExists"):
        return errors.AlreadyExists(text)
    refused = errors.InvalidInput if 400 <= code < 500 else errors.Unavailable
    return _BY_CODE.get(code, refused)(text)


def parse(body: bytes, context: str) -> dict[str, Any]:
    """A JSON object. Raises `Malformed`."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise errors.Malformed(f"{context}: the answer is not JSON") from error
    if not isinstance(value, dict):
        raise errors.Malformed(f"{context}: the answer is not a JSON object")
    return value


def decode(model: type[T], body: Mapping[str, Any], context: str) -> T:
    """An object's view.

    A CRD's schema may let through what our view cannot hold (`spec.networks: "x"`). Such a field
    counts as absent: one strange object must not hide all others. Metadata is always checked by
    the server, so there nothing is forgiven. Raises `Malformed`.
    """
    candidate: Any = body
    for _ in range(4):
        try:
            return model.model_validate(candidate)
        except ValidationError as error:
            places = [problem["loc"] for problem in error.errors(include_url=False)]
            if any(not place or place[0] == "metadata" for place in places):
                break
            LOG.warning("%s: ignoring unreadable fields %s", context, _places(places))
            candidate = json.loads(json.dumps(candidate))
            for place in places:
                _drop(candidate, place)
    raise errors.Malformed(f"{context}: not a readable {model.api.kind}")


def items(model: type[T], body: Mapping[str, Any], context: str) -> tuple[T, ...]:
    """The objects of a list answer. Raises `Malformed`."""
    found = body.get("items")
    if found is None:
        found = []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise errors.Malformed(f"{context}: the list has no items")
    return tuple(decode(model, item, context) for item in found)


def list_meta(body: Mapping[str, Any], context: str, asked: Container[str] = ()) -> tuple[str, str]:
    """The resourceVersion and the continue token of a list answer. Raises `Malformed`.

    `asked` are the tokens that pages were asked for with: a list that names one again never ends,
    and one that says what is left without naming it is cut.
    """
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    version, token = metadata.get("resourceVersion"), metadata.get("continue") or ""
    if not isinstance(version, str) or not isinstance(token, str):
        raise errors.Malformed(f"{context}: the list has no resourceVersion")
    if token and token in asked:
        raise errors.Malformed(f"{context}: the list goes round in circles")
    if not token and metadata.get("remainingItemCount"):
        raise errors.Malformed(f"{context}: the list is cut: it names no next page")
    return version, token


def _drop(candidate: Any, place: tuple[int | str, ...]) -> None:
    """Remove the field an error points at; inside a list or map of strings, all of it."""
    holder: Any = candidate
    for depth, step in enumerate(place):
        if not isinstance(holder, dict) or not isinstance(step, str) or step not in holder:
            return
        last = depth == len(place) - 1
        if last or not isinstance(holder[step], dict):
            del holder[step]
            return
        holder = holder[step]


def _places(places: list[tuple[int | str, ...]]) -> str:
    return ", ".join(sorted({".".join(str(step) for step in place) for place in places}))


def _status_of(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.get("kind") == "Status" else {}


def _plain(body: bytes) -> str:
    """First line of an answer that is not a Status (a proxy's page, a plain 404)."""
    text = body[:_MESSAGE_CAP].decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{")) else text.split("\n", 1)[0]


def _brief(code: int, detail: str) -> str:
    cut = " ".join(detail.split())[:_MESSAGE_CAP]
    return f"HTTP {code}: {cut}" if cut else f"HTTP {code}"


def _seconds(value: str) -> float:
    """A Retry-After header in seconds, bounded; 0 when absent or a date."""
    return min(float(value), _RETRY_AFTER_CAP) if value.isascii() and value.isdigit() else 0.0
