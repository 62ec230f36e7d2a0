"""Candidates for one lease over an API in memory, on a clock of their own: delays, lost answers,
other candidates' attempts in the middle of one's, and wall clocks that disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from controllers.candidate import Candidate
from controllers.election import Election, Timing
from libtortie.errors import Unavailable
from libtortie.kube.leases import Lease
from tests.fakes.kube import FakeKube

NAMESPACE, NAME = "kube-system", "tortie-controllers"
START = datetime(2026, 8, 22, 12, tzinfo=UTC)


@dataclass
class Electorate:
    """`before` and `after` are called around each call that reaches the API, by verb; they may
    let time pass, raise, or let others attempt."""

    timing: Timing = field(default_factory=Timing)
    now: float = 1000.0
    kube: FakeKube = field(default_factory=FakeKube)
    news: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda verb: None
    after: Callable[[str], None] = lambda verb: None
    candidates: list[Candidate] = field(default_factory=list)

    def candidate(self, name: str, *, skew: float = 0.0) -> Candidate:
        """One more, whose wall clock is wrong by `skew` seconds."""
        made = Candidate(
            Line(self),
            NAMESPACE,
            NAME,
            Election(name, self.timing),
            lambda line: self.news.append(f"{name}: {line}"),
            lambda line: self.complaints.append(f"{name}: {line}"),
            clock=lambda: self.now,
            wall=lambda: START + timedelta(seconds=self.now + skew),
        )
        self.candidates.append(made)
        return made

    @property
    def leaders(self) -> list[str]:
        """Who may act now."""
        return [one.election.identity for one in self.candidates if one.leads()]

    def lease(self) -> Lease:
        """As it is stored."""
        return self.kube.get(Lease, NAME, NAMESPACE)

    def edit(self, **spec: Any) -> None:
        """Change the lease by hand."""
        self.kube.patch(Lease, NAME, NAMESPACE, {"spec": spec})


@dataclass
class Line:
    """A candidate's line to the API."""

    site: Electorate

    def get(self, model: type[Lease], name: str, namespace: str = "") -> Lease:
        return self._call("get", lambda: self.site.kube.get(model, name, namespace))

    def create(self, model: type[Lease], body: Mapping[str, Any]) -> Lease:
        return self._call("create", lambda: self.site.kube.create(model, body))

    def update(self, model: type[Lease], body: Mapping[str, Any]) -> Lease:
        return self._call("update", lambda: self.site.kube.update(model, body))

    def _call(self, verb: str, act: Callable[[], Lease]) -> Lease:
        self.site.before(verb)
        found = act()
        self.site.after(verb)
        return found


def away(_: str) -> None:
    """An API that does not answer."""
    raise Unavailable("connection refused")
