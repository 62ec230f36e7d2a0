"""The loop of `tortie-controllers gc`: pass after pass until it is told to stop.

It keeps nothing but the suspects, in memory: losing them costs a grace. It may run twice: every
change is compare-and-swap. A datastore that does not answer is asked again, for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controllers import report
from controllers.health import Course
from controllers.metrics import API, DATASTORE, PassMetrics
from controllers.output import Plain
from controllers.page.problems import LastPass
from ipam.gc import Means, Memory, Outcome, Swept, sweep
from ipam.gc_verdicts import Unknown
from ipam.vm_handles import VMHandle
from libtortie.complaint import Complaint
from libtortie.cycles import unsearched
from libtortie.errors import TortieError, first_line
from libtortie.history import Direct, pruned

TROUBLE_SECONDS = 30.0
"""Pause after a pass that could not be made, at most."""
SPACING_SECONDS = 1.0
"""Least pause between passes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked on the command line. Times are in seconds."""

    grace: float
    period: float
    once: bool = False
    dry_run: bool = False
    trust_empty: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """What is left of a pass when all that it saw is given up: a cluster's records are many.

    `waits` is how long (seconds) each thing waits; `silent` why the API did not say who lives;
    `unjudged` why it did not of a VM: its kind is not served, perhaps.
    """

    waits: tuple[float, ...]
    silent: str = ""
    unjudged: str = ""


@dataclass(slots=True)
class Collector:
    """Passes over one cluster. `say` gets lines of the result, each in pieces, `complain` what
    went wrong, `passes` each pass for the page, where there is one."""

    means: Means
    settings: Settings
    stop: threading.Event
    say: Callable[[Iterable[str]], None]
    complain: Callable[[str], None]
    metrics: PassMetrics = field(default_factory=PassMetrics)
    course: Course = field(default_factory=Course)
    passes: LastPass | None = None
    history: Direct | None = None
    _memory: Memory = field(default_factory=dict)
    _history: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._history = Complaint(Plain(self.complain), "history")

    def run(self) -> bool:
        """Until it is stopped; with `once` until what one pass found was confirmed, a grace later.

        False when (with `once`) a pass could not be made, or the API did not say who lives, VMs
        that have addresses among them.
        """
        confirmed = self.settings.dry_run
        while not self.stop.is_set():
            self.course.begin()
            try:
                with unsearched():
                    made = self._pass()
            except TortieError as error:
                self.metrics.failed(DATASTORE)
                self.complain(first_line(error))
                if self.settings.once:
                    return False
                self._rest(first_line(error), min(TROUBLE_SECONDS, self.settings.period))
                continue
            if self.settings.once and (confirmed or not made.waits):
                return self._asked(made)
            confirmed = True
            silent = made.silent if self.means.kube is not None else ""
            self._rest(silent, self._pause(made.waits))
        return True

    def _rest(self, wrong: str, seconds: float) -> None:
        """Until the next pass; `wrong` is what was with the last."""
        self.course.end(wrong, seconds)
        self.stop.wait(seconds)

    def _asked(self, made: Pass) -> bool:
        """Whether the API said who lives; complains if it was asked and did not."""
        silent = made.silent or made.unjudged
        if not silent or self.means.kube is None:
            return True
        self.complain(f"what the API does not speak for is kept: {silent}")
        return False

    def _pause(self, waits: tuple[float, ...]) -> float:
        """Seconds to the next pass: when what waits longest is due, at the latest a period."""
        if self.settings.once:
            return max(waits)
        return max(SPACING_SECONDS, min([self.settings.period, *waits]))

    def _pass(self) -> Pass:
        settings = self.settings
        began, before = self.means.monotonic(), self._memory
        swept = sweep(
            self.means,
            self._memory,
            grace=settings.grace,
            trust_empty=settings.trust_empty,
            dry_run=settings.dry_run,
        )
        self._memory = swept.memory
        if settings.json:
            self.say(report.line(swept, self.means.now(), dry_run=settings.dry_run))
        else:
            for line in report.text(swept, dry_run=settings.dry_run):
                self.say((line,))
        self._keep_history()
        took = self.means.monotonic() - began
        self.metrics.made(swept, before, took, dry_run=settings.dry_run)
        if self.passes is not None:
            self.passes.keep(swept, self.means.now(), dry_run=settings.dry_run)
        left = _left_of(swept)
        if left.silent and self.means.kube is not None:
            self.metrics.failed(API)
        else:
            self.metrics.succeeded(self.means.now())
        return left

    def _keep_history(self) -> None:
        """Store what this pass freed, and remove what is too old or too much; told once if not."""
        if self.history is None or self.settings.dry_run:
            return
        self.history.flush()
        trouble = self.history.trouble or pruned(self.means.store, self.means.now())
        self._history.about(trouble)


def _left_of(swept: Swept) -> Pass:
    waits = (one.seconds for one in swept.verdicts if one.outcome is Outcome.WAIT)
    asked = (swept.opinions.cluster.pods, swept.opinions.cluster.nodes)
    silent = (one.reason for one in asked if isinstance(one, Unknown))
    of_vms = (one for one in swept.verdicts if isinstance(one.subject, VMHandle) and one.unknown)
    unjudged = next((one.reason.removeprefix("unknown: ") for one in of_vms), "")
    return Pass(tuple(waits), next(silent, ""), unjudged)
