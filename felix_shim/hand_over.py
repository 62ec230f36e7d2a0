"""Connections follow their VM: the source answers, the target asks, again and again until it came.

The target asks from the moment that it is one: first for everything, then every second for what
changed. When the VM is heard, it says so and gets the last copy, taken after the VM had stopped at
the source. All of that is on threads of its own: the cut-over waits for none of it, and without
it connections go on as far as the rules and `nf_conntrack_tcp_loose` allow.

To read the table takes a processor, 1 ms of it with few connections, 40 with 5,000, though not from
forwarding (`libtortie.linux.conntrack`). So the last copy is taken when the routes have followed
the VM, not while they do.

A copy is taken from the node that the API names as the source, and from no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from felix_shim.drivers.conntrack import Copy, Outcome, Table, portable
from felix_shim.exchange import Exchange, Wish
from felix_shim.model import EndpointId
from felix_shim.peer_messages import Batch, End, Message, Refused, Request, batches
from felix_shim.peers import Link, Spawn
from libtortie.complaint import Complaint
from libtortie.deadline import Deadline
from libtortie.errors import Malformed, TortieError, Unauthorized, Unavailable, first_line
from libtortie.jsonlog import Log
from libtortie.linux.flows import Flow
from libtortie.metrics import Counter, Metric

MOST_FLOWS = 1 << 16
"""Entries of one VM. What is beyond is left out, and told."""
MOST_TRANSFERS = 32
_RESTS = 3.0
"""How many times as long as a copy took it is rested: a large table takes a quarter of a core."""
COPIED = "tortie_conntrack_copied_flows_total"
LOST = "tortie_conntrack_handovers_total"

Dial = Callable[[Wish], Link]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between two copies, at least; before another attempt, at first and at most; how long
    after the VM came a copy is still worth an attempt; how long a whole answer may take; how long
    after the VM left its node reads the table for the last time."""

    interval: float = 1.0
    first_pause: float = 0.1
    longest_pause: float = 2.0
    late: float = 10.0
    answer: float = 30.0
    settle: float = 0.01


@dataclass(slots=True)
class _Transfer:
    """One VM on its way to here."""

    wish: Wish
    done: bool = False
    thread: threading.Thread | None = None
    since: float | None = None


@dataclass(slots=True)
class HandOver:
    """`table` is this node's connection table; `monotonic` is in seconds."""

    table: Table
    dial: Dial
    spawn: Spawn
    log: Log
    monotonic: Callable[[], float]
    pace: Pace = Pace()
    _exchange: Exchange = field(default_factory=Exchange)
    _transfers: dict[EndpointId, _Transfer] = field(default_factory=dict)
    _stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)
    _copied: Counter = field(
        default_factory=lambda: Counter(
            COPIED, "Connection-table entries of VMs on their way to this node.", ("result",)
        )
    )
    _ended: Counter = field(
        default_factory=lambda: Counter(
            LOST, "Hand-overs of connections to this node, by how they ended.", ("result",)
        )
    )

    def metrics(self) -> tuple[Metric, ...]:
        """For the scraper."""
        return self._copied, self._ended

    # -- for the reconciler, at once ---------------------------------------------------------

    def want(self, wanted: Exchange) -> None:
        """From now on these nodes may have these connections, and these are wanted here."""
        with self._condition:
            self._exchange = wanted
            for endpoint in self._transfers.keys() - wanted.wishes.keys():
                del self._transfers[endpoint]
            for endpoint, wish in wanted.wishes.items():
                self._wish(endpoint, wish)
            self._condition.notify_all()

    def _wish(self, endpoint: EndpointId, wish: Wish) -> None:
        """A wish; where its source is not named any more, it is the one that was."""
        known = self._transfers.get(endpoint)
        if known is None or not _same_vm(known.wish, wish):
            known = self._transfers[endpoint] = _Transfer(wish)
        before = known.wish
        if wish.source_address is None:
            wish = replace(wish, source=before.source, source_address=before.source_address)
        known.wish = wish
        if wish.arrived and known.since is None:
            known.since = self.monotonic()

    # -- the source --------------------------------------------------------------------------

    def answer(self, node: str, request: Request) -> Iterator[Message]:
        """A node's request. Raises `Unauthorized`, and `Unavailable` when the table is."""
        with self._condition:
            permit = self._exchange.permits.get(request.migration_uid)
        vm = frozenset(request.addresses)
        if permit is None or permit.node != node or permit.vmi_uid != request.vmi_uid:
            raise Unauthorized(
                f"migration {request.migration_uid} brings node {node} no VM of ours"
            )
        if not vm <= permit.addresses:
            raise Unauthorized(f"migration {request.migration_uid}: not the VM's addresses")
        if request.cut_over:
            about = {"endpoint": permit.endpoint, "migration_uid": request.migration_uid}
            self.log.info("cut_over_noticed", node=node, **about)
            self._settle()
        try:
            found = (portable(flow, vm) for flow in self.table.flows(vm))
            flows = [flow for flow in found if flow is not None]
        except TortieError as error:
            raise Unavailable(f"connection table: {first_line(error)}") from error
        if len(flows) > MOST_FLOWS:
            self.log.warning("conntrack_cut_short", migration_uid=request.migration_uid)
        yield from batches(flows[:MOST_FLOWS])

    def _settle(self) -> None:
        """Let the routes go first; not when it is time to stop."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped, self.pace.settle)

    # -- the target --------------------------------------------------------------------------

    def run(self) -> None:
        """A thread's body: a thread for each wish whose source is known, until `stop`."""
        while True:
            with self._condition:
                if self._stopped:
                    return
                for endpoint, transfer in self._startable():
                    follow = partial(self._follow, endpoint, transfer)
                    transfer.thread = self.spawn("hand-over", follow)
                self._condition.wait()

    def stop(self) -> None:
        """Make `run` return; what is being copied ends by itself."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def _startable(self) -> list[tuple[EndpointId, _Transfer]]:
        working = sum(1 for one in self._transfers.values() if one.thread and one.thread.is_alive())
        waiting = [
            (endpoint, one)
            for endpoint, one in self._transfers.items()
            if one.thread is None and one.wish.source_address is not None
        ]
        return waiting[: max(0, MOST_TRANSFERS - working)]

    def _follow(self, endpoint: EndpointId, transfer: _Transfer) -> None:
        """One VM's connections, until the last copy is here or nobody wants it any more."""
        copy = Copy(self.table, frozenset(transfer.wish.addresses))
        trouble = Complaint(self.log, "hand_over_waits")
        pause = self.pace.first_pause
        try:
            while self._is_wanted(endpoint, transfer):
                wish = transfer.wish
                try:
                    with self.dial(wish) as link:
                        while self._is_wanted(endpoint, transfer):
                            wish = transfer.wish
                            took = self._copy(endpoint, transfer, wish, link, copy)
                            trouble.about("")
                            pause = self.pace.first_pause
                            rest = max(self.pace.interval, _RESTS * took)
                            self._pause(endpoint, transfer, wish, rest)
                except (TortieError, OSError) as error:
                    trouble.about(first_line(error), endpoint=endpoint, node=wish.source)
                    self._give_up_if_late(endpoint, transfer, error)
                    self._pause(endpoint, transfer, wish, pause)
                    pause = min(self.pace.longest_pause, 2 * pause)
        finally:
            with self._condition:
                self._condition.notify_all()  # there may be room for another

    def _copy(
        self, endpoint: EndpointId, transfer: _Transfer, wish: Wish, link: Link, copy: Copy
    ) -> float:
        """Ask once, and put the answer in; the one after the VM came is the last. The seconds."""
        began = self.monotonic()
        flows = self._ask(link, wish)
        outcome = copy.take(flows, arrived=transfer.wish.arrived)
        self._count(outcome)
        if outcome.failed or outcome.foreign:
            self.log.warning(
                "conntrack_incomplete",
                endpoint=endpoint,
                failed=outcome.failed,
                foreign=outcome.foreign,
                reason=outcome.error or f"node {link.node} sent others' connections",
            )
        took = self.monotonic() - began
        if not (outcome.made or outcome.changed or outcome.gone or wish.arrived):
            return took
        self.log.info(
            "conntrack_copied",
            endpoint=endpoint,
            migration_uid=wish.migration_uid,
            node=link.node,
            flows=len(flows),
            made=outcome.made,
            changed=outcome.changed,
            gone=outcome.gone,
            last=wish.arrived,
            took_ms=round(took * 1000, 3),
        )
        if wish.arrived:
            self._end(transfer, "whole")
        return took

    def _ask(self, link: Link, wish: Wish) -> list[Flow]:
        """The other node's answer, whole. Raises `Unavailable`, `Malformed`."""
        link.send(Request(wish.migration_uid, wish.vmi_uid, wish.addresses, wish.arrived))
        flows: list[Flow] = []
        deadline = Deadline(self.pace.answer, self.monotonic)
        while True:
            message = link.receive(deadline.step(self.pace.answer))
            match message:
                case Batch(more) if len(flows) + len(more) <= MOST_FLOWS:
                    flows += more
                case End(count) if count == len(flows):
                    return flows
                case Refused(reason):
                    raise Unavailable(f"node {link.node}: {reason}")
                case None:
                    raise Unavailable(f"node {link.node} closed the connection")
                case _:
                    raise Malformed(f"node {link.node} answers what was not asked")

    def _count(self, outcome: Outcome) -> None:
        for result in ("made", "changed", "gone", "failed", "foreign"):
            if amount := getattr(outcome, result):
                self._copied.add(result, amount=amount)

    def _give_up_if_late(self, endpoint: EndpointId, transfer: _Transfer, error: Exception) -> None:
        since = transfer.since
        if since is None or self.monotonic() - since < self.pace.late:
            return
        self.log.warning(
            "conntrack_not_copied",
            endpoint=endpoint,
            node=transfer.wish.source,
            reason=first_line(error),
        )
        self._end(transfer, "lost")

    def _end(self, transfer: _Transfer, result: str) -> None:
        self._ended.add(result)
        with self._condition:
            transfer.done = True

    def _is_wanted(self, endpoint: EndpointId, transfer: _Transfer) -> bool:
        with self._condition:
            current = self._transfers.get(endpoint) is transfer
            return current and not transfer.done and not self._stopped

    def _pause(
        self, endpoint: EndpointId, transfer: _Transfer, known: Wish, seconds: float
    ) -> None:
        """Wait, but not when more is known than before, and not for what is over."""
        end = self.monotonic() + seconds
        with self._condition:
            while (left := end - self.monotonic()) > 0:
                over = transfer.done or self._stopped
                if over or self._transfers.get(endpoint) is not transfer or transfer.wish != known:
                    return
                self._condition.wait(left)


def _same_vm(one: Wish, other: Wish) -> bool:
    return (one.migration_uid, one.addresses) == (other.migration_uid, other.addresses)
