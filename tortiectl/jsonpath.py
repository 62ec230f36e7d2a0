"""kubectl's JSONPath templates: text with `{...}` in it, read once, applied to an object. Pure.

    {.items[*].metadata.name}                     every name, a space between
    {range .items[*]}{.metadata.name}{"\\n"}{end}   a line each
    {.items[?(@.spec.disabled==true)].spec.cidr}  those for which something holds
    {.metadata.labels['a.b/c']}  {..cidr}  {.items[-1:]}  {.items[0,2]}

What is not there gives nothing. Text outside of braces, and in quotes within them, is itself.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from libtortie.datastore import gojson
from libtortie.errors import InvalidInput

DEPTH_MAX = 64
_NAME = re.compile(r"[^\s.\[\]{}()'\"=!<>,|&*]+")
_INDEX = re.compile(r"-?\d+$")
_SLICE = re.compile(r"(-?\d*):(-?\d*)(?::(-?\d*))?$")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}

Step = Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Path:
    steps: tuple[Step, ...]

    def values(self, root: Any) -> list[Any]:
        """What the path finds."""
        found = [root]
        for step in self.steps:
            found = [value for one in found for value in step(one)]
        return found


@dataclass(frozen=True, slots=True)
class _Range:
    over: _Path
    body: list[_Node] = field(default_factory=list)


_Node = _Text | _Path | _Range


class Template:
    """A template, read. Raises `InvalidInput` with the place of what is wrong."""

    def __init__(self, text: str) -> None:
        self._nodes: list[_Node] = []
        stack = [self._nodes]
        for piece in _pieces(text):
            if isinstance(piece, _Text):
                stack[-1].append(piece)
                continue
            for node in _Reader(piece).nodes():
                if node == "end":
                    if len(stack) == 1:
                        raise InvalidInput("jsonpath: {end} without {range}")
                    stack.pop()
                    continue
                assert not isinstance(node, str)
                stack[-1].append(node)
                if isinstance(node, _Range):
                    stack.append(node.body)
                    if len(stack) > DEPTH_MAX:
                        raise InvalidInput("jsonpath: nested too deeply")
        if len(stack) > 1:
            raise InvalidInput("jsonpath: {range} without {end}")

    def render(self, root: Any) -> str:
        """The text for an object."""
        return "".join(_rendered(self._nodes, root))

    def values(self, root: Any) -> list[Any]:
        """What its paths find, for a template that is one path."""
        paths = [node for node in self._nodes if isinstance(node, _Path)]
        return [value for path in paths for value in path.values(root)]


def _rendered(nodes: Iterable[_Node], root: Any) -> Iterator[str]:
    for node in nodes:
        match node:
            case _Text(text):
                yield text
            case _Path():
                yield " ".join(_shown(value) for value in node.values(root))
            case _Range(over, body):
                for value in over.values(root):
                    yield from _rendered(body, value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pieces(text: str) -> Iterator[_Text | str]:
    """Plain text, and what stands in braces."""
    place = 0
    while place < len(text):
        start = text.find("{", place)
        if start < 0:
            yield _Text(text[place:])
            return
        if start > place:
            yield _Text(text[place:start])
        end = _closing(text, start)
        yield text[start + 1 : end]
        place = end + 1


def _closing(text: str, start: int) -> int:
    quote = ""
    place = start + 1
    while place < len(text):
        char = text[place]
        if quote:
            if char == "\\":
                place += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char == "}":
            return place
        place += 1
    raise InvalidInput(f"jsonpath: {{ at character {start + 1} is not closed")


class _Reader:
    """What stands in one pair of braces."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    def nodes(self) -> Iterator[_Node | str]:
        """The nodes; `end` for the end of a range."""
        self._blank()
        while self._place < len(self._text):
            char = self._text[self._place]
            if char in "'\"":
                yield _Text(self._quoted())
            elif self._word("range"):
                self._blank()
                yield _Range(self._path())
            elif self._word("end"):
                yield "end"
            else:
                yield self._path()
            self._blank()

    def _path(self) -> _Path:
        steps: list[Step] = []
        start = self._place
        while self._place < len(self._text):
            char = self._text[self._place]
            if char in "$@" and self._place == start:
                self._place += 1
            elif self._text.startswith("..", self._place):
                self._place += 2
                steps.append(_deep)
                if self._rest() and self._rest()[0] not in "[*":
                    steps.append(_child(self._name()))
                elif self._rest().startswith("*"):
                    self._place += 1
                    steps.append(_every)
            elif char == ".":
                self._place += 1
                if self._rest().startswith("*"):
                    self._place += 1
                    steps.append(_every)
                elif self._rest() and self._rest()[0] not in " [":
                    steps.append(_child(self._name()))
            elif char == "[":
                steps.append(self._bracket())
            elif self._place == start:
                steps.append(_child(self._name()))
            else:
                break
        if self._place == start:
            raise self._wrong("want a path")
        return _Path(tuple(steps))

    def _bracket(self) -> Step:
        end = self._matching()
        inner = self._text[self._place + 1 : end].strip()
        self._place = end + 1
        if inner == "*":
            return _every
        if inner.startswith("?(") and inner.endswith(")"):
            return _filter(inner[2:-1])
        if found := _SLICE.match(inner):
            first, last, stride = (int(part) if part else None for part in found.groups())
            if stride == 0:
                raise InvalidInput(f"jsonpath: [{inner}]: a stride of 0")
            return lambda value: value[first:last:stride] if isinstance(value, list) else []
        steps = [self._member(part.strip()) for part in _split(inner)]
        return lambda value: [one for step in steps for one in step(value)]

    def _member(self, part: str) -> Step:
        if len(part) >= 2 and part[0] in "'\"" and part[-1] == part[0]:
            return _child(part[1:-1])
        if _INDEX.match(part):
            return _at(int(part))
        raise InvalidInput(f"jsonpath: [{part}]: want a number, a slice, 'a name', * or ?(...)")

    def _matching(self) -> int:
        """The end of the bracket that begins here."""
        depth, quote = 0, ""
        for place in range(self._place, len(self._text)):
            char = self._text[place]
            if quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == "[":
                depth += 1
            elif char == "]":
                depth -= 1
                if depth == 0:
                    return place
        raise self._wrong("[ is not closed")

    def _name(self) -> str:
        name = ""
        while self._place < len(self._text):
            if self._rest()[0] == "\\" and len(self._rest()) > 1:
                name += self._rest()[1]
                self._place += 2
            elif found := _NAME.match(self._text.replace("\\", " "), self._place):
                name += found[0]
                self._place = found.end()
            else:
                break
        if not name:
            raise self._wrong("want a name")
        return name

    def _quoted(self) -> str:
        quote, text = self._text[self._place], ""
        self._place += 1
        while self._place < len(self._text):
            char = self._text[self._place]
            self._place += 1
            if char == quote:
                return text
            if char == "\\" and self._place < len(self._text):
                text += _ESCAPES.get(self._text[self._place], self._text[self._place])
                self._place += 1
            else:
                text += char
        raise self._wrong("a quoted text is not closed")

    def _word(self, word: str) -> bool:
        rest = self._rest()
        if rest.startswith(word) and (len(rest) == len(word) or rest[len(word)].isspace()):
            self._place += len(word)
            return True
        return False

    def _blank(self) -> None:
        while self._place < len(self._text) and self._text[self._place].isspace():
            self._place += 1

    def _rest(self) -> str:
        return self._text[self._place :]

    def _wrong(self, why: str) -> InvalidInput:
        return InvalidInput(f"jsonpath: {{{self._text}}}: {why} at {self._rest()[:20]!r}")


def _split(inner: str) -> list[str]:
    """Members of a union; commas within quotes are text."""
    parts, quote = [""], ""
    for char in inner:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == ",":
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _child(name: str) -> Step:
    return lambda value: [value[name]] if isinstance(value, Mapping) and name in value else []


def _at(place: int) -> Step:
    def step(value: Any) -> list[Any]:
        inside = isinstance(value, list) and -len(value) <= place < len(value)
        return [value[place]] if inside else []

    return step


def _every(value: Any) -> list[Any]:
    if isinstance(value, list):
        return list(value)
    return list(value.values()) if isinstance(value, Mapping) else []


def _deep(value: Any) -> Iterator[Any]:
    """A value and all that is in it, in order."""
    yield value
    for one in _every(value):
        yield from _deep(one)


def _filter(text: str) -> Step:
    """Items of a list (values of an object) for which a comparison holds, or a path finds
    something."""
    found = re.match(r"\s*(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*$", text)
    left = _operand(found[1] if found else text)
    if not found:
        return lambda value: [one for one in _every(value) if left(one)]
    compare, right = _COMPARE[found[2]], _operand(found[3])

    def holds(one: Any) -> bool:
        try:
            return any(compare(a, b) for a in left(one) for b in right(one))
        except TypeError:
            return False

    return lambda value: [one for one in _every(value) if holds(one)]


def _operand(text: str) -> Callable[[Any], list[Any]]:
    text = text.strip()
    if text[:1] in "'\"" and text[-1:] == text[:1] and len(text) > 1:
        return lambda _: [text[1:-1]]
    if text.startswith("@"):
        nodes = list(_Reader(text).nodes())
        if len(nodes) == 1 and isinstance(nodes[0], _Path):
            return nodes[0].values
        raise InvalidInput(f"jsonpath: {text!r} is not a path")
    try:
        value = gojson.loads(text.encode())
    except ValueError as error:
        raise InvalidInput(f"jsonpath: {text!r} is no @path, number or 'text'") from error
    return lambda _: [value]
