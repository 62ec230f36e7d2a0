"""Facts of the history to and from what is stored of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.errors import InvalidInput, Malformed
from libtortie.model.history import Facts, What, from_wire, to_wire


def facts_to_wire(value: Facts) -> dict[str, Any]:
    """The JSON object. Raises `InvalidInput` for a record without facts."""
    if not value.facts:
        raise InvalidInput("a record of the history has no facts")
    return {"facts": [to_wire(one) for one in value.facts]}


def facts_from_wire(where: str, wire: Mapping[str, Any]) -> Facts:
    """The facts, without those of kinds that a newer program knows. Raises `Malformed`."""
    found = wire.get("facts")
    if not isinstance(found, list):
        raise Malformed(f"{where}: facts: not a list")
    known = [(at, one) for at, one in enumerate(found) if _known(one)]
    if found and not known:
        kinds = sorted({repr(one["what"][:40]) for one in found})[:3]
        raise Malformed(
            f"{where}: facts: only of kinds unknown to this version: {', '.join(kinds)}"
        )
    return Facts(tuple(from_wire(f"{where}: facts[{at}]", one) for at, one in known))


def _known(fact: object) -> bool:
    """False for a fact of a kind that this program does not know."""
    what = fact.get("what") if isinstance(fact, Mapping) else None
    return not isinstance(what, str) or not what or what in set(What)
