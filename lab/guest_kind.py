"""What the hypervisors ask of a guest, of whichever kind: to be booted, moved, found again, ended.

A move is done by a process of its own, so that a guest on its way outlives the control plane. It
says `ready` on stdout, begins by the line `go` on stdin, may be called off by `cancel`, and says
when the guest has arrived; its last line is the report, or why it failed. The end of stdin is no
wish: whoever has said `go` may die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.guest_store import Guest, Outcome
from lab.objects import LabPod, LabVMI
from lab.plumbing import PodInterface
from lab.processes import Ledger


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a move is to be done; `hold` is the QEMU status in which it stays until called off."""

    blackout_ms: float = 50.0
    garp: bool = False
    silent: bool = False
    hold: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A guest's way to another pod, which begins after `copy_s` seconds."""

    migration_uid: str
    target_uid: str
    wishes: Wishes
    copy_s: float


@dataclass(frozen=True, slots=True)
class Site:
    """Where the lab keeps what a guest needs."""

    ledger: Ledger
    logs: Path
    guests: Path
    log: Callable[[str], None]


class Kind(Protocol):
    """One kind of guest; every method may raise `LabError`."""

    late_cancel: bool
    """Whether a move can be called off after `go`."""

    def boot(self, vmi: LabVMI, pod: LabPod, interface: PodInterface) -> Guest:
        """Start a guest in its launcher pod, whatever an earlier try left there."""

    def prepare(self, guest: Guest, pod: LabPod) -> None:
        """Make a target pod ready to receive a guest; repeated after a kill."""

    def mover(self, guest: Guest, move: Move, report: Path) -> list[str]:
        """The command line of the process that moves it."""

    def settle(self, guest: Guest, target_uid: str, moving: Callable[[], bool]) -> Outcome:
        """See to it that a guest whose mover may have been killed is in one place, and where.

        `moving` is whether the mover still runs.
        """

    def alive(self, guest: Guest) -> bool:
        """Whether it runs at all."""

    def tend(self, guest: Guest) -> bool:
        """Cheaply, now and then: whether it still runs; what it has left behind is removed."""

    def remove(self, guest: Guest) -> None:
        """End it, and everything of it."""
