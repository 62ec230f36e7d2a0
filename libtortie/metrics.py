"""Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4).

Safe from any thread. A metric is made once and counted from anywhere; label values are escaped,
and a metric takes at most `MOST_SERIES` of them, so that a hostile label cannot fill the memory:
what comes after is counted under the label values `other`.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from libtortie.errors import TortieError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 500
OTHER = "other"

Labels = tuple[str, ...]


class Metric(ABC):
    """A name, its help and its labels; the values are the subclasses'."""

    kind = ""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._lock = threading.Lock()

    def lines(self) -> Iterator[str]:
        """The metric in the exposition format."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        with self._lock:
            yield from tuple(self._samples())

    @abstractmethod
    def _samples(self) -> Iterator[str]: ...

    def _key(self, values: Sequence[str], known: Container[Labels], count: int) -> Labels:
        key = tuple(values)
        if len(key) != len(self.labels):
            raise ValueError(f"{self.name} has labels {self.labels}, not {key}")
        if key in known or count < MOST_SERIES:
            return key
        return (OTHER,) * len(key)

    def _named(self, values: Labels, *more: tuple[str, str]) -> str:
        pairs = [*zip(self.labels, values, strict=True), *more]
        inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
        return f"{{{inside}}}" if inside else ""


class Counter(Metric):
    """A number that only grows.

    Series of the label values in `start` are there before anything is counted: Prometheus sees no
    increase in the first sample of a series.
    """

    kind = "counter"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), start: Iterable[Labels] = ()
    ) -> None:
        super().__init__(name, text, labels)
        self._values: dict[Labels, float] = dict.fromkeys(start if self.labels else [()], 0.0)

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Count something under label values, in the order of `labels`."""
        with self._lock:
            key = self._key(values, self._values, len(self._values))
            self._values[key] = self._values.get(key, 0.0) + amount

    def value(self, *values: str) -> float:
        """What was counted under label values."""
        with self._lock:
            return self._values.get(tuple(values), 0.0)

    def _samples(self) -> Iterator[str]:
        for key, value in sorted(self._values.items()):
            yield f"{self.name}{self._named(key)} {_number(value)}"


class Gauge(Metric):
    """A number that is asked for at each scrape."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        super().__init__(name, text)
        self._read = read

    def _samples(self) -> Iterator[str]:
        yield f"{self.name} {_number(self._read())}"


class Readings(Metric):
    """Several series, all asked for at each scrape; beyond `MOST_SERIES` they are left out.

    `kind` is `gauge`, or `counter` for numbers that something else counts. A reading that raises
    `TortieError` or OSError has no series.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        read: Callable[[], Mapping[Labels, float]],
        kind: str = "gauge",
    ) -> None:
        super().__init__(name, text, labels)
        self.kind = kind
        self._read = read

    def _samples(self) -> Iterator[str]:
        try:
            found = self._read()
        except (TortieError, OSError):
            return
        for key, value in sorted(found.items())[:MOST_SERIES]:
            yield f"{self.name}{self._named(key)} {_number(value)}"


class Recent(Metric):
    """The last value of each of the things that had one lately: the oldest goes first."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Sequence[str], most: int) -> None:
        super().__init__(name, text, labels)
        self._most = most
        self._values: OrderedDict[Labels, float] = OrderedDict()

    def set(self, amount: float, *values: str) -> None:
        """The value of one thing now, under label values in the order of `labels`."""
        with self._lock:
            key = self._key(values, self._values, 0)
            self._values[key] = amount
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)

    def _samples(self) -> Iterator[str]:
        for key, value in sorted(self._values.items()):
            yield f"{self.name}{self._named(key)} {_number(value)}"


class Histogram(Metric):
    """How often a value was at most each bound; bounds ascend."""

    kind = "histogram"

    def __init__(
        self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float]
    ) -> None:
        super().__init__(name, text, labels)
        self.bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, amount: float, *values: str) -> None:
        """Count a value under label values, in the order of `labels`."""
        with self._lock:
            key = self._key(values, self._counts, len(self._counts))
            counts = self._counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, amount)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + amount

    def _samples(self) -> Iterator[str]:
        for key, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*map(_number, self.bounds), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{self._named(key, ('le', bound))} {total}"
            yield f"{self.name}_sum{self._named(key)} {_number(self._sums[key])}"
            yield f"{self.name}_count{self._named(key)} {total}"


def exposition(metrics: Sequence[Metric]) -> str:
    """All of them as a scrape's answer."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def _escaped(value: str) -> str:
    text = value.encode(errors="replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
