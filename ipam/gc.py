"""Garbage collection of IPAM: observe, judge, and do what two observations agree on.

What is judged: addresses of pods that are gone, of tunnels whose node is, of VMs that are deleted;
handles' records; claims of removed nodes, false and half-finished ones, empty blocks. The rules are
pure (`gc_addresses`, `gc_nobodys`, `gc_vms`, `gc_handles`, `gc_claims`), `gc_verdicts` asks for a
second observation, `gc_effects` changes by compare-and-swap. Just before an address is freed or a
node's block given up, the API is asked once more, by name.

`sweep` judges the whole cluster; `collect` those VM handles that the caller names. The engine
knows no agent and no command: whoever runs it keeps the memory between passes. `ipam check` uses
the same observation and the same rules (`check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from . import gc_claims, gc_handles, gc_nobodys, gc_vms
from .gc_apply import apply, free_vm
from .gc_claims import Claim
from .gc_cluster import Cluster, observe_cluster, without_witness
from .gc_effects import Means
from .gc_handles import HandleState
from .gc_inventory import Allocated, Inventory, read_inventory
from .gc_verdicts import Memory, Opinion, Outcome, Span, Subject, Suspect, Verdict, explain, ripen
from .vm_handles import VMHandle, vm_handles

__all__ = [
    "GRACE_SECONDS",
    "Collected",
    "Means",
    "Memory",
    "Outcome",
    "Suspect",
    "Swept",
    "Verdict",
    "collect",
    "explain",
    "sweep",
]

GRACE_SECONDS = 60.0
"""How long a VM must have been gone, for an agent."""

CLUSTER_GRACE_SECONDS = 900.0
"""How long anything must have been doubtful, cluster-wide; Calico's `leakGracePeriod`."""


@dataclass(frozen=True, slots=True)
class Collected:
    """One pass over VM handles. FREE is what was freed; what was to be and could not is KEEP."""

    verdicts: tuple[Verdict[VMHandle], ...] = ()
    memory: Memory = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opinions:
    """What one observation of the cluster says."""

    inventory: Inventory
    cluster: Cluster
    span: Span
    addresses: tuple[Opinion[Allocated], ...]
    vms: tuple[Opinion[VMHandle], ...]
    handles: tuple[Opinion[HandleState], ...]
    claims: tuple[Opinion[Claim], ...]

    def all(self) -> Iterable[Opinion[Subject]]:
        """Every opinion."""
        return chain(self.addresses, self.vms, self.handles, self.claims)


@dataclass(frozen=True, slots=True)
class Swept:
    """One pass over everything. FREE is what was done (in a dry run: what would be)."""

    opinions: Opinions
    verdicts: tuple[Verdict[Subject], ...]
    memory: Memory


def collect(
    means: Means,
    handles: tuple[VMHandle, ...],
    memory: Memory,
    grace: Callable[[VMHandle], float] = lambda _: GRACE_SECONDS,
    *,
    witness: str = "",
) -> Collected:
    """Judge these handles and free what is to be freed. An empty set asks the API nothing.

    `witness` is a node of ours by its name in the API: one that has none of it is another
    cluster's, and frees nothing.
    """
    if not handles:
        return Collected()
    stranger = without_witness(means.kube, witness) if witness else None
    seen = gc_vms.observe(means.kube, handles, means.monotonic, stranger=stranger)
    found = [gc_vms.opine(handle, seen) for handle in handles]
    verdicts, suspects = ripen(found, seen.span, memory, grace)
    done = tuple(free_vm(means, one, one.subject) for one in verdicts)
    return Collected(done, _left(suspects, done))


def opinions(means: Means, *, trust_empty: bool = False) -> Opinions:
    """Observe the whole cluster once. Raises what the datastore raises; the API may fail."""
    inventory = read_inventory(means.store, means.now())
    cluster = observe_cluster(means.kube, inventory, means.monotonic, trust_empty=trust_empty)
    machines = vm_handles(tuple(inventory.blocks.values()))
    seen = gc_vms.observe(means.kube, machines, means.monotonic, stranger=cluster.stranger)
    theirs = {address for one in machines for address in one.addresses}
    others = (one for one in inventory.allocated if one.piece.address not in theirs)
    return Opinions(
        inventory=inventory,
        cluster=cluster,
        span=Span(cluster.span.began, seen.span.ended),
        addresses=tuple(gc_nobodys.opine_all(others, inventory, cluster)),
        vms=tuple(gc_vms.opine(one, seen) for one in machines),
        handles=tuple(
            gc_handles.opine(one, inventory) for one in gc_handles.handle_states(inventory)
        ),
        claims=tuple(gc_claims.opine_all(inventory, cluster)),
    )


def sweep(
    means: Means,
    memory: Memory,
    *,
    grace: float = CLUSTER_GRACE_SECONDS,
    trust_empty: bool = False,
    dry_run: bool = False,
) -> Swept:
    """Judge everything, and do what is to be done; `trust_empty` believes an empty list.

    Raises what the datastore raises while it is read; an effect that fails is a KEEP.
    """
    seen = opinions(means, trust_empty=trust_empty)
    verdicts, suspects = ripen(
        seen.all(), seen.span, memory, lambda one: gc_nobodys.grace_of(one, seen.inventory, grace)
    )
    if dry_run:
        return Swept(seen, verdicts, suspects)
    done = apply(means, seen.inventory, verdicts)
    return Swept(seen, done, _left(suspects, done))


def _left(suspects: Memory, done: Iterable[Verdict[Subject]]) -> Memory:
    """The memory without what was done, or was found alive at the last question."""
    settled = {one.subject.key for one in done if one.outcome is not Outcome.WAIT}
    settled -= {one.subject.key for one in done if one.unknown}
    return {key: value for key, value in suspects.items() if key not in settled}
