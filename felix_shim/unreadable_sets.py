"""Sets of networks that cannot be read, and whose rules they would be members of. Pure.

Such a set is not empty: nobody knows what is in it. A rule that allows its networks could do
without them, but one that denies them would let them pass, so whoever might use it is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from libtortie.model.keys import Key
from libtortie.model.policy import Item, Policy, PolicyRule, Profile
from libtortie.model.selectors import Selector, parse


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is wrong with a set, and what it is selected by; None: not even that is known."""

    problem: str
    item: Item | None = None


@dataclass(slots=True)
class UnreadableSets:
    """Those that there are. `profiles` are those that items inherit labels from."""

    profiles: Mapping[str, Profile]
    _sets: dict[Key, Unreadable] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._sets)

    def put(self, key: Key, found: Unreadable) -> bool:
        """A set cannot be read; True when that is news. What was known of it is remembered."""
        known = self._sets.get(key)
        if found.item is None and known is not None:
            found = replace(found, item=known.item)
        self._sets[key] = found
        return known != found

    def remove(self, key: Key) -> bool:
        """It can be read now, or is no more; True when it could not be before."""
        return self._sets.pop(key, None) is not None

    def problem_of(self, user: Policy | Profile) -> str:
        """What is wrong with a set that a policy might use; empty: nothing."""
        if not self._sets:
            return ""
        texts = frozenset(selectors_of((*(user.ingress or ()), *(user.egress or ()))))
        for key in sorted(self._sets, key=str):
            if texts and self._selected(self._sets[key], texts):
                return self._sets[key].problem
        return ""

    def _selected(self, found: Unreadable, texts: frozenset[str]) -> bool:
        if found.item is None:
            return True
        labels: dict[str, str] = {}
        for name in reversed(found.item.profiles):
            labels |= dict(self.profiles[name].labels) if name in self.profiles else {}
        labels |= dict(found.item.labels)
        return any(_parsed(text).matches(labels) for text in texts)


def selectors_of(rules: tuple[PolicyRule, ...]) -> Iterator[str]:
    """The selectors of whose addresses rules look at."""
    for rule in rules:
        for end in (rule.source, rule.destination):
            yield from (text for text in (end.selector, end.not_selector) if text is not None)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Selector:
    return parse(text)
