"""The live-migration state machine of one local endpoint (design §7). Pure.

Promise: whatever happens, in whatever order and however often, the state that is reached follows
from the facts and from what the VM itself said; and no route stays raised once the facts agree
on where the VM is. Never: a clock, a kernel, an API.

Three things are told about a VM, by three witnesses of different worth:

1. its own frames on our veth (a *sign*): the VM runs here, now;
2. a *raise* seen from another node over BGP: that node heard the VM, or the API told it so;
3. the API (`Facts.role`, `final`, `proof`): true, but late and in no particular order.

So frames beat a raise, a newer raise beats an older claim of ours, and the API's word moves what
neither of them settles. `docs/adr/0002` says where this goes beyond the design's table. Above all
three stands who may speak for the VM: a pod beside which the API chose another is REFUSED, and
nothing it sends counts any more (`docs/adr/0006`).

`TABLE` is that table. `settle` derives the inputs that the facts call for and steps until none is
left; `step` takes one input. Timers and signs carry the *episode* in which they were asked for
and are dropped when the machine has moved since.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from felix_shim.migration_table import (
    LISTENING,
    RAISED,
    TABLE,
    Action,
    CancelTimer,
    Event,
    Facts,
    Input,
    Moved,
    StartSniffing,
    StartTimer,
    State,
    StopSniffing,
    SwapOwner,
    Timing,
    Warn,
)
from felix_shim.model import Proof, Role

__all__ = [
    "RAISED",
    "LISTENING",
    "TABLE",
    "State",
    "Input",
    "Facts",
    "Timing",
    "StartSniffing",
    "StopSniffing",
    "SwapOwner",
    "StartTimer",
    "CancelTimer",
    "Warn",
    "Moved",
    "Action",
    "Event",
    "Machine",
    "recover",
    "settle",
    "step",
    "has_claimed",
    "wants_owner",
    "wants_signs",
    "why_dropped",
]


@dataclass(frozen=True, slots=True)
class Machine:
    """State and memory of one endpoint.

    `seen_raise`: the raise elsewhere that was visible when we last took position (became target,
    heard the VM, or were told it is here): only a larger number is newer than our claim.
    `last_raise`: the largest seen. `arrived`: we have claimed the VM and not yielded since;
    `unproved`: and the API has not had it here since; `told`: it has spoken of our own migration.
    `since`: when the convergence time began; `deadline`: what the timer is set to.
    """

    state: State = State.BASE
    episode: int = 0
    facts: Facts = field(default_factory=Facts)
    seen_raise: int = 0
    last_raise: int = 0
    arrived: bool = False
    since: float | None = None
    deadline: float | None = None
    migration_uid: str = ""
    told: bool = False
    unproved: bool = False


def recover(
    saved: Machine | None, *, kernel_raised: bool, kernel_normal: bool = False, target: str = ""
) -> Machine:
    """The machine of an endpoint at start: what was persisted, corrected by the kernel's routes.

    A raise is applied before it is persisted, so a raised route in the kernel says that the VM
    spoke here although the saved state still listens for it, and a normal one that the VM was known
    to be here. Without saved state and route, an endpoint that was attached as the target of
    migration `target` starts as one.
    """
    if saved is not None:
        return _corrected(saved, kernel_raised, kernel_normal)
    if kernel_raised:
        return Machine(State.LIVE, arrived=True, migration_uid=target, unproved=True)
    if kernel_normal and target:
        return Machine(arrived=True, migration_uid=target)
    if target and not kernel_normal:
        facts = Facts(Role.TARGET, final=False, migration_uid=target)
        return Machine(State.TARGET, facts=facts, migration_uid=target)
    return Machine()


def _corrected(saved: Machine, kernel_raised: bool, kernel_normal: bool) -> Machine:
    if saved.state not in LISTENING:
        return saved
    if kernel_raised:
        return replace(saved, state=State.LIVE, arrived=True, unproved=True)
    outdated = replace(saved.facts, proof=Proof.UNKNOWN)  # the kernel is a step ahead of the file
    return replace(saved, state=State.BASE, facts=outdated) if kernel_normal else saved


def wants_signs(machine: Machine) -> bool:
    """Whether the endpoint's veth must be listened to."""
    return machine.state in LISTENING


def why_dropped(machine: Machine, episode: int) -> str:
    """Why a sign of that episode moves nothing, in a word."""
    if machine.state is State.REFUSED:
        return "refused_pod"
    if episode != machine.episode:
        return "late"
    final = machine.facts.final and machine.state in LISTENING
    return "elsewhere" if final and _is_elsewhere(machine) else "not_awaited"


def wants_owner(machine: Machine) -> bool:
    """Whether this endpoint must be the address's active owner in IPAM.

    By the API's word alone it is only where no migration may have taken the VM away, one that is
    live or that succeeded: what it says of the place is then older than the VM's arrival elsewhere.
    """
    if has_claimed(machine):
        return True
    facts = machine.facts
    stays = facts.proof is Proof.HERE and facts.final and facts.role is not Role.SOURCE
    return machine.state is State.BASE and stays


def has_claimed(machine: Machine) -> bool:
    """Whether the VM came to this endpoint while it was watched, and has not left since."""
    return machine.state in RAISED or (machine.state is State.BASE and machine.arrived)


def step(
    machine: Machine, event: Event, now: float, settings: Timing
) -> tuple[Machine, tuple[Action, ...]]:
    """The machine after one input, and what to do about it. An input that does not apply changes
    nothing and asks for nothing. `now` is monotonic, in seconds."""
    after = TABLE[event.input].get(machine.state)
    if after is None or not _admits(machine, event, now, settings):
        held = event.input is Input.TIMER and event.episode == machine.episode
        return _timer(machine, now, settings) if held else (machine, ())
    return _enter(machine, after, event.input, now, settings)


def settle(
    machine: Machine, facts: Facts, now: float, settings: Timing
) -> tuple[Machine, tuple[Action, ...]]:
    """The machine in agreement with the facts: step while they call for an input.

    Level-triggered: repeating it with the same facts and time changes nothing.
    """
    before = machine.facts
    became_target = _is_target(facts) and not _is_target(before)
    machine = replace(
        machine,
        facts=facts,
        last_raise=max(machine.last_raise, facts.raised_elsewhere),
        told=machine.told or (facts.word == machine.migration_uid != ""),
        unproved=machine.unproved and facts.proof is not Proof.HERE,
    )
    actions: list[Action] = []
    for _ in range(len(State)):
        stands = machine.state not in (State.REFUSED, State.ENDED)
        refused = Input.ANOTHER_NAMED if facts.refused and stands else None
        due = refused or _due(machine, became_target, now, settings)
        if due is None:
            break
        machine, more = step(machine, Event(due, machine.episode), now, settings)
        actions += more
    if facts.final and not before.final and machine.state in LISTENING and not actions:
        actions.append(StartSniffing(machine.episode))  # signs count only from now on
    machine, timer = _timer(machine, now, settings)
    return machine, (*actions, *timer)


def _is_target(facts: Facts) -> bool:
    return facts.role is Role.TARGET and not facts.final


def _newer_raise(machine: Machine) -> bool:
    """Another node raised the address after we last took position, and still does."""
    return machine.facts.raised_elsewhere > machine.seen_raise


def _admits(machine: Machine, event: Event, now: float, settings: Timing) -> bool:
    """The conditions that the table writes in words, and the episodes."""
    match event.input:
        case Input.SIGN:
            return event.episode == machine.episode and _sign_counts(machine)
        case Input.TIMER:
            return event.episode == machine.episode and _converged(machine, now, settings)
        case Input.BECAME_SOURCE if machine.state is State.SUPPRESSED:
            return machine.facts.proof is Proof.HERE and not _newer_raise(machine)
        case _:
            return True


def _sign_counts(machine: Machine) -> bool:
    """A target waits for nothing else. Where the VM was given up, the migration must be over, and
    the API must not have it elsewhere where another witness says so, too, or where its word would
    take the route away again at once: a guest that wrongly goes on beside the VM would move the
    address to and fro with each of its frames."""
    if machine.state is State.TARGET:
        return True
    return machine.facts.final and not _is_elsewhere(machine)


def _is_elsewhere(machine: Machine) -> bool:
    """Whether a claim of the VM would not hold."""
    raised = machine.last_raise > machine.seen_raise and machine.facts.proof is Proof.ELSEWHERE
    return raised or _gone(replace(machine, unproved=True))


def _deadlines(machine: Machine, settings: Timing) -> tuple[float, float]:
    """When TimeWait may end, and when it must."""
    since = machine.since or 0.0
    return since + settings.convergence_seconds, since + 2 * settings.convergence_seconds


def _stale(machine: Machine) -> bool:
    return machine.facts.stale_elsewhere or machine.facts.raised_elsewhere > 0


def _converged(machine: Machine, now: float, settings: Timing) -> bool:
    soonest, latest = _deadlines(machine, settings)
    return now >= latest or (now >= soonest and not _stale(machine))


def _due(machine: Machine, became_target: bool, now: float, settings: Timing) -> Input | None:
    """The input that the facts call for in this state, None when they agree with it."""
    match machine.state:
        case State.BASE:
            return _due_in_base(machine)
        case State.TARGET:
            return _due_in_target(machine)
        case State.LIVE | State.TIME_WAIT:
            return _due_when_raised(machine, now, settings)
        case State.SUPPRESSED:
            return _due_in_suppressed(machine, became_target)
        case State.DEPARTED:
            return _due_in_departed(machine)
        case State.REFUSED | State.ENDED:
            return None


def _unserved_target(machine: Machine) -> bool:
    """A live migration to here that this machine has not been through already: a list that still
    shows a finished one as live must not take a settled VM's route away."""
    uid = machine.facts.migration_uid
    return _is_target(machine.facts) and (not uid or uid != machine.migration_uid)


def _left(machine: Machine) -> bool:
    """The VM is being moved away from here, or the API has it that it was."""
    facts = machine.facts
    if facts.role is not Role.SOURCE:
        return False
    return not facts.final or facts.proof is Proof.ELSEWHERE


def _gone(machine: Machine) -> bool:
    """The API has it that the VM is elsewhere.

    Where a target heard it, a word from before the end of that migration is older than its
    arrival and says nothing, unless we are told that it left.
    """
    facts = machine.facts
    if facts.proof is not Proof.ELSEWHERE:
        return False
    own = machine.migration_uid
    old = machine.unproved and own and (not machine.told or facts.word == own)
    return not old or (facts.role is Role.SOURCE and facts.final)


def _due_in_base(machine: Machine) -> Input | None:
    if _unserved_target(machine):
        return Input.BECAME_TARGET
    if _newer_raise(machine):
        return Input.RAISED_ELSEWHERE
    if _gone(machine) and not _is_target(machine.facts):
        return Input.PROVED_ELSEWHERE
    return None


def _due_in_target(machine: Machine) -> Input | None:
    if _is_target(machine.facts):
        return None
    if _left(machine):
        return Input.BECAME_SOURCE
    if machine.facts.proof is Proof.HERE and not _newer_raise(machine):
        return Input.FINAL_HERE
    return Input.FINAL_NOT_HERE


def _due_when_raised(machine: Machine, now: float, settings: Timing) -> Input | None:
    facts = machine.facts
    if _left(machine) and (facts.final or not facts.raised_elsewhere):
        return Input.BECAME_SOURCE  # beside another's raise, a normal route would be none
    if _newer_raise(machine):
        return Input.RAISED_ELSEWHERE
    if _gone(machine) and not _is_target(facts):
        return Input.PROVED_ELSEWHERE
    if machine.state is State.TIME_WAIT:
        return Input.TIMER if _converged(machine, now, settings) else None
    settled = facts.proof is Proof.HERE and not _is_target(facts)
    return Input.FINAL_HERE if settled else None


def _due_in_suppressed(machine: Machine, became_target: bool) -> Input | None:
    facts = machine.facts
    if became_target or (_is_target(facts) and facts.migration_uid != machine.migration_uid):
        return Input.BECAME_TARGET
    if facts.proof is not Proof.HERE or _newer_raise(machine) or _is_target(facts):
        return None
    if facts.role is Role.SOURCE and not facts.final:
        return Input.BECAME_SOURCE
    return Input.FINAL_HERE if facts.final else None


def _due_in_departed(machine: Machine) -> Input | None:
    if _unserved_target(machine):
        return Input.BECAME_TARGET
    if _newer_raise(machine) or machine.facts.proof is Proof.ELSEWHERE:
        return None
    here = machine.facts.final and machine.facts.proof is Proof.HERE
    return Input.FINAL_HERE if here else Input.RAISE_GONE


def _enter(
    machine: Machine, state: State, why: Input, now: float, settings: Timing
) -> tuple[Machine, tuple[Action, ...]]:
    """The transition itself: a new episode, the memory that goes with it, and the actions."""
    before, facts = machine.state, machine.facts
    episode = machine.episode + 1
    actions: list[Action] = [Moved(before, state, why, episode)]
    if before is State.TIME_WAIT:
        actions.append(CancelTimer())
        if why is Input.TIMER and _stale(machine):
            actions.append(Warn("another node still announces a route for this VM's address"))
    if state in LISTENING:
        actions.append(StartSniffing(episode))
    elif before in LISTENING:
        actions.append(StopSniffing())
    returned = before is State.DEPARTED and state is State.BASE and facts.proof is Proof.HERE
    arrived = state in RAISED or returned or (machine.arrived and state is State.BASE)
    if arrived and not machine.arrived:
        actions.append(SwapOwner())
    claims = (
        state in RAISED | {State.BASE} and before in LISTENING and why is not Input.BECAME_SOURCE
    )
    machine = replace(
        machine,
        state=state,
        episode=episode,
        seen_raise=machine.last_raise if claims or state is State.TARGET else machine.seen_raise,
        told=machine.told and state is not State.TARGET,
        unproved=facts.proof is not Proof.HERE if claims else machine.unproved and arrived,
        arrived=arrived,
        since=now if state is State.TIME_WAIT else None,
        deadline=None,
        migration_uid=_uid_after(machine, state),
    )
    machine, timer = _timer(machine, now, settings)
    return machine, (*actions, *timer)


def _uid_after(machine: Machine, state: State) -> str:
    served = state is State.TARGET and machine.facts.migration_uid
    return machine.facts.migration_uid if served else machine.migration_uid


def _timer(
    machine: Machine, now: float, settings: Timing
) -> tuple[Machine, tuple[StartTimer, ...]]:
    """Set the timer to the deadline that holds now: the first, or the last once that has passed."""
    if machine.state is not State.TIME_WAIT:
        return machine, ()
    soonest, latest = _deadlines(machine, settings)
    deadline = soonest if now < soonest else latest
    if deadline == machine.deadline:
        return machine, ()
    timer = StartTimer(deadline, machine.episode, held=now >= soonest)
    return replace(machine, deadline=deadline), (timer,)
