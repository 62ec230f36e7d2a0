"""How the fields of a written resource are described: small checks that are put together.

A check looks at one value of a manifest, tells everything that is wrong with it by path, and
returns the value as Calico would store it (`2m` is `2m0s`). It never raises and never stops at the
first problem. Pure; the tables of each kind are in `spec_*.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.fields import network_of
from libtortie.model.plain_ip import plain_address, plain_network
from libtortie.model.times import go_duration, parse_duration
from libtortie.wording import meant

Problems = list[str]
Check = Callable[[Any, str, Problems], Any]
Rule = Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]]
"""What fields of one object must be to each other: (field or "", why) for each that is wrong."""

SELECTOR_MAX = 1024
_INTEGERS_ONLY = re.compile(r"([0-9]+(ms|s|m|h))*")


def valued(read: Callable[[Any], Any]) -> Check:
    """A check from a function that returns the stored value or raises ValueError, TypeError."""

    def check(value: Any, path: str, problems: Problems) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, InvalidInput) as error:
            problems.append(f"{path}: {error}")
            return value

    return check


def anything(value: Any, path: str, problems: Problems) -> Any:
    """Whatever it is."""
    return value


@valued
def flag(value: Any) -> Any:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not true or false")
    return value


def text(pattern: str = "", *, most: int = 0, said: str = "") -> Check:
    """A string; `said` is what one that does not match is told."""
    compiled = re.compile(pattern)

    @valued
    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not a string")
        if pattern and not compiled.fullmatch(value):
            raise ValueError(f"{shown(value)} {said or f'does not match {pattern}'}")
        if most and len(value) > most:
            raise ValueError(f"is longer than {most} characters")
        return value

    return check


def number(least: int, most: int) -> Check:
    """A whole number."""

    @valued
    def check(value: Any) -> Any:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise ValueError(f"{shown(value)} is not a whole number")
        if not least <= value <= most:
            raise ValueError(f"{shown(value)} is not between {least} and {most}")
        return int(value)

    return check


@valued
def real(value: Any) -> Any:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number")
    if not -1.8e308 < value < 1.8e308:
        raise ValueError(f"{shown(value)} is not a finite number")
    return value


def one_of(*words: str, any_case: bool = False) -> Check:
    """One of several words."""
    lower = {word.lower(): word for word in words}

    @valued
    def check(value: Any) -> Any:
        good = isinstance(value, str) and (value.lower() in lower if any_case else value in words)
        if not good:
            hint = meant(value, words) if isinstance(value, str) else ""
            raise ValueError(f"{shown(value)} is not one of {', '.join(words)}{hint}")
        return value

    return check


def duration(*, least: float = 0.0, whole: bool = False, least_said: str = "") -> Check:
    """A Go duration, as Go writes it; `whole`: Calico's schema takes no fractions and only
    ms, s, m and h."""

    @valued
    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not a duration such as 30s or 1m30s")
        if whole and value != "0" and not _INTEGERS_ONLY.fullmatch(value):
            raise ValueError(f"{shown(value)}: want whole numbers of ms, s, m and h, as in 1m30s")
        seconds = parse_duration(value)
        if seconds < least:
            raise ValueError(f"{shown(value)} is {least_said or f'less than {least:g}s'}")
        return go_duration(seconds)

    return check


@valued
def selector(value: Any) -> Any:
    """A selector, or nothing."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a selector")
    if len(value) > SELECTOR_MAX:
        raise ValueError(f"a selector of more than {SELECTOR_MAX} characters")
    selectors.parse(value)
    return value


@valued
def network(value: Any) -> Any:
    """`address/length` without host bits, in its canonical form."""
    return str(network_of(_string(value, "a network")))


@valued
def any_network(value: Any) -> Any:
    """A network or one address; bits behind the prefix length do no harm."""
    given = _string(value, "a network or address")
    plain_network(given)
    return given


@valued
def address(value: Any) -> Any:
    """An IP address in its canonical form."""
    return str(plain_address(_string(value, "an IP address")))


@valued
def interface_address(value: Any) -> Any:
    """An address with its network's length (`192.0.2.11/24`); host bits are kept."""
    given = _string(value, "address/prefix length")
    plain_network(given)
    host, slash, length = given.partition("/")
    return f"{plain_address(host)}{slash}{length}"


@valued
def as_number(value: Any) -> Any:
    """An AS number: also `"64512"` and dotted `"1.10"` (RFC 5396)."""
    if isinstance(value, float):
        raise ValueError(f"{shown(value)} is not an AS number; write a dotted one in quotes")
    given = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(given, str) or not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,5})?", given):
        raise ValueError(f"{shown(value)} is not an AS number")
    high, dot, low = given.partition(".")
    if dot and not (int(high) < 1 << 16 and int(low) < 1 << 16):
        raise ValueError(f"{shown(value)} is not an AS number")
    found = int(high) << 16 | int(low) if dot else int(high)
    if found >= 1 << 32:
        raise ValueError(f"{shown(value)} is not an AS number: it has 32 bits")
    return found


def list_of(check_item: Check, *, most: int = 0, least: int = 0) -> Check:
    """A list; each item's path has its number."""

    def check(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, list):
            problems.append(f"{path}: {shown(value)} is not a list")
            return value
        if most and len(value) > most:
            problems.append(f"{path}: {len(value)} items, and {most} are the most")
        if len(value) < least:
            problems.append(f"{path}: {len(value)} items, and {least} are the fewest")
        return [check_item(item, f"{path}.{place}", problems) for place, item in enumerate(value)]

    return check


def map_of(check_value: Check, check_key: Check = anything) -> Check:
    """An object whose keys are anybody's."""

    def check(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, Mapping):
            problems.append(f"{path}: {shown(value)} is not an object")
            return value
        for key in value:
            check_key(key, f"{path}.{key}", problems)
        return {key: check_value(item, f"{path}.{key}", problems) for key, item in value.items()}

    return check


def struct(
    fields: Mapping[str, Check],
    *,
    required: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
    rules: Iterable[Rule] = (),
) -> Check:
    """An object of known fields. A null field is an absent one, as it is to Go.

    `defaults` are written where a field is absent or Go's zero, which reads the same.
    """
    needed, rules = tuple(required), tuple(rules)

    def check(value: Any, path: str, problems: Problems) -> Any:
        if not isinstance(value, Mapping):
            problems.append(f"{path}: {shown(value)} is not an object")
            return value
        before = len(problems)
        found: dict[str, Any] = {}
        for name, item in value.items():
            if item is None:
                continue
            look = fields.get(name) if isinstance(name, str) else None
            if look is None:
                hint = meant(str(name), fields)
                problems.append(f"{path}.{name}: no such field is known{hint}")
                found[name] = item
                continue
            found[name] = look(item, f"{path}.{name}", problems)
        problems += [f"{path}.{name}: is missing" for name in needed if name not in found]
        for name, standard in (defaults or {}).items():
            if not found.get(name) and found.get(name) is not False:
                found[name] = standard
        if len(problems) == before:
            for rule in rules:
                problems += [
                    f"{path}.{name}: {why}" if name else f"{path}: {why}"
                    for name, why in rule(found)
                ]
        return found

    return check


def either(*names: str) -> Rule:
    """At most one of several fields."""

    def rule(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        given = [name for name in names if found.get(name)]
        if len(given) > 1:
            yield given[1], f"excludes {given[0]}"

    return rule


def needs(name: str, *others: str) -> Rule:
    """A field that means nothing without one of others."""

    def rule(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if found.get(name) and not any(found.get(other) for other in others):
            yield name, f"needs {' or '.join(others)}"

    return rule


def shown(value: Any) -> str:
    """A value in a message, never long."""
    said = repr(value)
    return said if len(said) <= 60 else said[:57] + "..."


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not {what}")
    return value
