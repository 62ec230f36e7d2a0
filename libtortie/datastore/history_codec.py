"""Facts of the history to and from what is stored of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.errors import InvalidInput, Malformed
from libtortie.model.history import Facts, from_wire, to_wire


def facts_to_wire(value: Facts) -> dict[str, Any]:
    """The JSON object. Raises `InvalidInput` for a record without facts."""
    if not value.facts:
        raise InvalidInput("a record of the history has no facts")
    return {"facts": [to_wire(one) for one in value.facts]}


def facts_from_wire(where: str, wire: Mapping[str, Any]) -> Facts:
    """The facts. Raises `Malformed`."""
    found = wire.get("facts")
    if not isinstance(found, list):
        raise Malformed(f"{where}: facts: not a list")
    pairs = enumerate(found)
    return Facts(tuple(from_wire(f"{where}: facts[{at}]", one) for at, one in pairs))
