"""What a decision has to know about an owner, asked of the outside: the API, as a rule.

A decision is made in a transaction, with a lock held, and again after every conflict. So it never
asks itself: it raises a question, which ends the attempt; the answer is fetched with nothing held,
and the operation begins anew. Each owner is asked about once, and what the outside raises goes to
the caller as it is, not into the compare-and-swap loop, which would take it for a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from libtortie.model.ipam import Owner

T = TypeVar("T")
_Key = tuple[tuple[str, str], ...]


class Question(Exception):
    """An attempt needs to know about an owner. It never leaves `answered`."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self.owner = owner


@dataclass(slots=True)
class Witness:
    """Answers `ask` for the decisions of one operation."""

    ask: Callable[[Owner], bool]
    _answers: dict[_Key, bool] = field(default_factory=dict)
    _open: Owner | None = None

    def __call__(self, owner: Owner) -> bool:
        """The known answer; without one this ends the attempt, see `answered`."""
        known = self._answers.get(_key(owner))
        if known is None:
            self._open = owner
            raise Question(owner)
        return known

    def learn(self) -> None:
        """Fetch the answer that was missing, if one was. Raises what `ask` raises."""
        if self._open is not None:
            owner, self._open = self._open, None
            self._answers[_key(owner)] = self.ask(owner)


def answered(attempt: Callable[[], T], *witnesses: Witness) -> T:
    """The result of an attempt that has all its answers."""
    while True:
        try:
            return attempt()
        except Question:
            for witness in witnesses:
                witness.learn()


def _key(owner: Owner) -> _Key:
    return tuple(sorted(owner.items()))
