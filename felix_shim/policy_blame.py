"""Whose rules the kernel refuses, found by halves. Pure but for the question it is given.

The question is asked of some owners' rules alone, in a table that is never made. When even no
rules at all are refused, it is not the rules that are wrong, and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

K = TypeVar("K")
Question = Callable[[Sequence[K]], str]
"""Why the rules of these owners are refused; empty when they are taken."""


def refused(owners: Sequence[K], question: Question[K]) -> dict[K, str]:
    """Owners whose rules are refused even alone, and why; few questions when they are few."""
    if question(()):
        return {}
    found = _halves(owners, question)
    return {} if question(()) else found


def _halves(owners: Sequence[K], question: Question[K]) -> dict[K, str]:
    if not owners or not (problem := question(owners)):
        return {}
    if len(owners) == 1:
        return {owners[0]: problem}
    middle = len(owners) // 2
    return _halves(owners[:middle], question) | _halves(owners[middle:], question)
