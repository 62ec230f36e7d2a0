"""How one observation's doubt becomes a verdict: a second one, at least a grace later, that agrees.

`ripen` is the only place where anything is condemned. It promises: a subject that one observation
finds in order, or that changed in any way, starts anew; an observation that could not tell neither
confirms nor refutes; times are monotonic, so the wall clock has no say. Pure: what is done with a
verdict is `gc_effects`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, Protocol, TypeVar


class Outcome(StrEnum):
    """What becomes of a subject. FREE: its time has come, whatever there is to be done with it."""

    KEEP = "keep"
    WAIT = "wait"
    FREE = "free"


class Subject(Protocol):
    """Something that is judged: a value with all that the judgement rests on in the store.

    Two that are equal are the same thing, unchanged. `key` tells it from all others.
    """

    @property
    def key(self) -> str: ...

    @property
    def name(self) -> str:
        """What it is, for people."""
        ...

    @property
    def action(self) -> str:
        """What is done with it if it must be, in a word."""
        ...


S = TypeVar("S", bound=Subject)
S_co = TypeVar("S_co", bound=Subject, covariant=True)


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Opinion(Generic[S_co]):
    """What one observation says: in order, doubtful, or (`unknown`) that it cannot say."""

    subject: S_co
    doubted: bool
    reason: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Suspect:
    """What was doubted, and since when (monotonic seconds)."""

    subject: Subject
    since: float


Memory = Mapping[str, Suspect]
"""Suspects by key, from one pass to the next. Losing it costs a grace, nothing else."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[S_co]):
    """What becomes of one subject, and why. `seconds` is how long WAIT waits at least; `unknown`
    marks a KEEP for want of knowledge."""

    subject: S_co
    outcome: Outcome
    reason: str
    seconds: float = 0.0
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """When an observation began and ended, in monotonic seconds."""

    began: float
    ended: float


def good(subject: S, reason: str) -> Opinion[S]:
    """In order."""
    return Opinion(subject, doubted=False, reason=reason)


def doubt(subject: S, reason: str) -> Opinion[S]:
    """Not in order, as far as one observation goes."""
    return Opinion(subject, doubted=True, reason=reason)


def blind(subject: S, reason: str) -> Opinion[S]:
    """Not known."""
    return Opinion(subject, doubted=False, reason=f"unknown: {reason}", unknown=True)


def ripen(
    opinions: Iterable[Opinion[S]], seen: Span, memory: Memory, grace: Callable[[S], float]
) -> tuple[tuple[Verdict[S], ...], Memory]:
    """A verdict for each opinion, and what to remember for the next time.

    The grace counts from the end of the observation that first doubted to the beginning of this.
    """
    verdicts: list[Verdict[S]] = []
    suspects: dict[str, Suspect] = {}
    for opinion in opinions:
        subject = opinion.subject
        known = memory.get(subject.key)
        if known is not None and known.subject != subject:
            known = None  # something happened to it: the clock starts anew
        verdict = Verdict(subject, Outcome.KEEP, opinion.reason, unknown=opinion.unknown)
        if opinion.doubted:
            suspect = known or Suspect(subject, seen.ended)
            left = grace(subject) - (seen.began - suspect.since)
            ripe = known is not None and left <= 0
            outcome = Outcome.FREE if ripe else Outcome.WAIT
            verdict = replace(verdict, outcome=outcome, seconds=max(0.0, left))
            suspects[subject.key] = suspect
        elif opinion.unknown and known is not None:
            suspects[subject.key] = known  # neither confirmed nor refuted
        verdicts.append(verdict)
    return tuple(verdicts), suspects


def kept(verdict: Verdict[S], reason: str, *, unknown: bool = False) -> Verdict[S]:
    """The verdict of something that was to go and stays after all."""
    why = f"unknown: {reason}" if unknown else reason
    return replace(verdict, outcome=Outcome.KEEP, reason=why, seconds=0.0, unknown=unknown)


def explain(verdicts: Iterable[Verdict[Subject]]) -> tuple[str, ...]:
    """One line for each verdict, for people."""
    lines = []
    for one in verdicts:
        what = one.subject.action if one.outcome is Outcome.FREE else one.outcome.value
        if one.outcome is Outcome.WAIT:
            what = f"wait (in {one.seconds:.0f} s)"
        lines.append(f"{what}: {one.subject.name}: {one.reason}")
    return tuple(lines)
