"""Markup and drawing primitives: text is escaped unless it is already `Markup`.

Pure. Names come from anywhere, so escaping is not the caller's duty: `tag` escapes every plain
string, in content and in attributes, and takes out what XML cannot hold or what would turn the
text's direction. The result is well-formed XML and HTML alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 600
"""Characters of one piece of text that are shown; the rest is cut, visibly."""

VOID = frozenset({"meta", "br", "hr", "line", "rect", "path", "circle", "polyline", "use", "stop"})
_UNFIT = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\u0080-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef]"
)


class Markup(str):
    """A string that is markup already and is taken as it is."""

    __slots__ = ()


def clean(text: str) -> str:
    """Text without what XML forbids, without invisible or direction-turning characters."""
    fit = _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)
    return fit if len(fit) <= LONGEST else f"{fit[:LONGEST]}…"


def escape(text: str) -> Markup:
    """Text as markup, for content and double- or single-quoted attributes."""
    for plain, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(plain, safe)
    return Markup(text.replace("'", "&#39;"))


def shown(value: object) -> Markup:
    """A value as markup; numbers with at most two decimals, None as nothing."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return Markup(f"{value:.2f}".rstrip("0").rstrip("."))
    return escape(clean("" if value is None else str(value)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is `class`, `stroke_width` is `stroke-width`; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{shown(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = "".join(shown(child) for child in children)
    if name in VOID and not content:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{content}</{name}>")


def signed(value: float, digits: int | None = None) -> str:
    """A number with a real plus or minus sign; without `digits`, with as many as it needs."""
    size = f"{abs(value):g}" if digits is None else f"{abs(value):.{digits}f}"
    return f"{chr(0x2212) if value < 0 else '+'}{size}"


def join(parts: Iterable[object]) -> Markup:
    """Several pieces as one."""
    return Markup("".join(shown(part) for part in parts))


def drawing(width: float, height: float, label: str, *children: object) -> Markup:
    """An `<svg>` that scales with its place and says what it is."""
    return tag(
        "svg",
        tag("title", label),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """A window of time (or any quantity) laid over a stretch of pixels."""

    low: float
    high: float
    left: float
    right: float

    def at(self, value: float) -> float:
        """Where a value lies."""
        span = (self.high - self.low) or 1
        return self.left + (value - self.low) / span * (self.right - self.left)

    def inside(self, value: float) -> float:
        """Where a value lies, held to the edges."""
        return self.at(min(max(value, self.low), self.high))

    def holds(self, value: float) -> bool:
        """Whether a value is within the window."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class LogScale:
    """Powers of ten from `low` to `high`, upwards from `bottom` to `top`."""

    low: float
    high: float
    bottom: float
    top: float

    def at(self, value: float) -> float:
        """Where a value lies, held to the edges."""
        held = min(max(value, self.low), self.high)
        share = math.log10(held / self.low) / math.log10(self.high / self.low)
        return self.bottom + share * (self.top - self.bottom)

    def powers(self) -> tuple[float, ...]:
        """The powers of ten within, both ends too."""
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        return tuple(10.0**power for power in range(first, last + 1))


def log_scale(values: Iterable[float], bottom: float, top: float) -> LogScale:
    """Powers of ten around all positive values, at least one whole decade."""
    positive = [value for value in values if value > 0] or [0.1]
    low = math.floor(math.log10(min(positive)))
    high = max(low + 1, math.ceil(math.log10(max(positive))))
    return LogScale(10.0**low, 10.0**high, bottom, top)


def ticks(low: float, high: float, about: int) -> tuple[float, ...]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within a window, about so many."""
    if high <= low:
        return ()
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(number * step, 9) + 0.0 for number in range(first, last + 1))


def dots(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Many round dots as one path: a few bytes each."""
    line = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    return tag("path", d=Markup(line), class_=class_) if line else Markup("")


def strokes(points: Iterable[tuple[float, float, float]], class_: str, title: str = "") -> Markup:
    """Many upright strokes (x, from y, to y) as one path."""
    line = "".join(f"M{x:.1f} {y:.1f}V{end:.1f}" for x, y, end in points)
    if not line:
        return Markup("")
    return tag("path", tag("title", title) if title else None, d=Markup(line), class_=class_)


def fitting(text: str, width: float, per_character: float = 6.1) -> str:
    """Text cut to about so many pixels; empty when not even a few characters fit."""
    room = int(width / per_character)
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= 4 else ""
