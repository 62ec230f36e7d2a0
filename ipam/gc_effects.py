"""What is done about what was condemned: compare-and-swap on exactly what was judged.

Everything is read again in the transaction that changes it. If it is not what was judged, nothing
is done (False); so two collectors, or a collector and an ADD, cannot both have their way. An
effect whose answer was lost, or that was killed in the middle, is finished by its repetition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from libtortie.datastore.port import Datastore
from libtortie.errors import Unavailable
from libtortie.kube.port import KubeReader
from libtortie.model.ipam import AffinityState, BlockAffinity, IPAddress
from libtortie.model.keys import BlockKey, HandleKey, IPNetwork, Key, Kind, ResourceKey
from libtortie.model.resources import Node

from . import block as blocks
from . import vm
from .annals import Annals
from .attempts import AGAIN, Again, Attempts, Progress, Retry
from .gc_claims import Claim, Flaw
from .gc_cluster import kube_name
from .gc_handles import HandleState
from .holdings import Held, Holdings, first_wrong, heal, holdings, set_counts
from .settings import read_config, require_ready
from .transaction import Transaction
from .vm_handles import Piece, VMHandle, piece_of

RETRY = Retry(attempts=5, seconds=5.0)

BATCH = 16
"""Orphan handles deleted together: a commit may have 128 operations, and each has a few blocks."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a pass works with. `now` is wall-clock time, for cool-downs. Times are in seconds.

    Once `stopped` says so nothing more is begun.
    """

    store: Datastore
    kube: KubeReader | None
    now: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    retry: Retry = RETRY
    stopped: Callable[[], bool] = lambda: False
    annals: Annals | None = None

    def run(self, what: str, decide: Callable[[Transaction, Progress], bool | Again]) -> bool:
        """The result of a decision that was committed. Raises `TortieError`."""
        self.go_on()
        progress = Progress()
        loop = Attempts(self.store, self.retry, self.monotonic, self.sleep, annals=self.annals)
        return loop.run(what, lambda tx: decide(tx, progress), progress=progress)

    def go_on(self) -> None:
        """Raise `Unavailable` once it is to stop."""
        if self.stopped():
            raise Unavailable("told to stop")


def release_vm(means: Means, judged: VMHandle) -> bool:
    """Free all of a VM's addresses, if they are what was judged."""
    begun = False

    def decide(tx: Transaction, progress: Progress) -> bool | Again:
        nonlocal begun
        require_ready(tx)
        found = holdings(tx, judged.handle_id, also=[piece.cidr for piece in judged.pieces])
        if heal(tx, found):
            return AGAIN
        actual = tuple(piece for _, piece in _pieces(tx, found))
        ours = begun or progress.uncertain  # some of it may be done, by an attempt of ours
        if actual != judged.pieces and not (ours and all(one in judged.pieces for one in actual)):
            return False
        if not vm.stage_release(tx, found, found.held, now=means.now()):
            begun = True
            return AGAIN
        return True

    return means.run(f"free {judged.handle_id}", decide)


def release(means: Means, handle_id: str, judged: Sequence[Piece]) -> frozenset[IPAddress]:
    """Free those addresses of a handle that still are what was judged, and say which."""
    freed: set[IPAddress] = set()
    begun = False

    def decide(tx: Transaction, progress: Progress) -> bool | Again:
        nonlocal begun
        require_ready(tx)
        found = holdings(tx, handle_id, also=[piece.cidr for piece in judged])
        if heal(tx, found):
            return AGAIN
        actual = _pieces(tx, found)
        same = [held for held, piece in actual if piece in judged]
        if not progress.uncertain and not begun:
            freed.clear()  # else an earlier attempt may have freed what is not there any more
        freed.difference_update(piece.address for _, piece in actual)
        freed.update(held.address for held in same)
        if not vm.stage_release(tx, found, same, now=means.now()):
            begun = True
            return AGAIN
        return True

    means.run(f"free addresses of {handle_id}", decide)
    return frozenset(freed)


def mend_handles(means: Means, judged: Sequence[HandleState]) -> frozenset[str]:
    """Make these records true, in one commit where they are few; says which still were what was
    judged.

    The blocks a record counts wrongly are written too, so that a writer which raised the count
    and has not yet written its block fails there.
    """
    done: set[str] = set()
    begun: set[str] = set()

    def decide(tx: Transaction, progress: Progress) -> bool | Again:
        tx.prefetch(_keys(judged))
        require_ready(tx)
        if not progress.uncertain:
            done.clear()
        same = [state for state in judged if _is_judged(tx, state, begun)]
        done.update(state.handle_id for state in same)
        whole = [_mend(tx, state) for state in same]
        if all(whole):
            return True
        begun.update(done)
        return AGAIN

    names = ", ".join(state.handle_id for state in judged)
    means.run(f"mend handles {names}", decide)
    return frozenset(done)


def _keys(judged: Sequence[HandleState]) -> list[Key]:
    """What mending reads: the records, and the blocks they count or should."""
    keys: list[Key] = [HandleKey(state.handle_id) for state in judged]
    cidrs = {cidr for state in judged for cidr, _ in (*state.counted, *state.held)}
    return [*keys, *(BlockKey(cidr) for cidr in cidrs)]


def _is_judged(tx: Transaction, state: HandleState, begun: Set[str]) -> bool:
    """Whether a handle holds what was judged, by the record that was judged or by one of ours."""
    record = tx.record(HandleKey(state.handle_id))
    same = (record.revision if record else None) == state.revision or state.handle_id in begun
    found = holdings(tx, state.handle_id, also=[cidr for cidr, _ in state.held])
    return same and found.counts == dict(state.held)


def _mend(tx: Transaction, state: HandleState) -> bool:
    """Stage one handle's record as the blocks have it; False: the first part of it."""
    found = holdings(tx, state.handle_id, also=[cidr for cidr, _ in state.held])
    part = first_wrong(tx, found)
    for cidr in part:
        tx.guard(BlockKey(cidr))
    if not heal(tx, found) and found.handle is None:
        counts = {cidr: found.counts[cidr] for cidr in part}
        set_counts(tx, state.handle_id, found.handle, counts)
    return len(part) == len(found.wrong)


def tidy(means: Means, claim: Claim) -> bool:
    """Give up a claim, or write its lost record, if it still has the flaw it was judged for."""

    def decide(tx: Transaction, progress: Progress) -> bool | Again:
        require_ready(tx)
        return _tidy(tx, claim, means.now()) or progress.uncertain

    return means.run(f"tidy {claim.name}", decide)


def _tidy(tx: Transaction, claim: Claim, now: datetime) -> bool:
    cidr, key = claim.cidr, claim.affinity
    block = tx.block(cidr)
    if claim.node:
        record = tx.record(key)
        if (record.revision if record else None) != claim.revision:
            return False
    ours = block is not None and (block.node or "") == claim.node
    tx.guard(BlockKey(cidr))
    match claim.flaw:
        case Flaw.LOST_NODE:
            return _give_up(tx, claim, now)
        case Flaw.FALSE if block is not None and not ours:
            tx.remove(key)
        case Flaw.NO_BLOCK if block is None:
            tx.remove(key)
        case Flaw.NO_RECORD if ours:
            tx.put(key, BlockAffinity(AffinityState.CONFIRMED))
        case Flaw.EMPTY if ours and block is not None and block.sequence_number == claim.number:
            if not _empty(tx, cidr, now):
                return False
            tx.remove(BlockKey(cidr))
            if claim.revision is not None:
                tx.remove(key)
        case _:
            return False
    return True


def _give_up(tx: Transaction, claim: Claim, now: datetime) -> bool:
    """A removed node's block goes if it is empty, else its affinity; the node must be gone still.

    The block first: what is left of it, if the store stops in between, is a false affinity.
    """
    cidr, block = claim.cidr, tx.block(claim.cidr)
    node = tx.value(ResourceKey(Kind.NODE, claim.node), Node)
    if block is None or block.node != claim.node or (node is not None and not kube_name(node)):
        return False
    tx.guard(ResourceKey(Kind.NODE, claim.node))
    if _empty(tx, cidr, now):
        tx.remove(BlockKey(cidr))
    else:
        orphan = replace(block, affinity=None, affinity_claim_time=None)
        tx.put(BlockKey(cidr), blocks.touch(orphan))
    if claim.revision is not None:
        tx.remove(claim.affinity)
    return True


def _empty(tx: Transaction, cidr: IPNetwork, now: datetime) -> bool:
    """Whether nothing in a block is held, or cools down still."""
    block, seconds = tx.block(cidr), read_config(tx).cooldown_seconds
    return block is not None and blocks.is_empty(
        blocks.expire_cooldown(block, now=now, cooldown=seconds)
    )


def _pieces(tx: Transaction, found: Holdings) -> list[tuple[Held, Piece]]:
    """What a handle holds, as the inventory would say it."""
    return [
        (item, piece_of(block, item.ordinal, vm.owners_of(item)))
        for item in found.held
        if (block := tx.block(item.cidr)) is not None
    ]
