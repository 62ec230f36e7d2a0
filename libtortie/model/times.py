"""RFC 3339 times as Kubernetes and Calico write them (UTC, whole seconds, `Z`); Go's durations.

Go's *default* time text (owner attribute `timestamp`) is another format and not made here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_MOST = 2**63 // 10**9
"""The longest of Go's durations, in whole seconds: 292 years."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def rfc3339(time: datetime) -> str:
    """`2026-08-22T13:30:00Z`; fractions are cut off. ValueError for a time without a zone."""
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone")
    return time.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def parse_rfc3339(text: str) -> datetime:
    """A UTC time; an offset and a fraction are accepted. ValueError when it is no such time."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None or text[4:5] != "-" or text[10:11] not in ("T", "t"):
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    return time.astimezone(UTC)


def parse_duration(text: str) -> float:
    """Seconds of a Go duration. Raises ValueError."""
    if text == "0":
        return 0.0
    total, position = 0.0, 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise ValueError(f"{text!r} is not a duration such as 30s or 1m30s")
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if not text:
        raise ValueError("a duration must not be empty")
    if total > _MOST:
        raise ValueError(f"{text!r} is a longer duration than there is; the longest are 292 years")
    return total


def go_duration(seconds: float) -> str:
    """A duration as Go writes it: `1m30s`, `1h0m0s`, `500ms`, `0s`; whole nanoseconds."""
    count = round(seconds * 10**9)
    if count == 0:
        return "0s"
    if count < 10**9:
        unit, size = next(
            (name, size)
            for name, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1))
            if count >= size
        )
        return f"{_decimal(count, size)}{unit}"
    minutes, rest = divmod(count, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 10**9)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _decimal(count: int, unit: int) -> str:
    """`count / unit` without rounding and without zeros at the end; `unit` is a power of ten."""
    whole, rest = divmod(count, unit)
    digits = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
