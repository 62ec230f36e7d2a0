"""Label and field selectors: parsed once, then a plain test. Pure.

Grammar (Kubernetes, "Labels and Selectors"): comma-separated requirements `k=v`, `k==v`, `k!=v`,
`k in (a,b)`, `k notin (a,b)`, `k`, `!k`. `!=` and `notin` also select objects without the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lab.apiserver.errors import ApiError, bad_request

Test = Callable[[Mapping[str, Any]], bool]
_PREFIX = r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?/"
_KEY = rf"(?:{_PREFIX})?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
LABEL_KEY = re.compile(rf"{_KEY}\Z")
LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\Z")
_EQUAL = re.compile(rf"(?P<key>{_KEY})\s*(?P<op>==|!=|=)\s*(?P<value>[^=!]*)\Z")
_EXISTS = re.compile(rf"(?P<not>!?)\s*(?P<key>{_KEY})\Z")


def everything(_: Mapping[str, Any]) -> bool:
    """The empty selector."""
    return True


def label_test(selector: str) -> Test:
    """A test of an object's labels. Raises 400 for what does not parse."""
    tests = [_label_requirement(part, selector) for part in _split(selector)]
    if not tests:
        return everything

    def matches(body: Mapping[str, Any]) -> bool:
        labels = (body.get("metadata") or {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def selector_test(selector: Mapping[str, Any]) -> Test:
    """A test by a LabelSelector object; the empty one matches everything. Raises 400."""
    labels = selector.get("matchLabels") or {}
    parts = [f"{key}={value}" for key, value in labels.items()]
    for found in selector.get("matchExpressions") or ():
        key, values = found.get("key", ""), ",".join(found.get("values") or ())
        texts = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": f"{key}",
            "DoesNotExist": f"!{key}",
        }
        if found.get("operator") not in texts:
            raise bad_request(f"{found.get('operator')!r} is not a valid label selector operator")
        parts.append(texts[found["operator"]])
    return label_test(",".join(parts))


def field_test(selector: str, selectable: tuple[str, ...]) -> Test:
    """A test of an object's fields. Raises 400 for a field that cannot be selected by."""
    tests: list[tuple[tuple[str, ...], bool, str]] = []
    for part in _split(selector):
        found = re.match(r"([A-Za-z.]+)\s*(==|!=|=)(.*)\Z", part)
        if found is None:
            raise _unparsable(selector)
        name, operator, value = found[1], found[2], found[3].strip()
        if name not in selectable:
            raise bad_request(f"field label not supported: {name}")
        tests.append((tuple(name.split(".")), operator != "!=", value))
    if not tests:
        return everything

    def matches(body: Mapping[str, Any]) -> bool:
        return all((_field(body, path) == value) is wanted for path, wanted, value in tests)

    return matches


def only_name(selector: str) -> str:
    """The one name a field selector admits; empty when it admits others."""
    found = re.search(r"(?:\A|,)\s*metadata\.name\s*==?([^,=!]*)", selector)
    return found[1].strip() if found else ""


def _field(body: Mapping[str, Any], path: tuple[str, ...]) -> str:
    """A field's text; absent reads as empty, as in Kubernetes."""
    found: Any = body
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return "" if found is None else str(found)


def _split(selector: str) -> list[str]:
    """Requirements, split at commas outside of parentheses."""
    parts: list[str] = []
    depth, start = 0, 0
    for position, character in enumerate(selector):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(selector[start:position])
            start = position + 1
    parts.append(selector[start:])
    stripped = [part.strip() for part in parts]
    if stripped == [""]:
        return []
    if depth != 0 or "" in stripped:
        raise _unparsable(selector)
    return stripped


def _label_requirement(part: str, selector: str) -> Callable[[Mapping[str, Any]], bool]:
    if found := _SET.match(part):
        values = frozenset(value.strip() for value in found["values"].split(","))
        if not all(LABEL_VALUE.match(value) for value in values):
            raise _unparsable(selector)
        return _member(found["key"], values, found["op"] == "in")
    if found := _EQUAL.match(part):
        value = found["value"].strip()
        if not LABEL_VALUE.match(value):
            raise _unparsable(selector)
        return _member(found["key"], frozenset((value,)), found["op"] != "!=")
    if found := _EXISTS.match(part):
        return _presence(found["key"], found["not"] == "")
    raise _unparsable(selector)


def _member(key: str, values: frozenset[str], wanted: bool) -> Callable[[Mapping[str, Any]], bool]:
    return lambda labels: (key in labels and labels[key] in values) is wanted


def _presence(key: str, wanted: bool) -> Callable[[Mapping[str, Any]], bool]:
    return lambda labels: (key in labels) is wanted


def _unparsable(selector: str) -> ApiError:
    return bad_request(f"unable to parse requirement: {selector!r}")
