"""Values of which the next one differs little, so that telling the difference costs little.

A `Snapshot` is a mapping that remembers in which keys it may differ from the one before; a
`TextSet` is a set of texts in buckets, of which the next one shares all that did not change. Both
are values: nothing in them changes once they are made, and equal contents are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
_BUCKETS = 64
"""Of 10,000 texts each holds 156: copying one takes 3 µs, finding which is another one 2."""


class Snapshot(dict[K, V]):
    """A mapping, never changed once made. See the module."""

    __slots__ = ("_before", "_touched")
    _before: Snapshot[K, V] | None
    _touched: frozenset[K]

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        super().__init__(items)
        self._before, self._touched = None, frozenset()

    def next(self, come: Mapping[K, V], gone: Iterable[K] = ()) -> Snapshot[K, V]:
        """The mapping with these items new or others, and without those."""
        after = Snapshot(self)
        after.update(come)
        lost = frozenset(gone)
        for key in lost:
            after.pop(key, None)
        after._before, after._touched = self, lost | come.keys()
        self._before = None  # only the latest step is remembered
        return after

    def touched_since(self, before: Mapping[K, V]) -> Iterable[K]:
        """Keys in which they may differ: few, if this is the one made from it."""
        if before is self:
            return ()
        if before is self._before:
            return self._touched
        return before.keys() | self.keys()


def touched(before: Mapping[K, V], after: Mapping[K, V]) -> Iterable[K]:
    """Keys in which two mappings may differ."""
    if before is after:
        return ()
    if isinstance(after, Snapshot):
        return after.touched_since(before)
    return before.keys() | after.keys()


@dataclass(frozen=True, slots=True)
class TextSet:
    """A set of texts. See the module."""

    buckets: tuple[frozenset[str], ...] = (frozenset(),) * _BUCKETS

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextSet:
        """These texts."""
        buckets: list[list[str]] = [[] for _ in range(_BUCKETS)]
        for text in texts:
            buckets[hash(text) % _BUCKETS].append(text)
        return cls(tuple(map(frozenset, buckets)))

    def next(self, come: Iterable[str], gone: Iterable[str]) -> TextSet:
        """With these texts, and without those."""
        buckets: dict[int, set[str]] = {}
        for text in gone:
            self._bucket(buckets, text).discard(text)
        for text in come:
            self._bucket(buckets, text).add(text)
        after = list(self.buckets)
        for place, bucket in buckets.items():
            after[place] = frozenset(bucket)
        return TextSet(tuple(after))

    def _bucket(self, copies: dict[int, set[str]], text: str) -> set[str]:
        place = hash(text) % _BUCKETS
        if place not in copies:
            copies[place] = set(self.buckets[place])
        return copies[place]

    def without(self, other: TextSet) -> frozenset[str]:
        """Texts that are not in the other."""
        pairs = zip(self.buckets, other.buckets, strict=True)
        return frozenset().union(*(mine - theirs for mine, theirs in pairs if mine is not theirs))

    def __iter__(self) -> Iterator[str]:
        return (text for bucket in self.buckets for text in bucket)

    def __len__(self) -> int:
        return sum(map(len, self.buckets))
