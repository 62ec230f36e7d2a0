"""Reports of `ipam check` as `ipam release` reads them: what all of them say nobody uses. Pure.

calicoctl's reports and ours have one form. A report is a stranger's text: what it lacks is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from libtortie.datastore import gojson
from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress


@dataclass(frozen=True, slots=True)
class Leak:
    """An allocation that a report says is used by nobody."""

    address: IPAddress
    handle_id: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """One report."""

    where: str
    version: str
    guid: str
    locked: bool
    revision: str
    leaks: frozenset[Leak]
    handles: frozenset[tuple[str, str]]
    """Id and revision of records that hold nothing."""


@dataclass(frozen=True, slots=True)
class Present:
    """The cluster as it is now."""

    version: str
    guid: str
    locked: bool
    revision: str


def parse(text: str, where: str) -> Report:
    """A report. Raises `InvalidInput` naming file and field."""
    try:
        body = gojson.loads(text.encode())
    except ValueError as error:
        raise InvalidInput(f"{where}: not a report of `ipam check -o`: {error}") from error
    if not isinstance(body, dict):
        raise InvalidInput(f"{where}: not a report of `ipam check -o`: no object")
    held = _field(body, "allocations", dict, where)
    leaks = {
        _leak(one, f"{where}: allocations.{address}")
        for address, found in held.items()
        for one in (found if isinstance(found, list) else [found])
        if not isinstance(one, Mapping) or one.get("inUse") is False
    }
    handles = body.get("leakedHandles") or []
    if not isinstance(handles, list):
        raise InvalidInput(f"{where}: leakedHandles: not a list")
    return Report(
        where,
        _field(body, "version", str, where),
        _field(body, "clusterGUID", str, where),
        _field(body, "datastoreLocked", bool, where),
        str(body.get("clusterInformationRevision", "")),
        frozenset(leaks),
        frozenset(
            (str(one.get("ID")), str(one.get("Revision", "")))
            for one in handles
            if isinstance(one, Mapping)
        ),
    )


def problems_of(reports: Sequence[Report], now: Present, *, force: bool) -> Iterable[str]:
    """Why reports cannot be gone by; `force` passes over all but another cluster's."""
    for one in reports:
        if one.guid != now.guid:
            yield (
                f"{one.where}: is of another cluster: its GUID is {one.guid or '(none)'}, and this "
                f"one's {now.guid or '(none)'}"
            )
    if force:
        return
    for one in reports:
        if one.version != now.version:
            yield f"{one.where}: is of version {one.version}, and this is {now.version}"
    if not now.locked:
        yield "the datastore is not locked: `tortiectl datastore migrate lock`, then check anew"
    elif not any(one.locked and one.revision == now.revision for one in reports):
        yield (
            "no report was made since the datastore was locked: `tortiectl ipam check -o FILE`, "
            "and give that, too"
        )


def common(reports: Sequence[Report]) -> tuple[list[Leak], list[tuple[str, str]]]:
    """The leaks and the empty handles that all reports have, in order."""
    leaks = frozenset.intersection(*(one.leaks for one in reports))
    handles = frozenset.intersection(*(one.handles for one in reports))
    return (
        sorted(leaks, key=lambda one: (one.address.version, int(one.address))),
        sorted(handles),
    )


def _leak(one: Any, where: str) -> Leak:
    if not isinstance(one, Mapping):
        raise InvalidInput(f"{where}: not an object")
    try:
        address = ip_address(str(one.get("ip")))
    except ValueError as error:
        raise InvalidInput(f"{where}: ip: {error}") from error
    number = one.get("sequenceNumber")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise InvalidInput(f"{where}: sequenceNumber: {number!r} is not a number")
    return Leak(address, str(one.get("handle") or ""), number)


def _field(body: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = body.get(name)
    if not isinstance(value, kind):
        raise InvalidInput(f"{where}: {name}: missing, or not a report of `ipam check -o`")
    return value
