"""Merge patch (RFC 7386) and JSON patch (RFC 6902). Pure: inputs are never changed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lab.apiserver.errors import ApiError


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: mappings merge, null removes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902: all operations in order, or an error (400 for its form, 422 for its failure)."""
    if not isinstance(operations, list):
        raise ApiError(400, "BadRequest", "a JSON patch is a list of operations")
    result = copy.deepcopy(target)
    for operation in operations:
        result = _apply(result, operation)
    return result


def _apply(document: Any, operation: Any) -> Any:
    if not isinstance(operation, Mapping) or not isinstance(operation.get("path"), str):
        raise ApiError(400, "BadRequest", "a JSON patch operation needs op and path")
    verb, path = operation.get("op"), _pointer(operation["path"])
    if verb in ("add", "replace", "test"):
        if "value" not in operation:
            raise ApiError(400, "BadRequest", f"JSON patch {verb} needs a value")
        value = copy.deepcopy(operation["value"])
        if verb == "test":
            if not _same(_read(document, path), value):
                raise _failed(f"testing value {operation['path']} failed")
            return document
        return _add(document, path, value) if verb == "add" else _replace(document, path, value)
    if verb == "remove":
        return _remove(document, path)
    if verb in ("move", "copy"):
        return _transfer(document, verb, operation.get("from"), path)
    raise ApiError(400, "BadRequest", f"unknown JSON patch operation {verb!r}")


def _transfer(document: Any, verb: str, origin: Any, path: list[str]) -> Any:
    if not isinstance(origin, str):
        raise ApiError(400, "BadRequest", f"JSON patch {verb} needs from")
    source = _pointer(origin)
    value = copy.deepcopy(_read(document, source))
    if verb == "move":
        if path[: len(source)] == source and len(path) > len(source):
            raise _failed("a value cannot move into itself")
        document = _remove(document, source)
    return _add(document, path, value)


def _pointer(text: str) -> list[str]:
    """RFC 6901: `/a~1b/0` → ["a/b", "0"]."""
    if text == "":
        return []
    if not text.startswith("/"):
        raise ApiError(400, "BadRequest", f"{text!r} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/")]


def _read(document: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            document = document[_index(step, len(document) - 1)]
        else:
            raise _failed(f"nothing at /{'/'.join(path)}")
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    holder, last = _read(document, path[:-1]), path[-1]
    if isinstance(holder, list):
        position = len(holder) if last == "-" else _index(last, len(holder))
        holder.insert(position, value)
    elif isinstance(holder, dict):
        holder[last] = value
    else:
        raise _failed(f"nothing can be added at /{'/'.join(path)}")
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    _read(document, path)
    if not path:
        return value
    holder, last = _read(document, path[:-1]), path[-1]
    if isinstance(holder, list):
        holder[_index(last, len(holder) - 1)] = value
    else:
        holder[last] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise _failed("the whole document cannot be removed")
    _read(document, path)
    holder, last = _read(document, path[:-1]), path[-1]
    if isinstance(holder, list):
        del holder[_index(last, len(holder) - 1)]
    else:
        del holder[last]
    return document


def _index(step: str, highest: int) -> int:
    """An array index in canonical decimal, at most `highest`."""
    if not (step.isascii() and step.isdigit()) or (step != "0" and step.startswith("0")):
        raise _failed(f"{step!r} is not an array index")
    if int(step) > highest:
        raise _failed(f"array index {step} is out of bounds")
    return int(step)


def _same(left: Any, right: Any) -> bool:
    """JSON equality: true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _failed(why: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error: {why}")
