"""Frees the addresses of VMs that were stopped on this node and deleted since (`ipam.gc`).

Each agent sees to the handles whose stopped VM names its node. Those of a node that is no more, or
of no node, are the lowest node's; the next ones are ready to do it too, each a grace later, in
case the lower ones are down: compare-and-swap lets only one free them.

A pass reads the blocks, and only when there is something to judge the API. It runs when a VM's
deletion was seen or may have been missed, when what it saw is to be confirmed, after trouble, and
at the latest every five minutes. So an address is free about a minute after its VM went. The watch
only wakes; what counts is a complete list at the time of the pass, of an API that has this very
node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ipam.gc import GRACE_SECONDS, Collected, Means, Memory, Outcome, collect
from ipam.gc_cluster import kube_name
from ipam.vm_handles import VMHandle, read_vm_handles
from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore
from libtortie.errors import TortieError, first_line
from libtortie.jsonlog import Log
from libtortie.kube.follow import follow
from libtortie.kube.objects import VirtualMachine
from libtortie.kube.port import Applied, KubeClient
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import Node

PERIOD_SECONDS = 300.0
TROUBLE_SECONDS = 30.0
SPACING_SECONDS = 5.0
"""Least time between two passes: many VMs may be deleted at once."""
MOST_RANKS = 10


def patience(handle: VMHandle, node: str, nodes: tuple[str, ...], grace: float) -> float | None:
    """How long a handle's VM must be gone before this node frees its addresses; None: never.

    `nodes` are all that exist. While a pod of a living node is the owner, its DEL is to come.
    """
    home = handle.node
    if home == node:
        return None if handle.running else grace
    if home in nodes or node not in nodes:
        return None
    return grace * (1 + min(sorted(nodes).index(node), MOST_RANKS))


@dataclass(slots=True)
class Collector:
    """`run` is a thread's body; `nudge` says that a VM was deleted. `grace` is in seconds."""

    means: Means
    node: str
    log: Log
    grace: float = GRACE_SECONDS
    _memory: Memory = field(default_factory=dict)
    _complaint: Complaint = field(init=False)
    _nudged: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "vm_collection_waits")

    def run(self) -> None:
        """Pass after pass, until `stop`."""
        while not self._stop.is_set():
            self._nudged.clear()
            seconds = self.attempt()
            if not self._stop.wait(min(seconds, SPACING_SECONDS)):
                self._nudged.wait(max(0.0, seconds - SPACING_SECONDS))

    def nudge(self) -> None:
        """Make a pass soon."""
        self._nudged.set()

    def stop(self) -> None:
        """Make `run` return after the pass it is at."""
        self._stop.set()
        self._nudged.set()

    def attempt(self) -> float:
        """One pass; returns in how many seconds there should be another."""
        try:
            done = self._collect()
        except TortieError as error:
            self._complaint.about(first_line(error))
            return TROUBLE_SECONDS
        self._memory = done.memory
        for one in done.verdicts:
            if one.outcome is Outcome.FREE:
                self.log.info(
                    "vm_address_freed",
                    handle_id=one.subject.handle_id,
                    addresses=one.subject.addresses,
                    reason=one.reason,
                )
        unknown = [one.reason for one in done.verdicts if one.unknown]
        self._complaint.about(unknown[0] if unknown else "")
        waits = [one.seconds for one in done.verdicts if one.outcome is Outcome.WAIT]
        return min([PERIOD_SECONDS, *waits, *([TROUBLE_SECONDS] if unknown else [])])

    def _collect(self) -> Collected:
        handles, unreadable = read_vm_handles(self.means.store)
        for name in unreadable:
            self.log.error("stored_value_unreadable", reason=name)
        known = _nodes(self.means.store)
        nodes = tuple(known)
        found = [(one, patience(one, self.node, nodes, self.grace)) for one in handles]
        mine = {one.handle_id: seconds for one, seconds in found if seconds is not None}
        handles = tuple(one for one in handles if one.handle_id in mine)
        return collect(
            self.means,
            handles,
            self._memory,
            lambda one: mine[one.handle_id],
            witness=known.get(self.node) or self.node,
        )


def _nodes(store: Datastore) -> dict[str, str]:
    """The nodes that exist and what Kubernetes calls each, as far as its Node says.

    None when one cannot be read: then none is known to be no more.
    """
    listing = store.list(Resources(Kind.NODE))
    if listing.malformed:
        return {}
    nodes = (one.value for one in listing.records if isinstance(one.value, Node))
    return {node.metadata.name: kube_name(node) for node in nodes}


@dataclass(slots=True)
class DeletedVMs:
    """Calls `nudge` for every VM that is deleted, and once deletions may have been missed.

    That is after each list: a VM that went between the last pass, or the end of a watch, and the
    list is told by no event.
    """

    client: KubeClient
    nudge: Callable[[], None]
    log: Log
    _stop: threading.Event = field(default_factory=threading.Event)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._complaint = Complaint(self.log, "api_watch_lost")

    def run(self) -> None:
        """The thread's body."""
        lost = self._complaint.watch_lost
        for event in follow(self.client, VirtualMachine, stop=self._stop, trouble=lost):
            self._complaint.about("")
            if not isinstance(event, Applied):
                self.nudge()

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()
