"""Patches of JSON values: merge (RFC 7386), JSON patch (RFC 6902). Pure: no input is changed.

What no server could apply is told apart from what this value does not allow.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from libtortie.errors import InvalidInput


class PatchError(InvalidInput):
    """An operation of a JSON patch cannot be applied; the text names it by number and path."""


class PatchMalformed(PatchError):
    """A JSON patch that is none, whatever it is applied to."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, patch: Any) -> Any:
    """RFC 6902, all operations in order or none. Raises `PatchMalformed`, `PatchError`."""
    if not isinstance(patch, list):
        raise PatchMalformed("a JSON patch is a list of operations")
    result = copy.deepcopy(target)
    for number, operation in enumerate(patch, start=1):
        if not isinstance(operation, Mapping):
            raise PatchMalformed(f"operation {number}: is not an object")
        try:
            result = _applied(result, operation)
        except PatchError as error:
            said = f"operation {number} ({operation.get('op')} {operation.get('path')})"
            raise type(error)(f"{said}: {error}") from error
    return result


def _applied(document: Any, operation: Mapping[str, Any]) -> Any:
    verb, path = operation.get("op"), _pointer(operation.get("path"))
    match verb:
        case "add":
            return _add(document, path, _value(operation))
        case "replace":
            return _replace(document, path, _value(operation))
        case "remove":
            return _remove(document, path)
        case "test":
            wanted, found = _value(operation), _read(document, path)
            if not _same(found, wanted):
                raise PatchError(f"the value is {found!r}")
            return document
        case "copy" | "move":
            return _transfer(document, _pointer(operation.get("from")), path, verb == "move")
    raise PatchMalformed("op is none of add, remove, replace, move, copy, test")


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise PatchMalformed("value is missing")
    return copy.deepcopy(operation["value"])


def _pointer(text: Any) -> list[str]:
    """RFC 6901: `/a~1b/0` → ["a/b", "0"]."""
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchMalformed(f"{text!r} is not a JSON pointer: it begins with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def _read(document: Any, path: list[str]) -> Any:
    for step in path:
        document = document[_present(document, step)]
    return document


def _present(holder: Any, step: str) -> int | str:
    """The key or index of what is there."""
    if isinstance(holder, list):
        return _index(step, len(holder) - 1)
    if isinstance(holder, dict) and step in holder:
        return step
    raise PatchError(f"there is no {step!r}")


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    holder, last = _read(document, path[:-1]), path[-1]
    if isinstance(holder, list):
        holder.insert(len(holder) if last == "-" else _index(last, len(holder)), value)
    elif isinstance(holder, dict):
        holder[last] = value
    else:
        raise PatchError(f"nothing can be put into {holder!r}")
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    holder = _read(document, path[:-1])
    holder[_present(holder, path[-1])] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise PatchError("the whole object cannot be removed")
    holder = _read(document, path[:-1])
    del holder[_present(holder, path[-1])]
    return document


def _transfer(document: Any, source: list[str], path: list[str], move: bool) -> Any:
    value = copy.deepcopy(_read(document, source))
    if move and path[: len(source)] == source and len(path) > len(source):
        raise PatchError("a value cannot move into itself")
    return _add(_remove(document, source) if move else document, path, value)


def _index(step: str, highest: int) -> int:
    """A list's index in canonical decimal, at most `highest`."""
    if not (step.isascii() and step.isdecimal()) or (step != "0" and step.startswith("0")):
        raise PatchError(f"{step!r} is not a place in a list")
    if len(step) > len(str(highest)) or int(step) > highest:
        raise PatchError(f"the list has no place {step}")
    return int(step)


def _same(left: Any, right: Any) -> bool:
    """JSON's equality: true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
