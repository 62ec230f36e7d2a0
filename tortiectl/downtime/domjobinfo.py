"""What `virsh domjobinfo` prints, of any libvirt and in any language. Pure.

A label that is libvirt's own English is taken at its word, wherever its line stands. Others are
another language's: their lines are told by what they measure (ms, sizes, counts ...) and by the
order in which every virsh prints, so no list of translations is needed. Numbers may have a decimal
comma. A time that libvirt computed below zero, by clocks that differ, comes as an unsigned number
near 2**64 and is negative again here. Raises `InvalidInput`, and `NoRecord` where libvirt has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from libtortie.errors import InvalidInput, NotFound
from tortiectl.downtime.job import Job, Outcome

SOURCE = "libvirt"
_MOST = 1 << 20
"""Characters that are read; what virsh prints has less than 2,000."""
_MOST_LINES = 100


class NoRecord(NotFound):
    """libvirt keeps no statistics of a finished job."""


class _Measure(Enum):
    """What a value measures, as its unit tells."""

    MS = "ms"
    SIZE = "size"
    RATE = "size/s"
    PAGES = "pages/s"
    BYTES = "bytes"
    COUNT = ""


_RARE, _USUAL, _ALWAYS = 1, 4, 10
"""What it costs to believe that a line is missing."""

_ORDER: tuple[tuple[str, str, _Measure, int], ...] = (
    ("Time elapsed", "total_ms", _Measure.MS, _ALWAYS),
    ("Time elapsed w/o network", "total_net_ms", _Measure.MS, _RARE + 1),
    ("Time remaining", "remaining_ms", _Measure.MS, _RARE),
    ("Data processed", "data_processed", _Measure.SIZE, _ALWAYS),
    ("Data remaining", "data_remaining", _Measure.SIZE, _ALWAYS),
    ("Data total", "data_total", _Measure.SIZE, _ALWAYS),
    ("Memory processed", "memory_processed", _Measure.SIZE, _ALWAYS),
    ("Memory remaining", "memory_remaining", _Measure.SIZE, _ALWAYS),
    ("Memory total", "memory_total", _Measure.SIZE, _ALWAYS),
    ("Memory bandwidth", "bandwidth", _Measure.RATE, _USUAL),
    ("Dirty rate", "dirty_pages", _Measure.PAGES, _USUAL),
    ("Page size", "page_size", _Measure.BYTES, _USUAL),
    ("Iteration", "iterations", _Measure.COUNT, _USUAL),
    ("Postcopy requests", "postcopy_requests", _Measure.COUNT, _RARE),
    ("File processed", "file_processed", _Measure.SIZE, _RARE),
    ("File remaining", "file_remaining", _Measure.SIZE, _RARE),
    ("File total", "file_total", _Measure.SIZE, _RARE),
    ("File bandwidth", "file_bandwidth", _Measure.RATE, _RARE),
    ("Constant pages", "constant_pages", _Measure.COUNT, _USUAL),
    ("Normal pages", "normal_pages", _Measure.COUNT, _USUAL),
    ("Normal data", "normal_data", _Measure.SIZE, _USUAL),
    ("Total downtime", "downtime_ms", _Measure.MS, _ALWAYS),
    ("Downtime w/o network", "downtime_net_ms", _Measure.MS, _RARE),
    ("Setup time", "setup_ms", _Measure.MS, _RARE + 1),
    ("Compression cache", "", _Measure.SIZE, _RARE),
    ("Compressed data", "", _Measure.SIZE, _RARE),
    ("Compressed pages", "", _Measure.COUNT, _RARE),
    ("Compression cache misses", "", _Measure.COUNT, _RARE),
    ("Compression overflows", "", _Measure.COUNT, _RARE),
    ("Auto converge throttle", "throttle_percent", _Measure.COUNT, _RARE),
)
"""virsh's lines with numbers, in its order: label, field, measure, cost of its absence."""

_PLACES = {label: place for place, (label, *_) in enumerate(_ORDER)}
_EXPECTED = "Expected downtime"
_RAW = {
    "time_elapsed": "total_ms",
    "time_elapsed_net": "total_net_ms",
    "time_remaining": "remaining_ms",
    "downtime": "downtime_ms",
    "downtime_net": "downtime_net_ms",
    "setup_time": "setup_ms",
    "data_processed": "data_processed",
    "data_remaining": "data_remaining",
    "data_total": "data_total",
    "memory_processed": "memory_processed",
    "memory_remaining": "memory_remaining",
    "memory_total": "memory_total",
    "memory_bps": "bandwidth",
    "memory_dirty_rate": "dirty_pages",
    "memory_page_size": "page_size",
    "memory_iteration": "iterations",
    "memory_postcopy_requests": "postcopy_requests",
    "memory_constant": "constant_pages",
    "memory_normal": "normal_pages",
    "memory_normal_bytes": "normal_data",
    "disk_processed": "file_processed",
    "disk_remaining": "file_remaining",
    "disk_total": "file_total",
    "disk_bps": "file_bandwidth",
    "auto_converge_throttle": "throttle_percent",
}
"""`--rawstats`: libvirt's own names, in bytes and ms."""

_MIGRATION_OUT, _MIGRATION_IN = "Outgoing migration", "Incoming migration"
_OTHER_JOBS = (
    "Unknown", "Start", "Save", "Restore", "Snapshot", "Snapshot revert", "Snapshot delete", "Dump",
    "Backup",
)  # fmt: skip
_OUTCOMES = {
    "Unbounded": Outcome.RUNNING,
    "Bounded": Outcome.RUNNING,
    "Completed": Outcome.COMPLETED,
    "Failed": Outcome.FAILED,
    "Cancelled": Outcome.CANCELLED,
}
_RAW_TYPES = ("None", "Bounded", "Unbounded", "Completed", "Failed", "Cancelled")
_RAW_OPERATIONS = ("Unknown", "Start", "Save", "Restore", _MIGRATION_IN, _MIGRATION_OUT)

_NUMBER = re.compile(
    r"(?P<label>\S.*?)\s*[:\uff1a]?\s+(?P<number>-?\d{1,20}(?:[.,]\d+)?)"
    r"(?:\s+(?P<unit>ms|bytes|pages/s|[KMGTPE]?i?B(?:/s)?))?\s*"
)
_WORDS = re.compile(r"(?P<label>\S.*?)\s*[:\uff1a]\s*(?P<words>\S.*?)\s*")
_POWERS = {letter: 1024**power for power, letter in enumerate("BKMGTPE")}


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with a number."""

    label: str
    value: float
    measure: _Measure


def parse_domjobinfo(text: str) -> Job:
    """The figures in virsh's output; see the module."""
    if len(text) > _MOST:
        raise InvalidInput(f"{len(text)} characters are no output of virsh domjobinfo")
    words, numbers = _split(text)
    if len(numbers) > _MOST_LINES:
        raise InvalidInput(f"{len(numbers)} lines with numbers are no output of virsh domjobinfo")
    if "error" in words:
        raise InvalidInput(f"virsh failed: {words['error']}")
    kind, operation = _heading(words, numbers)
    if kind == "None":
        raise NoRecord("libvirt has no finished job of this domain")
    values = _assigned(numbers)
    if "total_ms" not in values and "data_total" not in values:
        raise InvalidInput("this is no output of virsh domjobinfo: no time and no data is in it")
    if operation in _OTHER_JOBS:
        raise NoRecord(f"libvirt's last finished job of this domain was no migration: {operation}")
    outcome = _OUTCOMES.get(kind, Outcome.UNKNOWN)
    if outcome is Outcome.UNKNOWN and values.get("data_remaining") == 0:
        outcome = Outcome.COMPLETED
    if outcome is Outcome.RUNNING and "downtime_ms" in values:
        values["expected_downtime_ms"] = values.pop("downtime_ms")
    return Job(SOURCE, outcome, operation, error=words.get("Error message", ""), **values)


def _split(text: str) -> tuple[dict[str, str], list[_Line]]:
    """Lines with words, by label, and lines with numbers."""
    words: dict[str, str] = {}
    numbers: list[_Line] = []
    for line in text.splitlines():
        if match := _NUMBER.fullmatch(line):
            numbers.append(_line(match))
        elif match := _WORDS.fullmatch(line):
            words.setdefault(match["label"], match["words"])
    return words, numbers


def _line(match: re.Match[str]) -> _Line:
    number, unit, label = match["number"].replace(",", "."), match["unit"] or "", match["label"]
    if unit in ("ms", "bytes", "pages/s", ""):
        value = int(number.partition(".")[0])
        return _Line(label, value - (1 << 64) if value >= 1 << 63 else value, _Measure(unit))
    scaled = float(number) * _POWERS[unit[0]]
    return _Line(label, scaled, _Measure.RATE if unit.endswith("/s") else _Measure.SIZE)


def _heading(words: dict[str, str], numbers: list[_Line]) -> tuple[str, str]:
    """Type and operation of the job: the first two lines, in whatever language."""
    raw = {line.label: int(line.value) for line in numbers if line.measure is _Measure.COUNT}
    kind, operation = words.get("Job type", ""), words.get("Operation", "")
    if not kind and 0 <= raw.get("Job type", -1) < len(_RAW_TYPES):
        kind = _RAW_TYPES[raw["Job type"]]
    if not operation and 0 <= raw.get("operation", -1) < len(_RAW_OPERATIONS):
        operation = _RAW_OPERATIONS[raw["operation"]]
    others = [value for label, value in words.items() if label not in ("Job type", "Operation")]
    if not kind and others:
        kind = others.pop(0)
        if not numbers:
            kind = "None"  # only its type is told of a job that is none
    return kind, operation or next(iter(others), "")


def _assigned(lines: Sequence[_Line]) -> dict[str, Any]:
    """Values by the job's field names."""
    values: dict[str, Any] = {}
    strange: list[_Line] = []
    for line in lines:
        place = _PLACES.get(line.label)
        if line.label in _RAW:
            values[_RAW[line.label]] = line.value
        elif line.label == _EXPECTED:
            values["expected_downtime_ms"] = line.value
        elif place is not None:
            values[_ORDER[place][1]] = line.value
        else:
            strange.append(line)
    free = [row for row in _ORDER if row[1] not in values]
    for line, row in _aligned(strange, free):
        values[row[1]] = line.value
    values.pop("", None)
    return values


_Row = tuple[str, str, _Measure, int]


def _aligned(lines: Sequence[_Line], rows: Sequence[_Row]) -> list[tuple[_Line, _Row]]:
    """Each line's row, both in order, so that the least probable absences are fewest.

    A line may also be none of the rows (a newer libvirt's), which is as improbable as anything.
    """

    @cache
    def best(at: int, row: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        if at == len(lines):
            return sum(one[3] for one in rows[row:]), ()
        skip_line = best(at + 1, row)
        choices = [(skip_line[0] + 2 * _ALWAYS, skip_line[1])]
        if row < len(rows):
            cost, pairs = best(at, row + 1)
            choices.append((cost + rows[row][3], pairs))
            if rows[row][2] is lines[at].measure:
                cost, pairs = best(at + 1, row + 1)
                choices.append((cost, ((at, row), *pairs)))
        return min(choices, key=lambda choice: choice[0])

    return [(lines[at], rows[row]) for at, row in best(0, 0)[1]]
