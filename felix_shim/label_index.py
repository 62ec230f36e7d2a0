"""Which items each selector selects, kept up to date: one change costs what it changes.

A selector that can only match items with one of certain labels (`app == 'web'`, `has(app)`, the
conjunctions of these, and disjunctions all of whose parts have such labels) is looked at only
when an item has one of them; the others are looked at for every item. Items inherit labels from
their profiles, whose labels may come, change and go at any time, before or after the items.

`drain` tells what has changed since it was last asked. Nothing here knows what an item or a
selector is for. Not thread-safe.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libtortie.model.selectors import And, Compare, Has, In, Operator, Or, Selector, parse

I = TypeVar("I")  # noqa: E741  # the item's key
CALICO_PREFIX = "projectcalico.org/"
Label = tuple[str, str | None]
"""A label that an item must have; without value: any."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """An item's own labels and the profiles it inherits from; the earlier profile wins."""

    labels: Mapping[str, str]
    profiles: tuple[str, ...] = ()


def needed(selector: Selector) -> frozenset[Label] | None:
    """Labels of which an item must have one to be selected; None: there are no such labels."""
    match selector:
        case Has(key):
            return frozenset({(key, None)})
        case Compare(key, operator, value) if operator is not Operator.NOT_EQUAL:
            return frozenset({(key, value if operator is Operator.EQUAL else None)})
        case In(key, values, False):
            return frozenset((key, value) for value in values)
        case And(operands):
            found = [labels for one in operands if (labels := needed(one)) is not None]
            return min(found, key=_cost) if found else None
        case Or(operands):
            parts = [needed(one) for one in operands]
            return None if None in parts else frozenset().union(*(part or () for part in parts))
    return None


def _cost(labels: frozenset[Label]) -> tuple[bool, bool, int]:
    """How badly they sieve: by mere names worse than by values, by many worse than by few.

    Calico's own labels (a namespace's name) are on crowds of items.
    """
    own = any(name.startswith(CALICO_PREFIX) for name, _ in labels)
    return any(value is None for _, value in labels), own, len(labels)


@dataclass(slots=True)
class _Watched:
    selector: Selector
    needed: frozenset[Label] | None


@dataclass(slots=True)
class LabelIndex(Generic[I]):
    """See the module. Selectors are named by their text."""

    _items: dict[I, Labelled] = field(default_factory=dict)
    _inherited: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _heirs: defaultdict[str, set[I]] = field(default_factory=lambda: defaultdict(set))
    _having: defaultdict[Label, set[I]] = field(default_factory=lambda: defaultdict(set))
    _known: dict[I, frozenset[Label]] = field(default_factory=dict)
    _selectors: dict[str, _Watched] = field(default_factory=dict)
    _sieved: defaultdict[Label, set[str]] = field(default_factory=lambda: defaultdict(set))
    _unsieved: set[str] = field(default_factory=set)
    _members: dict[str, set[I]] = field(default_factory=dict)
    _selecting: defaultdict[I, set[str]] = field(default_factory=lambda: defaultdict(set))
    _changes: dict[tuple[str, I], bool] = field(default_factory=dict)
    looked_at: int = 0
    """How often a selector was compared with an item: the work done."""

    # -- selectors ---------------------------------------------------------------------------

    def watch(self, text: str) -> None:
        """Follow a selector from now on; what it selects already is a change each."""
        if text in self._selectors:
            return
        selector = parse(text)
        watched = _Watched(selector, needed(selector))
        self._selectors[text] = watched
        self._members[text] = set()
        if watched.needed is None:
            self._unsieved.add(text)
            candidates: Iterable[I] = tuple(self._items)
        else:
            for label in watched.needed:
                self._sieved[label].add(text)
            candidates = set().union(*(self._having.get(one, set()) for one in watched.needed))
        for item in candidates:
            self._compare(text, item, self._effective(item))

    def forget(self, text: str) -> None:
        """Follow a selector no longer; its members are changes no more."""
        watched = self._selectors.pop(text, None)
        if watched is None:
            return
        self._unsieved.discard(text)
        for label in watched.needed or ():
            _discard(self._sieved, label, text)
        for item in self._members.pop(text):
            _discard(self._selecting, item, text)
            self._changes.pop((text, item), None)

    def members(self, text: str) -> frozenset[I]:
        """What a selector that is followed selects."""
        return frozenset(self._members[text])

    def selecting(self, item: I) -> frozenset[str]:
        """The selectors that select an item."""
        return frozenset(self._selecting.get(item, ()))

    # -- items -------------------------------------------------------------------------------

    def put(self, key: I, labelled: Labelled) -> None:
        """An item has these labels."""
        before = self._items.get(key)
        if before == labelled:
            return
        for profile in before.profiles if before else ():
            _discard(self._heirs, profile, key)
        self._items[key] = labelled
        for profile in labelled.profiles:
            self._heirs[profile].add(key)
        self._changed(key)

    def remove(self, key: I) -> None:
        """An item is no more."""
        before = self._items.pop(key, None)
        if before is None:
            return
        for profile in before.profiles:
            _discard(self._heirs, profile, key)
        for label in self._known.pop(key, ()):
            _discard(self._having, label, key)
        for text in tuple(self._selecting.get(key, ())):
            self._member(text, key, present=False)

    def inherit(self, profile: str, labels: Mapping[str, str]) -> None:
        """A profile gives its items these labels; none when it is gone."""
        if self._inherited.get(profile, {}) == labels:
            return
        self._inherited[profile] = labels
        if not labels:
            del self._inherited[profile]
        for key in tuple(self._heirs.get(profile, ())):
            self._changed(key)

    def drain(self) -> dict[tuple[str, I], bool]:
        """(selector, item) → whether it is selected now, of all that changed since last time."""
        changes, self._changes = self._changes, {}
        return changes

    # -- inside ------------------------------------------------------------------------------

    def _effective(self, key: I) -> Mapping[str, str]:
        item = self._items[key]
        inherited = [self._inherited[one] for one in item.profiles if one in self._inherited]
        if not inherited:
            return item.labels
        return dict(ChainMap(dict(item.labels), *(dict(one) for one in inherited)))

    def _changed(self, key: I) -> None:
        """An item's labels may be others: compare what they can concern."""
        labels = self._effective(key)
        before = self._known.get(key, frozenset())
        after = frozenset(labels.items()) | frozenset((name, None) for name in labels)
        self._known[key] = after
        for label in before - after:
            _discard(self._having, label, key)
        for label in after - before:
            self._having[label].add(key)
        if before == after and before:
            return
        candidates = set(self._unsieved) | self._selecting.get(key, set())
        for label in after:
            candidates |= self._sieved.get(label, set())
        for text in candidates:
            self._compare(text, key, labels)

    def _compare(self, text: str, key: I, labels: Mapping[str, str]) -> None:
        self.looked_at += 1
        self._member(text, key, present=self._selectors[text].selector.matches(labels))

    def _member(self, text: str, key: I, *, present: bool) -> None:
        members = self._members[text]
        if (key in members) is present:
            return
        if present:
            members.add(key)
            self._selecting[key].add(text)
        else:
            members.discard(key)
            _discard(self._selecting, key, text)
        change = (text, key)
        if self._changes.get(change) is (not present):  # there and back again
            del self._changes[change]
        else:
            self._changes[change] = present


K = TypeVar("K")
V = TypeVar("V")


def _discard(index: defaultdict[K, set[V]], key: K, value: V) -> None:
    """Take a value out of an index, and its key when that was the last one."""
    found = index.get(key)
    if found is not None:
        found.discard(value)
        if not found:
            del index[key]
