"""Known faults, put into the product one at a time: what the simulator must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from felix_shim import desired, facts, frames, migration, routes
from felix_shim.migration import TABLE, Input, Machine, State
from felix_shim.model import Proof, Role, SignKind
from felix_shim.raises import Raises
from ipam import ownership
from libtortie.kube import targets

Patch = pytest.MonkeyPatch
_settle, _recover, _promote, _plan = (
    migration.settle,
    migration.recover,
    ownership.promote,
    routes.plan_routes,
)


@dataclass(frozen=True)
class Mutant:
    """A fault, and the scenario that shows it."""

    name: str
    scenario: str
    apply: Callable[[Patch], None]


def _function(module: Any, name: str, wrong: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, wrong)


def _cell(row: Input, column: State, after: State | None) -> Callable[[Patch], None]:
    """Another cell in the machine's table; None: nothing happens there."""

    def apply(patch: Patch) -> None:
        if after is None:
            patch.delitem(TABLE[row], column)
        else:
            patch.setitem(TABLE[row], column, after)

    return apply


def _final_is_success(patch: Patch) -> None:
    """A migration's end raises whoever was its target."""
    _cell(Input.FINAL_NOT_HERE, State.TARGET, State.TIME_WAIT)(patch)


def _never_back(patch: Patch) -> None:
    _cell(Input.RAISE_GONE, State.DEPARTED, None)(patch)
    _cell(Input.FINAL_HERE, State.DEPARTED, None)(patch)


def _deletes_first(desired_: Any, actual: Any) -> Any:
    adds, deletes = _plan(desired_, actual)
    return deletes, adds


def _normal_for_targets(state: State, priorities: routes.Priorities) -> int | None:
    if state is State.TARGET:
        return priorities.normal
    return _ROUTE_PRIORITY(state, priorities)


def _without_kernel(saved: Machine | None, **known: Any) -> Machine:
    return _recover(saved, **{**known, "kernel_raised": False, "kernel_normal": False})


def _forgets(saved: Machine | None, **known: Any) -> Machine:
    return _recover(None, **{**known, "kernel_raised": False})


def _never_promotes(owners: Any, target: Any) -> Any:
    return owners


def _promotes_by_dropping(owners: Any, target: Any) -> Any:
    after = _promote(owners, target)
    return ownership.Owners({}, {}) if after != owners else after


def _strips(owners: Any, target: Any) -> Any:
    """A return takes from the other pod what it could claim the VM by."""
    after = _promote(owners, target)
    plain = {key: value for key, value in after.alternate.items() if key != "vmim-uid"}
    return ownership.Owners(after.active, plain)


def _same_number(self: Raises, asked: Any, raised: Any) -> Raises:
    """Every raise has the same number, so that none is ever new."""
    after = _OBSERVE(self, asked, raised)
    numbers = {one: dict.fromkeys(hops, 0) for one, hops in after.numbers.items()}
    return Raises(0, numbers)


def _believes_raises_only(machine: Machine, known: Any, now: float, settings: Any) -> Any:
    return _settle(machine, replace(known, proof=Proof.UNKNOWN), now, settings)


def _forgets_uid(machine: Machine, state: State) -> str:
    return machine.facts.migration_uid if state is State.TARGET else ""


def _source_yields_at_once(machine: Machine, known: Any, now: float, settings: Any) -> Any:
    if known.role is Role.SOURCE:
        known = replace(known, proof=Proof.ELSEWHERE)
    return _settle(machine, known, now, settings)


_ROUTE_PRIORITY, _OBSERVE = routes.route_priority, Raises.observe

MUTANTS = (
    Mutant(
        "raise on any frame",
        "one-migration",
        _function(frames, "classify", lambda *_: SignKind.IP_FRAME),
    ),
    Mutant("hear no frame", "called-failed", _function(frames, "classify", lambda *_: None)),
    Mutant(
        "listen to nobody", "called-failed", _function(migration, "wants_signs", lambda _: False)
    ),
    Mutant("raise for a failed migration", "one-migration", _final_is_success),
    Mutant("forget to revert", "one-migration", _cell(Input.TIMER, State.TIME_WAIT, None)),
    Mutant("never end a raise", "one-migration", _cell(Input.FINAL_HERE, State.LIVE, State.LIVE)),
    Mutant("ignore the missed sign", "one-migration", _cell(Input.FINAL_HERE, State.TARGET, None)),
    Mutant(
        "ignore it once suppressed",
        "one-migration",
        _cell(Input.FINAL_HERE, State.SUPPRESSED, None),
    ),
    Mutant(
        "a source that never yields",
        "same-node",
        _cell(Input.PROVED_ELSEWHERE, State.BASE, None),
    ),
    Mutant(
        "a source that yields at once",
        "one-migration",
        _function(migration, "settle", _source_yields_at_once),
    ),
    Mutant(
        "believe no API", "one-migration", _function(migration, "settle", _believes_raises_only)
    ),
    Mutant("no raise is new", "ping-pong", _function(Raises, "observe", _same_number)),
    Mutant(
        "stay raised beside a newer raise",
        "ping-pong",
        _cell(Input.RAISED_ELSEWHERE, State.LIVE, State.LIVE),
    ),
    Mutant(
        "a raise that is gone is gone for good",
        "rollback",
        _never_back,
    ),
    Mutant(
        "routes deleted before added",
        "one-migration",
        _function(routes, "plan_routes", _deletes_first),
    ),
    Mutant(
        "a target with a route",
        "one-migration",
        _function(routes, "route_priority", _normal_for_targets),
    ),
    Mutant(
        "restart without the kernel's word",
        "killed",
        _function(migration, "recover", _without_kernel),
    ),
    Mutant("restart without the file", "killed", _function(migration, "recover", _forgets)),
    Mutant(
        "never swap the owner", "one-migration", _function(ownership, "promote", _never_promotes)
    ),
    Mutant(
        "free the address at the swap",
        "one-migration",
        _function(ownership, "promote", _promotes_by_dropping),
    ),
    Mutant("want no owner", "one-migration", _function(desired, "wants_owner", lambda _: False)),
    Mutant(
        "a return takes the claim away", "convergence", _function(ownership, "promote", _strips)
    ),
    Mutant(
        "words are never old",
        "back-to-back",
        _function(migration, "_gone", lambda m: m.facts.proof is Proof.ELSEWHERE),
    ),
    Mutant(
        "any pod of the node has the VM",
        "ping-pong",
        _function(facts, "_among_pods", lambda *_: Proof.HERE),
    ),
    Mutant(
        "the next target takes the VM's seat",
        "back-to-back",
        _function(targets, "runs_in", lambda _: ""),
    ),
    Mutant("a sent VM stays", "decentralised", _function(facts, "_sent_away", lambda *_: False)),
    Mutant(
        "a raise is new for ever",
        "rollback",
        _function(
            migration, "_newer_raise", lambda m: 0 < m.facts.raised_elsewhere >= m.seen_raise
        ),
    ),
    Mutant(
        "a served migration is not remembered",
        "one-migration",
        _function(migration, "_uid_after", _forgets_uid),
    ),
    Mutant(
        "a list of old takes the route",
        "killed",
        _function(migration, "_unserved_target", lambda m: migration._is_target(m.facts)),
    ),
)
