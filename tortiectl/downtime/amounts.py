"""Sizes, times and rates as people write and read them. Pure."""

from __future__ import annotations

import math
import re

from libtortie.errors import InvalidInput

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LARGEST = 2.0**64
"""What QEMU and libvirt can tell at all."""
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)([kKMGTPE]i?|m)?B?")
_FACTORS = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    **{letter: 10.0 ** (3 * power) for power, letter in enumerate("KMGTPE", 1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}


def number(value: object) -> float | None:
    """A number that a stranger's record holds; None for what is none, not finite, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _LARGEST else None


def size(value: float) -> str:
    """`456.123 MiB`, as libvirt writes it."""
    power = min(int(math.log(value, 1024)), len(_UNITS) - 1) if value >= 1 else 0
    if power == 0:
        return f"{value:.0f} B"
    return f"{value / 1024**power:.3f} {_UNITS[power]}"


def rate(value: float) -> str:
    """Bytes a second."""
    return f"{size(value)}/s"


def duration(ms: float) -> str:
    """`338 ms`, `6.531 s`, `2 min 5 s`."""
    if abs(ms) < 1000:
        return f"{ms:.3f}".rstrip("0").rstrip(".") + " ms"
    if abs(ms) < 120_000:
        return f"{ms / 1000:.3f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s"


def quantity(text: str) -> float:
    """A Kubernetes quantity (`4Gi`, `500M`, `1.5e9`), a trailing `B` allowed. `InvalidInput`."""
    match = _QUANTITY.fullmatch(text.strip())
    value = float(match[1]) * _FACTORS[match[2] or ""] if match else math.inf
    if not math.isfinite(value):
        raise InvalidInput(f"{text!r} is no quantity such as 4Gi, 500M or 1073741824")
    return value
