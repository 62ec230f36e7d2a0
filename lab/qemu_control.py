"""Commands and questions to a QEMU that runs, over its QMP socket, whoever has started it.

Its files are in a directory of its own: `qmp`, `serial` (what the guest says) and `qemu.log`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from lab.qemu_guest import Tick, parse_ticks
from lab.qmp import DEADLINE_S, LOOK_S, Qmp, QmpGone
from lab.tools import LabError

T = TypeVar("T")

DISK_NODE = "disk0"
"""The guest's disk, as QEMU and its NBD export call it."""
MIRROR = "mirror0"


class Status(StrEnum):
    """A migration's, as `query-migrate` has it."""

    NONE = "none"
    SETUP = "setup"
    ACTIVE = "active"
    PRE_SWITCHOVER = "pre-switchover"
    DEVICE = "device"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a migration is; bytes, and why it failed if it did."""

    status: Status
    sent: int = 0
    remaining: int = 0
    multifd_bytes: int = 0
    trouble: str = ""

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Progress:
        """From `query-migrate`."""
        ram = answer.get("ram", {})
        return cls(
            Status(answer.get("status", "none")),
            ram.get("transferred", 0),
            ram.get("remaining", 0),
            ram.get("multifd-bytes", 0),
            answer.get("error-desc", ""),
        )


@dataclass(frozen=True, slots=True)
class Transfer:
    """How a guest is moved: multifd channels (0: one stream), and bytes a second (0: no limit)."""

    channels: int = 0
    most_bytes_per_second: int = 0

    @property
    def parameters(self) -> dict[str, Any]:
        """For `migrate-set-parameters`; a limited migration never comes to its end."""
        said: dict[str, Any] = {"max-bandwidth": self.most_bytes_per_second or 1 << 40}
        if self.most_bytes_per_second:
            said["downtime-limit"] = 1
        if self.channels:
            said["multifd-channels"] = self.channels
        return said

    @property
    def capabilities(self) -> list[dict[str, Any]]:
        """For `migrate-set-capabilities`."""
        return [
            {"capability": "events", "state": True},
            {"capability": "multifd", "state": bool(self.channels)},
            {"capability": "pause-before-switchover", "state": True},
        ]


class Control:
    """The one connection that QEMU serves at a time; `look_s` is how often it is asked anew."""

    def __init__(
        self, directory: Path, alive: Callable[[], bool], *, look_s: float = LOOK_S
    ) -> None:
        """Connect once QEMU listens. Raises `LabError` with its last words when it has ended."""
        self.directory, self.alive, self._look_s = directory, alive, look_s
        self._mirroring = self._exporting = False
        try:
            self.qmp = Qmp.connect(directory / "qmp", alive)
        except LabError as error:
            raise type(error)(f"{error}: {self._last_words()}") from error

    def ticks(self) -> tuple[Tick, ...]:
        """What the guest has said under this QEMU."""
        try:
            text = (self.directory / "serial").read_text(errors="replace")
        except FileNotFoundError:
            return ()
        return parse_ticks(text)

    def wait_ticks(self, after: int = 0, deadline: float = DEADLINE_S) -> tuple[Tick, ...]:
        """What it has said once a count beyond `after` is there. Raises `LabError`."""

        def said() -> tuple[Tick, ...]:
            found = self.ticks()
            return found if found and found[-1].count > after else ()

        return self._wait(f"the guest does not count beyond {after}", said, deadline)

    @property
    def running(self) -> bool:
        """Whether the guest's processors run here."""
        return self.state == "running"

    @property
    def state(self) -> str:
        """What `query-status` calls the guest's state: running, paused, postmigrate and so on."""
        return str(self.qmp.do("query-status")["status"])

    def pause(self) -> None:
        """Stop the guest's processors; it runs again once it has been moved.

        Under TCG QEMU 7.2 does not see all that a running guest writes while its memory moves, so
        that it may arrive damaged: about one in 30, and nearly each after a migration that failed.
        Whoever has to rely on what arrives moves a guest that is paused. Disks are not concerned.
        """
        self.qmp.do("stop")

    # -- keeping -----------------------------------------------------------------------------

    def save(self, path: Path, deadline: float = DEADLINE_S) -> None:
        """Stop the guest for good and write its state to a file. Raises `LabError`."""
        self.pause()
        self.qmp.do("migrate", uri=f"exec:cat >{shlex.quote(str(path))}")
        self._wait_completed("the state is not saved", deadline)

    def restore(self, path: Path, deadline: float = DEADLINE_S) -> None:
        """Go on from a state, as one that was started with `incoming`. Raises `LabError`."""
        self.qmp.do("migrate-incoming", uri=f"exec:cat {shlex.quote(str(path))}")
        self._wait_completed("the state is not restored", deadline)
        self.qmp.do("cont")

    # -- moving ------------------------------------------------------------------------------

    def listen(self, path: Path, transfer: Transfer, disks: Path | None = None) -> None:
        """As a target: take memory at a unix socket, and disks over NBD at another."""
        self._prepare(transfer)
        self.qmp.do("migrate-incoming", uri=f"unix:{path}")
        if disks is not None:
            address = {"type": "unix", "data": {"path": str(disks)}}
            self.qmp.do("nbd-server-start", addr=address)
            self.qmp.do(
                "block-export-add", type="nbd", id="disks", node_name=DISK_NODE, writable=True
            )
            self._exporting = True

    def mirror(self, path: str, deadline: float = DEADLINE_S) -> None:
        """As a source: copy the disk to a target, and keep the copy up to date.

        Raises `LabError`; no job is left then.
        """
        self.qmp.do(
            "drive-mirror",
            device=DISK_NODE,
            job_id=MIRROR,
            target=f"nbd+unix:///{DISK_NODE}?socket={path}",
            sync="full",
            mode="existing",
            format="raw",
        )
        self._wait("the copy of the disk is not complete", self._mirrored, deadline)
        self._mirroring = True

    def migrate(self, path: str, transfer: Transfer) -> None:
        """As a source: begin to send memory to a unix socket."""
        self._prepare(transfer)
        self.qmp.do("migrate", uri=f"unix:{path}")

    def progress(self) -> Progress:
        """How far the migration is."""
        return Progress.of(self.qmp.do("query-migrate"))

    def wait_migration(
        self, what: str, is_so: Callable[[Progress], bool], deadline: float = DEADLINE_S
    ) -> Progress:
        """The first progress that is as wanted. Raises `LabError`, sooner for a failed one."""

        def look() -> Progress | None:
            found = self.progress()
            if is_so(found):
                return found
            if found.status is Status.FAILED:
                raise LabError(f"the migration failed: {found.trouble or 'without a reason'}")
            return None

        return self._wait(what, look, deadline)

    def hand_over(self, target: Control, deadline: float = DEADLINE_S) -> Progress:
        """See a migration through to its end, after which the guest runs at the target.

        Raises `LabError`.
        """
        paused = Status.PRE_SWITCHOVER
        self.wait_migration("no switch-over", lambda seen: seen.status is paused, deadline)
        if self._mirroring:
            self._end_mirror(deadline)
        self.qmp.do("migrate-continue", state=paused)
        done = self._wait_completed("the migration does not end", deadline)
        target.go_on(deadline)
        return done

    def go_on(self, deadline: float = DEADLINE_S) -> None:
        """As a target that has all: run. Raises `LabError`."""
        self._wait_completed("not all has come", deadline)
        if self._exporting:
            self.qmp.do("nbd-server-stop")
            self._exporting = False
        self.qmp.do("cont")

    def cancel(self) -> None:
        """As a source: give the migration up, if it is not too late."""
        self.qmp.do("migrate_cancel")

    def close(self) -> None:
        """Let go of QEMU, which goes on."""
        self.qmp.close()

    # -- within ------------------------------------------------------------------------------

    def _prepare(self, transfer: Transfer) -> None:
        self.qmp.do("migrate-set-capabilities", capabilities=transfer.capabilities)
        self.qmp.do("migrate-set-parameters", **transfer.parameters)

    def _wait_completed(self, what: str, deadline: float) -> Progress:
        return self.wait_migration(what, lambda seen: seen.status is Status.COMPLETED, deadline)

    def _mirrored(self) -> bool:
        jobs = {job["device"]: job for job in self.qmp.do("query-block-jobs")}
        if MIRROR not in jobs:
            raise LabError("the copy of the disk has failed")
        return bool(jobs[MIRROR]["ready"])

    def _end_mirror(self, deadline: float) -> None:
        """The guest stands still: what the target has now is the disk."""
        self.qmp.do("block-job-cancel", device=MIRROR)
        self._wait("the mirror does not end", lambda: not self.qmp.do("query-block-jobs"), deadline)
        self._mirroring = False

    def _wait(self, what: str, look: Callable[[], T | None], deadline: float) -> T:
        """What `look` finds once it finds something."""
        end = time.monotonic() + deadline
        while not (found := look()):
            if not self.alive():
                raise QmpGone(f"{what}: QEMU has ended: {self._last_words()}")
            if time.monotonic() > end:
                raise LabError(f"{what} ({deadline:g} s); it is {self.progress()}")
            time.sleep(self._look_s)
        return found

    def _last_words(self) -> str:
        return last_words(self.directory)


def last_words(directory: Path) -> str:
    """The end of what a QEMU has said."""
    try:
        return (directory / "qemu.log").read_text(errors="replace").strip()[-500:]
    except FileNotFoundError:
        return "it left no log"
