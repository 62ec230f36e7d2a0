"""Patches of JSON objects: merge (RFC 7386) and JSON patch (RFC 6902). Pure.

Calico's resources have no lists that are merged by key, so a strategic merge is a merge.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from libtortie.errors import InvalidInput


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    found = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def json_patched(target: Any, patch: Any) -> Any:
    """RFC 6902, all operations or none. Raises `InvalidInput` naming the operation."""
    if not isinstance(patch, list):
        raise InvalidInput("a JSON patch is a list of operations")
    found = copy.deepcopy(target)
    for number, operation in enumerate(patch, start=1):
        if not isinstance(operation, Mapping):
            raise InvalidInput(f"operation {number}: is not an object")
        try:
            found = _apply(found, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            said = f"operation {number} ({operation.get('op')} {operation.get('path')})"
            raise InvalidInput(f"{said}: {error or 'there is no such place'}") from error
    return found


def _apply(target: Any, operation: Mapping[str, Any]) -> Any:
    verb, path = operation.get("op"), _pointer(operation.get("path"))
    match verb:
        case "add":
            return _put(target, path, _value(operation), insert=True)
        case "replace":
            _get(target, path)
            return _put(target, path, _value(operation), insert=False)
        case "remove":
            return _remove(target, path)
        case "test":
            if _get(target, path) != _value(operation):
                raise ValueError(f"the value is {_get(target, path)!r}")
            return target
        case "copy" | "move":
            source = _pointer(operation.get("from"))
            value = copy.deepcopy(_get(target, source))
            target = _remove(target, source) if verb == "move" else target
            return _put(target, path, value, insert=True)
    raise ValueError("op is none of add, remove, replace, move, copy, test")


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise ValueError("value is missing")
    return copy.deepcopy(operation["value"])


def _pointer(text: Any) -> list[str]:
    """RFC 6901."""
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise ValueError(f"{text!r} is not a JSON pointer: it begins with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _get(target: Any, path: list[str]) -> Any:
    for part in path:
        target = _child(target, part)
    return target


def _child(holder: Any, part: str) -> Any:
    if isinstance(holder, list):
        return holder[_index(part, len(holder) - 1)]
    if isinstance(holder, dict) and part in holder:
        return holder[part]
    raise ValueError(f"there is no {part!r}")


def _put(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    holder, last = _get(target, path[:-1]), path[-1]
    if isinstance(holder, list):
        if insert:
            holder.insert(len(holder) if last == "-" else _index(last, len(holder)), value)
        else:
            holder[_index(last, len(holder) - 1)] = value
    elif isinstance(holder, dict):
        holder[last] = value
    else:
        raise ValueError(f"nothing can be put into {holder!r}")
    return target


def _remove(target: Any, path: list[str]) -> Any:
    if not path:
        raise ValueError("the whole object cannot be removed")
    holder, last = _get(target, path[:-1]), path[-1]
    _child(holder, last)
    del holder[_index(last, len(holder) - 1) if isinstance(holder, list) else last]
    return target


def _index(part: str, most: int) -> int:
    if not (part.isascii() and part.isdecimal()) or (len(part) > 1 and part[0] == "0"):
        raise ValueError(f"{part!r} is not a place in a list")
    if int(part) > most:
        raise ValueError(f"the list has no place {part}")
    return int(part)
