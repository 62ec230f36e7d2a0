"""Frees the addresses of VMs that are deleted when no pod of theirs is left to say so.

A VM that was stopped keeps its address, and when it is deleted later no DEL runs. `judge` decides,
as a function of values: a handle's addresses are free when every VM (or VMI without a VM) that
its owners name is gone, by UID, and no owner is a living pod, in two complete observations at
least a grace apart, with nothing about the allocations changed between them. What is not known is
kept: an API that fails, a kind that is not served, a list whose server had not filled its cache.

`collect` applies it, and frees only what still is exactly what was judged: the blocks are read
again, compared address by address (owners and sequence numbers), and written by compare-and-swap
on the revisions so read. A VM re-created under the name, whose ADD comes in between, wins.

The engine knows no agent: whoever runs it says which handles are its to judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from libtortie.datastore.port import Datastore
from libtortie.errors import NotFound, TortieError, first_line
from libtortie.kube.objects import KubeObject, Pod
from libtortie.kube.port import KubeReader
from libtortie.model.ipam import Owner

from . import vm
from .attempts import AGAIN, Again, Attempts, Progress, Retry
from .holdings import Holdings, heal, holdings
from .ownership import is_pod
from .settings import require_ready
from .transaction import Transaction
from .vm_handles import Piece, Reference, VMHandle, piece_of, references

GRACE_SECONDS = 60.0
"""How long a VM must have been gone."""

RETRY = Retry(attempts=5, seconds=5.0)

Place = tuple[type[KubeObject], str]
"""What one list is of: a kind in a namespace."""


class Outcome(StrEnum):
    """What becomes of a handle's addresses."""

    KEEP = "keep"
    WAIT = "wait"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Observation:
    """What the API said. Times are monotonic seconds.

    `lists` has, for each place that was asked, UIDs by name if the list is complete. `pods` has
    the UID of a pod that has not finished, None for one that is gone or has.
    """

    began: float
    ended: float
    lists: Mapping[Place, Mapping[str, str] | Unknown] = field(default_factory=dict)
    pods: Mapping[tuple[str, str], str | Unknown | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A handle whose VM was seen gone, and when that was first."""

    handle: VMHandle
    since: float


Memory = Mapping[str, Suspect]
"""Suspects by handle id, from one pass to the next. Losing it costs a grace, nothing else."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one handle, and why. `seconds` is how long WAIT waits at least;
    `unknown` marks a KEEP for want of knowledge."""

    handle: VMHandle
    outcome: Outcome
    reason: str
    seconds: float = 0.0
    unknown: bool = False


Graces = Callable[[VMHandle], float]


def judge(
    handles: Iterable[VMHandle], seen: Observation, memory: Memory, grace: Graces
) -> tuple[tuple[Verdict, ...], Memory]:
    """A verdict for each handle, and what to remember for the next time. Pure."""
    verdicts: list[Verdict] = []
    suspects: dict[str, Suspect] = {}
    for handle in handles:
        known = memory.get(handle.handle_id)
        if known is not None and known.handle != handle:
            known = None  # something happened to it: the clock starts anew
        verdict = _first_judgement(handle, seen)
        if verdict.outcome is Outcome.WAIT:
            suspect = known or Suspect(handle, seen.ended)
            left = grace(handle) - (seen.began - suspect.since)
            if known is not None and left <= 0:
                verdict = replace(verdict, outcome=Outcome.FREE)
            else:
                verdict = replace(verdict, seconds=max(0.0, left))
            suspects[handle.handle_id] = suspect
        elif verdict.unknown and known is not None:
            suspects[handle.handle_id] = known  # neither confirmed nor refuted
        verdicts.append(verdict)
    return tuple(verdicts), suspects


def explain(verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """One line for each verdict, for people."""
    lines = []
    for one in verdicts:
        addresses = ", ".join(str(address) for address in one.handle.addresses)
        when = f" (in {one.seconds:.0f} s)" if one.outcome is Outcome.WAIT else ""
        lines.append(f"{one.outcome}{when}: {one.handle.handle_id} [{addresses}]: {one.reason}")
    return tuple(lines)


def _first_judgement(handle: VMHandle, seen: Observation) -> Verdict:
    """KEEP, or WAIT for what is gone as far as this one observation goes."""
    named = references(handle)
    if not named:
        return Verdict(handle, Outcome.KEEP, "nothing says which VM it is of")
    questions = [_object_lives(reference, seen) for reference in named]
    questions += [_pod_lives(owner, seen) for owner in handle.owners if is_pod(owner)]
    for lives, reason in questions:
        if lives:
            return Verdict(handle, Outcome.KEEP, reason)
    for lives, reason in questions:
        if lives is None:
            return Verdict(handle, Outcome.KEEP, f"unknown: {reason}", unknown=True)
    return Verdict(handle, Outcome.WAIT, "; ".join(reason for _, reason in questions))


def _object_lives(wanted: Reference, seen: Observation) -> tuple[bool | None, str]:
    listed = seen.lists.get((wanted.kind, wanted.namespace), Unknown("not listed"))
    if isinstance(listed, Unknown):
        return None, f"{wanted.kind.api.plural} in {wanted.namespace}: {listed.reason}"
    found = listed.get(wanted.name)
    if found is None:
        return False, f"{wanted} is gone"
    if wanted.uid and found != wanted.uid:
        return False, f"{wanted} is gone, that name's is now {found}"
    return True, f"{wanted} exists"


def _pod_lives(owner: Owner, seen: Observation) -> tuple[bool | None, str]:
    key = _pod_of(owner)
    name = f"pod {key[0]}/{key[1]}"
    found = seen.pods.get(key, Unknown("not looked up"))
    if isinstance(found, Unknown):
        return None, f"{name}: {found.reason}"
    if found is None or found != owner.get("pod-uid", found):
        return False, f"{name} is gone"
    return True, f"{name} lives"


def _pod_of(owner: Owner) -> tuple[str, str]:
    return owner.get("namespace", ""), owner["pod"]


# -- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Collected:
    """One pass: its verdicts, and its memory. FREE is what was freed; what was to be and could
    not is KEEP with the reason."""

    verdicts: tuple[Verdict, ...] = ()
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Means:
    """What a pass works with. `now` is wall-clock time, for cool-downs."""

    store: Datastore
    kube: KubeReader
    now: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    retry: Retry = RETRY


def observe(
    kube: KubeReader, handles: tuple[VMHandle, ...], monotonic: Callable[[], float]
) -> Observation:
    """Ask the API about whom these handles name; never raises for what it answers."""
    began = monotonic()
    named = [(handle, references(handle)) for handle in handles]
    places = {(one.kind, one.namespace): None for _, found in named for one in found}
    seen = Observation(began, began, {place: _uids(kube, *place) for place in places})
    pods: dict[tuple[str, str], str | Unknown | None] = {}
    for handle, found in named:
        if found and not any(_object_lives(one, seen)[0] for one in found):
            for key in {_pod_of(owner) for owner in handle.owners if is_pod(owner)} - set(pods):
                pods[key] = _pod_uid(kube, *key)
    return replace(seen, ended=monotonic(), pods=pods)


def collect(
    means: Means,
    handles: tuple[VMHandle, ...],
    memory: Memory,
    grace: Graces = lambda _: GRACE_SECONDS,
) -> Collected:
    """Judge these handles and free what is to be freed. An empty set asks the API nothing."""
    if not handles:
        return Collected()
    seen = observe(means.kube, handles, means.monotonic)
    verdicts, suspects = judge(handles, seen, memory, grace)
    done = [one if one.outcome is not Outcome.FREE else _free(means, one) for one in verdicts]
    gone = {one.handle.handle_id for one in done if one.outcome is Outcome.FREE}
    kept = {key: value for key, value in suspects.items() if key not in gone}
    return Collected(tuple(done), kept)


def _free(means: Means, verdict: Verdict) -> Verdict:
    """Free what was judged, or say why it was kept after all."""
    try:
        if release(means, verdict.handle):
            return verdict
    except TortieError as error:
        reason = f"unknown: it could not be freed: {first_line(error)}"
        return replace(verdict, outcome=Outcome.KEEP, reason=reason, unknown=True)
    return replace(verdict, outcome=Outcome.KEEP, reason="it changed after it was judged")


def release(means: Means, judged: VMHandle) -> bool:
    """Free a handle's addresses if they are what was judged; False when they are not.

    Raises `Conflict`, `Unavailable`, `Malformed`.
    """
    progress = Progress()

    def decide(tx: Transaction) -> bool | Again:
        require_ready(tx)
        found = holdings(tx, judged.handle_id, also=[piece.cidr for piece in judged.pieces])
        if heal(tx, found):
            return AGAIN
        actual = _pieces(tx, found)
        rest = progress.uncertain and all(piece in judged.pieces for piece in actual)
        if actual != judged.pieces and not rest:
            return False  # with `rest` an attempt of ours did some of it, and its answer was lost
        vm.stage_release(tx, found, found.held, now=means.now())
        return True

    loop = Attempts(means.store, means.retry, means.monotonic, means.sleep)
    return loop.run(f"free {judged.handle_id}", decide, progress=progress)


def _pieces(tx: Transaction, found: Holdings) -> tuple[Piece, ...]:
    """What a handle holds, as `vm_handles` would say it."""
    blocks = {item.cidr: tx.block(item.cidr) for item in found.held}
    return tuple(
        piece_of(block, item.ordinal, vm.owners_of(item))
        for item in found.held
        if (block := blocks[item.cidr]) is not None
    )


def _uids(kube: KubeReader, kind: type[KubeObject], namespace: str) -> Mapping[str, str] | Unknown:
    """UIDs by name, if the list is complete."""
    try:
        objects, version = kube.list(kind, namespace)
    except NotFound:
        return Unknown("the kind is not served")
    except TortieError as error:
        return Unknown(first_line(error))
    if version in ("", "0"):
        return Unknown("the list has no version: the server had not read its store")
    return {one.metadata.name: one.metadata.uid for one in objects}


def _pod_uid(kube: KubeReader, namespace: str, name: str) -> str | Unknown | None:
    try:
        found = kube.get(Pod, name, namespace)
    except NotFound:
        return None
    except TortieError as error:
        return Unknown(first_line(error))
    return None if found.finished else found.metadata.uid
