"""Durations as Calico's resources write them (`8s`, `1m30s`, `500ms`)."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_FACTOR = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """A Go duration in seconds. Raises `ValueError`."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration; write e.g. 8s or 500ms")
    return sum(float(number) * _FACTOR[unit] for number, unit in parts)
