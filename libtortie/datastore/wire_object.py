"""Typed access to one stored JSON object, field by field; what is left over is `extra`.

Go's rules: `null` is the zero value, a number is never a string, an integer never a float.
Each reader names the path and the field in its `Malformed`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from libtortie.datastore.gojson import integral
from libtortie.errors import Malformed
from libtortie.model.times import parse_rfc3339

UINT64_MAX = (1 << 64) - 1
INT64_MAX = (1 << 63) - 1

Choice = TypeVar("Choice", bound=StrEnum)


class WireObject:
    """The fields of one object; each reader takes its field out."""

    __slots__ = ("_left", "_where")

    def __init__(self, where: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise Malformed(f"{where}: not an object")
        self._where = where
        self._left = data.copy()

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raise `Malformed` about one field."""
        raise Malformed(f"{self._where}: {field}: {reason}")

    def text(self, field: str) -> str | None:
        """A string, or None when absent."""
        value = self._left.pop(field, None)
        if value is not None and not isinstance(value, str):
            self.refuse(field, f"{value!r} is not a string")
        return value

    def choice(self, field: str, choices: type[Choice], default: Choice) -> Choice:
        """A member of an enumeration of strings; `default` when absent or empty."""
        text = self.text(field)
        if not text:
            return default
        try:
            return choices(text)
        except ValueError:
            self.refuse(field, f"{text!r} is none of {', '.join(choices)}")

    def boolean(self, field: str) -> bool:
        """A boolean, false when absent."""
        value = self._left.pop(field, None)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.refuse(field, f"{value!r} is not a boolean")
        return value

    def integer(self, field: str, *, most: int = INT64_MAX) -> int:
        """An integer from 0 to `most`, 0 when absent."""
        value = self._left.pop(field, None)
        return 0 if value is None else self._checked(field, value, most)

    def integer_map(self, field: str, *, most: int = INT64_MAX) -> dict[str, int]:
        """A map of strings to non-negative integers, empty when absent."""
        values = self.map(field)
        if not are_integers(values.values(), most):
            for name, value in values.items():
                self._checked(f"{field}[{name}]", value, most)
        return values

    def text_map(self, field: str) -> dict[str, str]:
        """A map of strings to strings, empty when absent."""
        values = self.map(field)
        for name, value in values.items():
            if not isinstance(value, str):
                self.refuse(f"{field}[{name}]", f"{value!r} is not a string")
        return values

    def time(self, field: str) -> datetime | None:
        """An RFC 3339 time, or None when absent."""
        text = self.text(field)
        if text is None:
            return None
        try:
            return parse_rfc3339(text)
        except (ValueError, OverflowError):
            self.refuse(field, f"{text!r} is not an RFC 3339 time")

    def list(self, field: str) -> list[Any]:
        """A list of whatever it holds, empty when absent."""
        value = self._left.pop(field, None)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(field, "not a list")
        return value

    def map(self, field: str) -> dict[str, Any]:
        """A map of strings to whatever it holds, empty when absent."""
        value = self._left.pop(field, None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(field, "not an object")
        return value

    def inner(self, field: str, place: int, value: Any) -> WireObject:
        """An object in a list of this one's."""
        return WireObject(f"{self._where}: {field}[{place}]", value)

    def rest(self) -> dict[str, Any]:
        """The fields nobody asked for."""
        return self._left

    def _checked(self, field: str, value: Any, most: int = INT64_MAX) -> int:
        if not is_integer(value, most):
            self.refuse(field, f"{value!r} is not an integer from 0 to {most}")
        return int(value)


def is_integer(value: Any, most: int) -> bool:
    """Whether it is an integer from 0 to `most`; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def are_integers(values: Collection[Any], most: int) -> bool:
    """Whether all are integers from 0 to `most`, in the time that C takes for it."""
    return not values or (
        set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= most
    )


def with_extra(wire: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Unknown fields, as they were, after the known ones."""
    for name, value in extra.items():
        wire.setdefault(name, integral(value))
    return wire
