"""The words of the live-migration machine: states, inputs, the table, facts and actions. Values
only; `felix_shim.migration` gives them life."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from felix_shim.model import Proof, Role


class State(StrEnum):
    """Where an endpoint stands. Route in the main table: normal, none or elevated."""

    BASE = "base"  # normal: an ordinary workload, or a VM that settled here
    TARGET = "target"  # none: programmed, waiting for the VM
    LIVE = "live"  # elevated: the VM spoke here
    TIME_WAIT = "time-wait"  # elevated: until the other nodes have let go
    SUPPRESSED = "suppressed"  # none: was a target, and the VM is not here
    DEPARTED = "departed"  # none: had the VM, and it is elsewhere
    REFUSED = "refused"  # none, for good: its migration has another pod as target
    ENDED = "ended"  # none: the endpoint was removed; the machine is to be dropped


RAISED = frozenset({State.LIVE, State.TIME_WAIT})
LISTENING = frozenset({State.TARGET, State.SUPPRESSED, State.DEPARTED})


class Input(StrEnum):
    """The rows of the table."""

    ANOTHER_NAMED = "another pod named as target"
    BECAME_TARGET = "becomes target"
    SIGN = "sign of the VM"
    FINAL_HERE = "migration final, VM proved here"
    FINAL_NOT_HERE = "migration final, VM not proved here"
    RAISED_ELSEWHERE = "newer raise elsewhere"
    RAISE_GONE = "raise elsewhere gone"
    PROVED_ELSEWHERE = "VM proved elsewhere"
    TIMER = "convergence timer"
    BECAME_SOURCE = "becomes source"
    REMOVED = "endpoint removed"


TABLE: dict[Input, dict[State, State]] = {
    Input.ANOTHER_NAMED: {
        state: State.REFUSED for state in State if state not in (State.REFUSED, State.ENDED)
    },
    Input.BECAME_TARGET: {
        State.BASE: State.TARGET,
        State.SUPPRESSED: State.TARGET,
        State.DEPARTED: State.TARGET,
    },
    Input.SIGN: {
        State.TARGET: State.LIVE,
        State.SUPPRESSED: State.LIVE,  # if the migration is final
        State.DEPARTED: State.LIVE,  # if the migration is final
    },
    Input.FINAL_HERE: {
        State.TARGET: State.TIME_WAIT,
        State.LIVE: State.TIME_WAIT,
        State.SUPPRESSED: State.TIME_WAIT,
        State.DEPARTED: State.BASE,
    },
    Input.FINAL_NOT_HERE: {State.TARGET: State.SUPPRESSED},
    Input.RAISED_ELSEWHERE: {
        State.BASE: State.DEPARTED,
        State.LIVE: State.SUPPRESSED,
        State.TIME_WAIT: State.SUPPRESSED,
    },
    Input.RAISE_GONE: {State.DEPARTED: State.BASE},
    Input.PROVED_ELSEWHERE: {
        State.BASE: State.DEPARTED,
        State.LIVE: State.DEPARTED,  # by a word that is newer than the VM's arrival
        State.TIME_WAIT: State.DEPARTED,
    },
    Input.TIMER: {State.TIME_WAIT: State.BASE},
    Input.BECAME_SOURCE: {
        State.TARGET: State.BASE,
        State.LIVE: State.BASE,
        State.TIME_WAIT: State.BASE,
        State.SUPPRESSED: State.BASE,  # only proved here and unchallenged; see `_suppressed`
    },
    Input.REMOVED: {state: State.ENDED for state in State if state is not State.ENDED},
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about an endpoint from outside, as of now.

    `role`: TARGET while a live migration has this pod as its target; SOURCE while a migration,
    live or Succeeded, names this pod as its source; else NONE.
    `final`: no live migration of this endpoint's VM exists (all Succeeded, Failed or gone).
    `raised_elsewhere`: 0 while no other node announces a raised route for an address of this
    endpoint, else a number that is larger for every new raise (see `felix_shim.raises`).
    `stale_elsewhere`: another node announces any host route for one of its addresses.
    `migration_uid`: the migration that gives `role` TARGET.
    `refused`: the API names another pod as target of the migration that this one was made for.
    `word`: the hand-off that `proof` rests on (the UID of its migration, or of another run's VMI).

    Before a watch is in sync its facts are unknown, not absent: keep the previous ones.
    """

    role: Role = Role.NONE
    final: bool = True
    proof: Proof = Proof.UNKNOWN
    raised_elsewhere: int = 0
    stale_elsewhere: bool = False
    migration_uid: str = ""
    refused: bool = False
    word: str = ""


class Timing(Protocol):
    """The one setting the machine obeys; read at every step, so a change takes effect at once."""

    @property
    def convergence_seconds(self) -> float:
        """How long a raised route stays after the migration's end, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class StartSniffing:
    """Listen for signs; report them with this episode. Replaces any earlier request."""

    episode: int


@dataclass(frozen=True, slots=True)
class StopSniffing:
    """Signs no longer matter."""


@dataclass(frozen=True, slots=True)
class SwapOwner:
    """Make this endpoint the active owner in IPAM; retry while `wants_owner` holds."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call back with `Input.TIMER` at `deadline` (the clock of `now`). Replaces any earlier."""

    deadline: float
    episode: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """The timer no longer matters."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the operator (a Kubernetes event and a log line)."""

    text: str


@dataclass(frozen=True, slots=True)
class Moved:
    """A transition happened; one log line each."""

    before: State
    after: State
    input: Input
    episode: int


Action = StartSniffing | StopSniffing | SwapOwner | StartTimer | CancelTimer | Warn | Moved


@dataclass(frozen=True, slots=True)
class Event:
    """One input. `episode` is the one a sign or a timer was asked for in."""

    input: Input
    episode: int = 0
