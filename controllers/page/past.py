"""What agents have recorded of addresses and migrations: the part of it that the page shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from libtortie.timeline import Moment


@dataclass(frozen=True, slots=True)
class Told:
    """One fact as a sentence. `vm` is namespace and name, `("", "")` of an ordinary pod's."""

    at: datetime
    vm: tuple[str, str]
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A migration as agents saw it; times that nobody recorded are None."""

    uid: str
    namespace: str
    vm: str
    source: str
    target: str
    outcome: str
    began: datetime | None = None
    ended: datetime | None = None
    sign_to_route_ms: float | None = None
    downtime_ms: float | None = None

    @property
    def running(self) -> bool:
        """Whether no agent has seen its end."""
        return self.outcome == "running"


@dataclass(frozen=True, slots=True)
class Past:
    """All of it: facts and migrations newest first, a migration's moments by its UID."""

    facts: tuple[Told, ...] = ()
    migrations: tuple[Recorded, ...] = ()
    moments: Mapping[str, tuple[Moment, ...]] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def no_past(_: object) -> Past:
    """Where nothing is recorded."""
    return Past()
