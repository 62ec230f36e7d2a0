"""virt-handler's and QEMU's part: guests, the pods they run in, and moving them.

A guest is a packet guest or a QEMU (`guest_kind`), as its instance's annotation or else the lab
wishes. Guests outlive the control plane; one that starts finds them again, and asks the kernel, or
QEMU, where each is.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from lab import names, plumbing
from lab.cutover import Report, report_from_json
from lab.guest_kind import Kind, Move, Site
from lab.guest_packet import PacketGuests
from lab.guest_store import KINDS, PACKET, QEMU, Guest, GuestStore, Outcome
from lab.objects import LabPod, LabVMI
from lab.plumbing import PodInterface
from lab.qemu_guests import QemuGuests
from lab.state import StateDir
from lab.tools import LabError

LAST_WORDS_S = 10.0
"""How long a mover is waited for whose guest has arrived: it has only its report to write."""
Log = Callable[[str], None]

__all__ = ["Guest", "Guests", "Move"]


@dataclass(slots=True)
class _Going:
    """A move under way: one that is `gone` may be past calling off."""

    called_off: threading.Event = field(default_factory=threading.Event)
    process: subprocess.Popen[bytes] | None = None
    gone: bool = False
    why: str = ""


class Guests:
    """All guests of the lab. Its methods belong to one thread; boots and moves run on their own."""

    def __init__(
        self,
        state: StateDir,
        log: Log,
        changed: Callable[[], None],
        *,
        kind: str = PACKET,
        kinds: Mapping[str, Kind] | None = None,
        bind: Callable[[str, str], PodInterface] = plumbing.bind_pod,
    ) -> None:
        """`kind` is what an instance's guest is that wishes for none; `kinds` are those there are,
        and `bind` is the bridge binding of a pod (both this machine's own, unless given)."""
        self._ledger = state.ledger
        self._log = log
        self._changed = changed
        self._store = GuestStore(state.guests)
        site = Site(state.ledger, state.logs, state.guests, log)
        self._kinds = kinds or {PACKET: PacketGuests(site), QEMU: QemuGuests(site)}
        self._bind = bind
        self._default = kind
        self._lock = threading.Lock()
        self._guests: dict[str, Guest] = {}
        self._going: dict[str, _Going] = {}
        self._booting: set[str] = set()
        self._unborn: dict[str, str] = {}

    def get(self, vmi_uid: str) -> Guest | None:
        """A guest by its VMI."""
        return self._guests.get(vmi_uid)

    def all(self) -> tuple[Guest, ...]:
        """Every guest."""
        return tuple(self._guests.values())

    def tend(self) -> None:
        """Forget the guests that have died; one that moves is left to its mover."""
        for guest in self.all():
            if guest.moving or self._kind(guest).tend(guest):
                continue
            self._log(f"vmi {guest.name}: its guest has died")
            try:
                self._drop(guest)
            except LabError as error:
                self._log(f"vmi {guest.name}: {error}")

    def recover(self) -> None:
        """Find the guests that an earlier control plane left; one that has died is forgotten."""
        for guest in self._store.load():
            if not self._kind(guest).alive(guest):
                self._log(f"vmi {guest.name}: its guest has died")
                self._drop(guest)
                continue
            for migration in list(guest.moving):
                try:
                    self._settle(guest, migration)
                except LabError as error:
                    guest.failed[migration] = str(error)
                    del guest.moving[migration]
            self._guests[guest.vmi_uid] = guest
            self._store.save(guest)
            self._log(f"vmi {guest.name}: guest found again in pod {guest.pod_uid}")

    def _settle(self, guest: Guest, migration: str) -> None:
        """See where a move led that goes on without us, or was killed. May raise `LabError`."""

        def moving() -> bool:
            return any(one.name == _mover(migration) for one in self._ledger.alive())

        target = guest.moving[migration]
        if guest.pod_uid == target:  # it has said that it arrived, and only announces itself
            _wait_while(moving)
            outcome = Outcome.MOVED
        else:
            outcome = self._kind(guest).settle(guest, target, moving)
        if outcome is Outcome.MOVED:
            guest.pod_uid = target
            guest.moved[migration] = self._store.report(migration)
        elif outcome is not Outcome.WAITS:
            guest.failed[migration] = "the process that moved the guest was killed"
        del guest.moving[migration]

    def start(self, vmi: LabVMI, pod: LabPod) -> None:
        """Boot a guest in its launcher pod, in the background.

        Raises `LabError` with why the last try failed; the next call tries again.
        """
        uid = vmi.metadata.uid
        with self._lock:
            if words := self._unborn.pop(uid, ""):
                raise LabError(words)
            if uid in self._booting or uid in self._guests:
                return  # whoever planned this had not yet heard of it
            self._booting.add(uid)
        threading.Thread(target=self._boot, args=(vmi, pod), name="boot", daemon=True).start()

    def _boot(self, vmi: LabVMI, pod: LabPod) -> None:
        meta = vmi.metadata
        try:
            interface = self._bind(_netns(pod), pod.metadata.uid)
            wish = meta.annotations.get(names.ANNOTATION_GUEST, self._default)
            if wish not in self._kinds:
                raise LabError(f"vmi {meta.name}: guest {wish!r} is none of {', '.join(KINDS)}")
            guest = self._kinds[wish].boot(vmi, pod, interface)
            self._store.save(guest)
            self._guests[meta.uid] = guest
            self._log(f"vmi {meta.name}: guest started in {pod.metadata.name}")
        except (LabError, OSError) as error:
            with self._lock:
                self._unborn[meta.uid] = str(error)
        with self._lock:
            self._booting.discard(meta.uid)
        self._changed()

    def prepare_target(self, vmi: LabVMI, pod: LabPod) -> None:
        """Make a target pod ready to receive the guest. Raises `LabError`."""
        guest = self._guests[vmi.metadata.uid]
        there = self._bind(_netns(pod), pod.metadata.uid)
        if (there.mac, there.addresses) != (guest.interface.mac, guest.interface.addresses):
            raise LabError(
                f"target pod {pod.metadata.name} has {there.mac} {there.addresses},"
                f" the guest {guest.interface.mac} {guest.interface.addresses}"
            )
        if pod.metadata.uid not in guest.targets:
            self._kind(guest).prepare(guest, pod)
        guest.targets.add(pod.metadata.uid)
        self._store.save(guest)

    def cut_over(self, vmi_uid: str, move: Move) -> None:
        """Move a guest, in the background; the outcome is in `moved` or `failed`."""
        guest = self._guests[vmi_uid]
        if move.migration_uid in guest.moving:
            return
        going = _Going()
        self._going[move.migration_uid] = going
        guest.moving[move.migration_uid] = move.target_uid
        self._store.save(guest)

        def work() -> None:
            try:
                self._go(guest, move, going)
            except (LabError, OSError, ValueError) as error:
                guest.failed[move.migration_uid] = str(error)
                guest.moving.pop(move.migration_uid, None)
            if self._guests.get(guest.vmi_uid) is guest:
                self._store.save(guest)
            self._changed()

        threading.Thread(target=work, name="cut-over", daemon=True).start()

    def _go(self, guest: Guest, move: Move, going: _Going) -> None:
        """Move it, or find out where it is when its mover was killed."""
        uid = move.migration_uid
        report = self._move(guest, move, going)
        if report is None:
            self._settle(guest, uid)
            if uid not in guest.moved:
                guest.failed.setdefault(uid, "the process that moved the guest was killed")
            return
        guest.moved[uid] = report
        self._log(f"guest moved: blackout {report.blackout_ms} ms")
        del guest.moving[uid]

    def abort(self, vmi_uid: str, migration_uid: str, why: str) -> None:
        """Leave a guest where it is. Once it is on its way the outcome is awaited instead."""
        guest = self._guests.get(vmi_uid)
        if guest is None or migration_uid in guest.moved:
            return
        if migration_uid not in guest.moving:
            guest.failed[migration_uid] = why
            self._store.save(guest)
            self._changed()
            return
        self._call_off(guest, migration_uid, why)

    def _call_off(self, guest: Guest, migration_uid: str, why: str) -> None:
        """Call a move off if it has not begun, or can be called off all the same."""
        with self._lock:
            going = self._going.get(migration_uid)
            if going is None or going.called_off.is_set():
                return
            if not going.gone:
                going.why = why
                going.called_off.set()
            elif self._kind(guest).late_cancel and going.process is not None:
                going.why = why
                going.called_off.set()
                _say(going.process, b"cancel\n")

    def _move(self, guest: Guest, move: Move, going: _Going) -> Report | None:
        """Its report; None when the mover was killed. Raises `LabError` when it did not move."""
        command = self._kind(guest).mover(guest, move, self._store.report_file(move.migration_uid))
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        ) as process:
            assert process.stdout is not None
            self._ledger.add(process.pid, _mover(move.migration_uid))
            if not _told(process, self._log):
                raise LabError("the cut-over process did not start")
            going.called_off.wait(move.copy_s)
            with self._lock:
                if going.called_off.is_set():
                    raise LabError(going.why)
                going.gone, going.process = True, process
                _say(process, b"go\n")
            try:
                if _told(process, self._log):
                    self._arrived(guest, move)
            except LabError as error:
                raise LabError(going.why or str(error)) from error
            report = process.stdout.readline()
            with self._lock:
                going.process = None
        return report_from_json(report.decode()) if report else None

    def _arrived(self, guest: Guest, move: Move) -> None:
        """The guest is in the other pod: what becomes of its old one is no matter any more."""
        guest.pod_uid = move.target_uid
        if self._guests.get(guest.vmi_uid) is guest:
            self._store.save(guest)

    def stop(self, vmi_uid: str) -> None:
        """Power off: the guest's processes, namespaces and files go."""
        guest = self._guests.get(vmi_uid)
        if guest is not None:
            for migration in list(guest.moving):
                self._call_off(guest, migration, "the guest was stopped")
            self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        self._guests.pop(guest.vmi_uid, None)
        self._kind(guest).remove(guest)
        self._store.forget(guest)

    def _kind(self, guest: Guest) -> Kind:
        return self._kinds[guest.kind]


def _netns(pod: LabPod) -> str:
    return names.pod_netns(pod.metadata.name, pod.metadata.uid)


def _mover(migration_uid: str) -> str:
    """The ledger's name of the process that does a migration."""
    return f"cut-over {migration_uid}"


def _wait_while(busy: Callable[[], bool]) -> None:
    """Until it is over, or long enough has passed."""
    end = time.monotonic() + LAST_WORDS_S
    while busy() and time.monotonic() < end:
        time.sleep(0.02)


def _say(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Tell a mover; one that has ended has said so, or is found dead."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.flush()


def _told(process: subprocess.Popen[bytes], log: Log) -> bool:
    """Whether a mover has said the next line. Raises `LabError` when that says it has failed."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        said = json.loads(line)
        if "failed" in said:
            raise LabError(said["failed"])
        if "held" not in said:
            return True
        log(f"guest held on its way: {said['held']}")
    return False
