"""RFC 3339 times as Kubernetes and Calico write them: UTC, whole seconds, `Z`.

Go's *default* time text (owner attribute `timestamp`) is another format and not made here.
"""

from __future__ import annotations

from datetime import UTC, datetime


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
