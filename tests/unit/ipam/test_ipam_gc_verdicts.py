"""Two observations a grace apart: the rule itself, on subjects of no particular kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from ipam.gc_verdicts import (
    Memory,
    Opinion,
    Outcome,
    Span,
    Verdict,
    blind,
    doubt,
    explain,
    good,
    ripen,
)

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE


@dataclass(frozen=True)
class Thing:
    """A subject; `state` is what may change about it."""

    key: str = "thing"
    state: int = 0
    name: str = "the thing"
    action: str = "drop"


THING = Thing()


def history(
    *seen: tuple[float, float, Opinion[Thing]], grace: float = 60.0
) -> tuple[list[Verdict[Thing]], Memory]:
    """The verdict of each observation in turn, and the memory at the end."""
    memory: Memory = {}
    verdicts: list[Verdict[Thing]] = []
    for began, ended, opinion in seen:
        (verdict,), memory = ripen([opinion], Span(began, ended), memory, lambda _: grace)
        verdicts.append(verdict)
    return verdicts, memory


def outcomes(seen: Iterable[tuple[float, Opinion[Thing]]], grace: float = 60.0) -> list[Outcome]:
    verdicts, _ = history(*((at, at, opinion) for at, opinion in seen), grace=grace)
    return [one.outcome for one in verdicts]


DOUBT, GOOD, BLIND = doubt(THING, "gone"), good(THING, "lives"), blind(THING, "away")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([(0, GOOD), (60, GOOD)], [KEEP, KEEP]),
        ([(0, DOUBT), (59.9, DOUBT), (60, DOUBT)], [WAIT, WAIT, FREE]),
        ([(0, DOUBT), (30, GOOD), (90, DOUBT), (150, DOUBT)], [WAIT, KEEP, WAIT, FREE]),
        ([(0, DOUBT), (60, BLIND), (61, DOUBT)], [WAIT, KEEP, FREE]),
        ([(0, BLIND), (60, BLIND), (120, DOUBT)], [KEEP, KEEP, WAIT]),
        ([(0, DOUBT), (60, doubt(Thing(state=1), "gone"))], [WAIT, WAIT]),
        ([(0, DOUBT), (60, blind(Thing(state=1), "away")), (120, DOUBT)], [WAIT, KEEP, WAIT]),
    ],
)
def test_stories(seen: list[tuple[float, Opinion[Thing]]], expected: list[Outcome]) -> None:
    assert outcomes(seen) == expected


def test_without_a_grace_it_still_takes_two_observations() -> None:
    assert outcomes([(5, DOUBT), (5, DOUBT)], grace=0) == [WAIT, FREE]


def test_the_grace_is_from_the_end_of_one_observation_to_the_beginning_of_the_other() -> None:
    slow, _ = history((0, 50, DOUBT), (60, 200, DOUBT), (110, 110, DOUBT))
    assert [one.outcome for one in slow] == [WAIT, WAIT, FREE]
    assert [one.seconds for one in slow] == [110.0, 50.0, 0.0]


def test_what_is_not_mentioned_any_more_is_forgotten() -> None:
    _, memory = history((0, 0, DOUBT))
    assert set(memory) == {"thing"}
    assert ripen([], Span(60, 60), memory, lambda _: 60.0) == ((), {})


def test_each_outcome_in_words() -> None:
    verdicts, _ = history((0, 0, GOOD), (1, 1, BLIND), (2, 2, DOUBT), (62, 62, DOUBT))
    assert explain(verdicts) == (
        "keep: the thing: lives",
        "keep: the thing: unknown: away",
        "wait (in 60 s): the thing: gone",
        "drop: the thing: gone",
    )
