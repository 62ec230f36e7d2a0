"""How long ago, as kubectl writes it: `5s`, `2m30s`, `3h`, `8d`. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

# Up to this many seconds an age is written in the unit, with the next smaller one behind it if
# given: (below, unit, seconds in it, smaller unit, seconds in that).
_STEPS = (
    (120, "s", 1, "", 1),
    (10 * 60, "m", 60, "s", 1),
    (3 * 3600, "m", 60, "", 1),
    (8 * 3600, "h", 3600, "m", 60),
    (48 * 3600, "h", 3600, "", 1),
    (8 * 86400, "d", 86400, "h", 3600),
    (2 * 365 * 86400, "d", 86400, "", 1),
    (8 * 365 * 86400, "y", 365 * 86400, "d", 86400),
)


def human(age: timedelta) -> str:
    """A duration in one or two units."""
    seconds = int(age.total_seconds())
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    for below, unit, size, smaller, small in _STEPS:
        if seconds < below:
            rest = seconds % size // small if smaller else 0
            return f"{seconds // size}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{seconds // (365 * 86400)}y"


def since(stamp: object, now: datetime) -> str:
    """The age of an RFC 3339 time stamp; `<unknown>` for what is none."""
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        return "<unknown>"
    return human(now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC)))
