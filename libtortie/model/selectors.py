"""Calico's selector language: parsed once, evaluated against label maps. Pure.

Grammar (Calico v3; `key` is `[A-Za-z0-9_./-]+`, at most 512 characters; strings stand in single
or double quotes, without escapes; blanks are space and tab)::

    or    := and ("||" and)*          and := unary ("&&" unary)*
    unary := "!"* ( "(" or ")" | atom )
    atom  := "all()" | "global()" | "has(" key ")" | key ("==" | "!=") str
           | key ("in" | "not in" | "notin") "{" [str ("," str)*] "}"
           | key ("contains" | "starts with" | "ends with") str

The empty selector is `all()`. On a missing label `!=` and `not in` are true, all else is false.
A selector that can't be read is never taken for one that matches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from libtortie.errors import InvalidInput

KEY_MAX = 512
DEPTH_MAX = 64
"""Nesting of parentheses; deeper is refused, so that a hostile selector can't end the process."""


class Selector(Protocol):
    """A parsed selector."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        ...


class Operator(StrEnum):
    """How a label's value is compared."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    CONTAINS = "contains"
    STARTS_WITH = "starts with"
    ENDS_WITH = "ends with"


@dataclass(frozen=True, slots=True)
class All:
    """`all()` and `global()`: every object."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Always true."""
        return True


@dataclass(frozen=True, slots=True)
class Has:
    """`has(key)`."""

    key: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """The label exists, whatever its value."""
        return self.key in labels


@dataclass(frozen=True, slots=True)
class Compare:
    """`key operator 'value'`."""

    key: str
    operator: Operator
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Compare the label's value; a missing label only satisfies `!=`."""
        actual = labels.get(self.key)
        if actual is None:
            return self.operator is Operator.NOT_EQUAL
        match self.operator:
            case Operator.EQUAL:
                return actual == self.value
            case Operator.NOT_EQUAL:
                return actual != self.value
            case Operator.CONTAINS:
                return self.value in actual
            case Operator.STARTS_WITH:
                return actual.startswith(self.value)
            case Operator.ENDS_WITH:
                return actual.endswith(self.value)


@dataclass(frozen=True, slots=True)
class In:
    """`key in {...}`, or with `negated` `key not in {...}`."""

    key: str
    values: frozenset[str]
    negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Membership; a missing label is in no set."""
        found = self.key in labels and labels[self.key] in self.values
        return found is not self.negated


@dataclass(frozen=True, slots=True)
class Not:
    """`! operand`."""

    operand: Selector

    def matches(self, labels: Mapping[str, str]) -> bool:
        """The contrary of the operand."""
        return not self.operand.matches(labels)


@dataclass(frozen=True, slots=True)
class And:
    """Operands joined by `&&`."""

    operands: tuple[Selector, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Every operand matches."""
        return all(operand.matches(labels) for operand in self.operands)


@dataclass(frozen=True, slots=True)
class Or:
    """Operands joined by `||`."""

    operands: tuple[Selector, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Some operand matches."""
        return any(operand.matches(labels) for operand in self.operands)


@lru_cache(maxsize=1024)
def parse(text: str) -> Selector:
    """The selector a text describes. Raises `InvalidInput` naming text and position."""
    parser = _Parser(text)
    if parser.at_end():
        return All()
    selector = parser.disjunction(0)
    if not parser.at_end():
        raise parser.error("an operator or the end")
    return selector


_BLANKS = re.compile(r"[ \t]*")
_ALL = re.compile(r"(?:all|global)\([ \t]*\)")
_HAS = re.compile(r"has\([ \t]*([A-Za-z0-9_./-]+)[ \t]*\)")
_KEY = re.compile(r"[A-Za-z0-9_./-]+")
_STRING = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_COMPARE = re.compile(r"==|!=|contains|starts[ \t]+with|ends[ \t]+with")
_IN = re.compile(r"(not[ \t]*)?in\b")


class _Parser:
    """Recursive descent over one text; every method leaves the position after what it took."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def error(self, wanted: str) -> InvalidInput:
        return InvalidInput(f"selector {self._text!r}: expected {wanted} at position {self._at}")

    def at_end(self) -> bool:
        self._skip()
        return self._at == len(self._text)

    def disjunction(self, depth: int) -> Selector:
        operands = [self._conjunction(depth)]
        while self._take("||"):
            operands.append(self._conjunction(depth))
        return operands[0] if len(operands) == 1 else Or(tuple(operands))

    def _conjunction(self, depth: int) -> Selector:
        operands = [self._unary(depth)]
        while self._take("&&"):
            operands.append(self._unary(depth))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def _unary(self, depth: int) -> Selector:
        negated = False
        while self._take("!"):
            negated = not negated
        operand = self._group(depth) if self._take("(") else self._atom()
        return Not(operand) if negated else operand

    def _group(self, depth: int) -> Selector:
        if depth >= DEPTH_MAX:
            raise self.error(f"at most {DEPTH_MAX} nested parentheses")
        inner = self.disjunction(depth + 1)
        self._need(")")
        return inner

    def _atom(self) -> Selector:
        if self._match(_ALL):
            return All()
        if has := self._match(_HAS):
            return Has(self._checked(has[1]))
        if not (key := self._match(_KEY)):
            raise self.error("a label name, a function or a parenthesis")
        name = self._checked(key[0])
        if operator := self._match(_COMPARE):
            return Compare(name, Operator(" ".join(operator[0].split())), self._string())
        if membership := self._match(_IN):
            return In(name, self._set(), negated=membership[1] is not None)
        raise self.error("an operator")

    def _set(self) -> frozenset[str]:
        self._need("{")
        values: set[str] = set()
        if self._take("}"):
            return frozenset()
        values.add(self._string())
        while self._take(","):
            values.add(self._string())
        self._need("}")
        return frozenset(values)

    def _string(self) -> str:
        if found := self._match(_STRING):
            return found[1] if found[1] is not None else found[2]
        raise self.error("a quoted string")

    def _checked(self, key: str) -> str:
        if len(key) > KEY_MAX:
            raise self.error(f"a label name of at most {KEY_MAX} characters")
        return key

    def _skip(self) -> None:
        blanks = _BLANKS.match(self._text, self._at)
        self._at = blanks.end() if blanks else self._at

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        self._skip()
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return found

    def _take(self, token: str) -> bool:
        self._skip()
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self.error(repr(token))
