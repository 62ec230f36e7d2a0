"""Selectors written down again, as they are or about labels of other names. Pure."""

from __future__ import annotations

from collections.abc import Callable

from libtortie.model.selectors import All, And, Compare, Has, In, Not, Or, Selector, parse

Rename = Callable[[str], str]


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
            return f"{rename(key)} {operator} {_quoted(value)}"
        case In(key, values, negated):
            listed = ", ".join(_quoted(value) for value in sorted(values))
            return f"{rename(key)} {'not in' if negated else 'in'} {{ {listed} }}"
    raise TypeError(f"no selector: {selector!r}")


def _quoted(value: str) -> str:
    """No string has both kinds of quotes: there are no escapes."""
    return f"'{value}'" if "'" not in value else f'"{value}"'
