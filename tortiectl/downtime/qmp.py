"""QEMU's own figures: the answer to `query-migrate`, alone or in a transcript of QMP. Pure.

`ram.mbps` is megabits, `ram.total` the guest's memory. Of a transcript the last answer with figures
counts: for a moment after the end QEMU answers with times of 0 and must be asked again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from libtortie.errors import InvalidInput, NotFound
from tortiectl.downtime.amounts import number
from tortiectl.downtime.job import Job, Outcome

SOURCE = "QEMU"
_BYTES_PER_MEGABIT = 125_000
_OUTCOMES = {
    "completed": Outcome.COMPLETED,
    "failed": Outcome.FAILED,
    "cancelled": Outcome.CANCELLED,
    "cancelling": Outcome.CANCELLED,
    **dict.fromkeys(
        (
            "setup", "active", "pre-switchover", "device", "wait-unplug", "colo",
            "postcopy-active", "postcopy-paused", "postcopy-recover", "postcopy-recover-setup",
        ),
        Outcome.RUNNING,
    ),
}  # fmt: skip


def parse_query_migrate(text: str) -> Job:
    """The figures in one answer or a transcript. Raises `InvalidInput`, `NotFound`."""
    answers = [one for one in map(_answer, documents(text)) if one is not None]
    if not answers:
        raise InvalidInput("no answer to query-migrate is in it: none has a status with figures")
    if not answers[-1]:
        raise NotFound("QEMU has no migration to tell of")
    return _job(_last_with_times(answers))


def documents(text: str) -> Iterator[Any]:
    """The JSON values that stand one after the other. Raises `InvalidInput`."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, at) + 1
            raise InvalidInput(f"line {line}: not JSON") from error
        yield value


def _answer(value: object) -> Mapping[str, Any] | None:
    """The body of an answer to query-migrate; None for anything else of a transcript."""
    if isinstance(value, Mapping) and "return" in value:
        value = value["return"]
        if value == {}:
            return None  # of a command, or of query-migrate before the first migration
    if not isinstance(value, Mapping):
        return None
    answer: dict[str, Any] = dict(value)
    status = answer.get("status")
    if status == "none":
        return {}
    return answer if status in _OUTCOMES else None


def _last_with_times(answers: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last answer, or the last before it of the same status that tells a time."""
    last = answers[-1]
    same = takewhile(lambda one: one["status"] == last["status"], reversed(answers))
    return next((one for one in same if one.get("total-time")), last)


def _job(answer: Mapping[str, Any]) -> Job:
    ram, disk = _part(answer, "ram"), _part(answer, "disk")
    total = _number(answer, "total-time")
    outcome = _OUTCOMES[answer["status"]]
    told = total != 0 or outcome is not Outcome.COMPLETED  # zeros of the moment after the end
    rate = _number(ram, "mbps")
    return Job(
        SOURCE,
        outcome,
        total_ms=total if told else None,
        downtime_ms=_number(answer, "downtime") if told else None,
        expected_downtime_ms=_number(answer, "expected-downtime"),
        setup_ms=_number(answer, "setup-time"),
        data_processed=_sum(ram, disk, "transferred"),
        data_remaining=_sum(ram, disk, "remaining"),
        data_total=_sum(ram, disk, "total"),
        memory_processed=_number(ram, "transferred"),
        memory_remaining=_number(ram, "remaining"),
        memory_total=_number(ram, "total"),
        file_processed=_number(disk, "transferred"),
        file_total=_number(disk, "total"),
        bandwidth=None if rate is None else rate * _BYTES_PER_MEGABIT,
        dirty_pages=_number(ram, "dirty-pages-rate"),
        page_size=_number(ram, "page-size"),
        iterations=_number(ram, "dirty-sync-count"),
        postcopy_requests=_number(ram, "postcopy-requests"),
        constant_pages=_number(ram, "duplicate"),
        normal_pages=_number(ram, "normal"),
        normal_data=_number(ram, "normal-bytes"),
        throttle_percent=_number(answer, "cpu-throttle-percentage"),
        error=str(answer.get("error-desc") or ""),
    )


def _part(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(part: Mapping[str, Any], name: str) -> float | None:
    return number(part.get(name))


def _sum(ram: Mapping[str, Any], disk: Mapping[str, Any], name: str) -> float | None:
    found = [value for part in (ram, disk) if (value := _number(part, name)) is not None]
    return sum(found) if found else None
