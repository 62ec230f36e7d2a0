"""Machines on disk: what must survive the agent, as JSON values. Pure.

Deadlines are kept as wall-clock time, because the monotonic clock starts anew with the node. What
comes back is clamped to a convergence time, so that a clock that was set meanwhile cannot hold a
raised route for longer than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from felix_shim.migration import Facts, Machine, State, Timing
from felix_shim.model import Proof, Role
from libtortie.errors import Malformed, first_line


class _Record(BaseModel):
    """The stored form. Unknown fields are of a newer agent and are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: State
    episode: NonNegativeInt
    role: Role
    final: bool
    proof: str
    facts_migration_uid: str
    seen_raise: NonNegativeInt
    last_raise: NonNegativeInt
    arrived: bool
    waiting_since: float | None
    migration_uid: str
    facts_word: str = ""
    told: bool = False
    unproved: bool = False


def dump_machine(machine: Machine, *, now: float, wall: float) -> dict[str, Any]:
    """The JSON object of a machine. `now` is the machine's clock, `wall` seconds since 1970."""
    return _Record(
        state=machine.state,
        episode=machine.episode,
        role=machine.facts.role,
        final=machine.facts.final,
        proof=machine.facts.proof.name,
        facts_migration_uid=machine.facts.migration_uid,
        seen_raise=machine.seen_raise,
        last_raise=machine.last_raise,
        arrived=machine.arrived,
        waiting_since=None if machine.since is None else wall - (now - machine.since),
        migration_uid=machine.migration_uid,
        facts_word=machine.facts.word,
        told=machine.told,
        unproved=machine.unproved,
    ).model_dump(mode="json")


def load_machine(data: Mapping[str, Any], *, now: float, wall: float, settings: Timing) -> Machine:
    """The machine of a JSON object, in a new episode and with no timer set: `settle` sets it.

    Raises `Malformed`.
    """
    try:
        record = _Record.model_validate(data)
        proof = Proof[record.proof]
    except (ValidationError, KeyError) as error:
        raise Malformed(f"saved migration state: {first_line(error)}") from error
    since = None
    if record.state is State.TIME_WAIT:
        waited = wall - (wall if record.waiting_since is None else record.waiting_since)
        since = now - min(max(waited, 0.0), 2 * settings.convergence_seconds)
    return Machine(
        state=record.state,
        episode=record.episode + 1,
        facts=Facts(
            role=record.role,
            final=record.final,
            proof=proof,
            migration_uid=record.facts_migration_uid,
            word=record.facts_word,
        ),
        seen_raise=record.seen_raise,
        last_raise=record.last_raise,
        arrived=record.arrived,
        since=since,
        migration_uid=record.migration_uid,
        told=record.told,
        unproved=record.unproved,
    )
