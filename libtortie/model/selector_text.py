"""Selectors written down: put together, or again about labels of other names. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from libtortie.errors import InvalidInput
from libtortie.model.policy import LABEL_NAMESPACE, NAMESPACE_PREFIX
from libtortie.model.selectors import All, And, Compare, Has, In, Not, Or, Selector, parse

Rename = Callable[[str], str]
_GLOBAL = re.compile(r"[ \t]*global\([ \t]*\)[ \t]*")


def both(*parts: str) -> str:
    """The selector of what all of these select; `""` among them is any."""
    given = [part for part in parts if part]
    return given[0] if len(given) == 1 else " && ".join(f"({part})" for part in given)


def in_namespace(namespace: str) -> str:
    """The selector of what is in a namespace."""
    return f"{LABEL_NAMESPACE} == '{namespace}'"


def of_namespaces(text: str) -> str:
    """The selector of what is in the namespaces that a selector of namespaces selects."""
    if is_global(text):
        return f"!has({LABEL_NAMESPACE})"
    if selects_all(text):
        return f"has({LABEL_NAMESPACE})"
    return prefixed(text, NAMESPACE_PREFIX)


def is_global(text: str) -> bool:
    """Whether a namespace selector is of what is in no namespace."""
    return _GLOBAL.fullmatch(text) is not None


def prefixed(text: str, prefix: str) -> str:
    """A selector of namespaces or accounts, as one of what is in them. Raises `InvalidInput`."""
    return _text(parse(text), lambda key: prefix + key)


def selects_all(text: str) -> bool:
    """Whether a selector is `all()` and nothing else. Raises `InvalidInput`."""
    return isinstance(parse(text), All)


def _text(selector: Selector, rename: Rename) -> str:
    match selector:
        case Not(operand):
            return f"!({_text(operand, rename)})"
        case And(operands) | Or(operands):
            sign = " && " if isinstance(selector, And) else " || "
            return sign.join(f"({_text(one, rename)})" for one in operands)
    return _atom(selector, rename)


def _atom(selector: Selector, rename: Rename) -> str:
    match selector:
        case All():
            return "all()"
        case Has(key):
            return f"has({rename(key)})"
        case Compare(key, operator, value):
            return f"{rename(key)} {operator} {quoted(value)}"
        case In(key, values, negated):
            listed = ", ".join(quoted(value) for value in sorted(values))
            return f"{rename(key)} {'not in' if negated else 'in'} {{ {listed} }}"
    raise TypeError(f"no selector: {selector!r}")


def quoted(value: str) -> str:
    """A string of a selector. Raises `InvalidInput` for both kinds of quotes: no escapes exist."""
    if "'" in value and '"' in value:
        raise InvalidInput(f"{value!r} has both kinds of quotes, which no selector can say")
    return f"'{value}'" if "'" not in value else f'"{value}"'
