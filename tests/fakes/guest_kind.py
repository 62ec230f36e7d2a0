"""A kind of guest that is nothing but words; its mover is a shell script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.guest_kind import Move
from lab.guest_store import QEMU, Guest, Outcome
from lab.objects import LabPod, LabVMI
from lab.plumbing import PodInterface
from lab.tools import LabError


@dataclass(slots=True)
class WordGuests:
    """`script` is what a mover does, `outcome` where a guest is settled, `refusals` are boots that
    fail; `may_boot` is awaited by each boot."""

    script: str = ""
    outcome: Outcome = Outcome.LOST
    refusals: list[str] = field(default_factory=list)
    may_boot: threading.Event = field(default_factory=threading.Event)
    late_cancel: bool = True
    living: set[str] = field(default_factory=set)
    booted: int = 0

    def boot(self, vmi: LabVMI, pod: LabPod, interface: PodInterface) -> Guest:
        """See `Kind`."""
        self.may_boot.wait()
        if self.refusals:
            raise LabError(self.refusals.pop())
        self.booted += 1
        self.living.add(vmi.metadata.uid)
        meta = vmi.metadata
        return Guest(meta.uid, meta.name, "", "", pod.metadata.uid, interface, kind=QEMU)

    def prepare(self, guest: Guest, pod: LabPod) -> None:
        """See `Kind`."""

    def mover(self, guest: Guest, move: Move, report: Path) -> list[str]:
        """See `Kind`."""
        return ["sh", "-c", self.script]

    def settle(self, guest: Guest, target_uid: str, moving: Callable[[], bool]) -> Outcome:
        """See `Kind`."""
        return self.outcome

    def alive(self, guest: Guest) -> bool:
        """See `Kind`."""
        return guest.vmi_uid in self.living

    def tend(self, guest: Guest) -> bool:
        """See `Kind`."""
        return self.alive(guest)

    def remove(self, guest: Guest) -> None:
        """See `Kind`."""
        self.living.discard(guest.vmi_uid)
