"""virt-handler's and QEMU's part: guests, the pods they run in, and moving them.

A guest is three things: its own namespace with the echo servers, the switch namespace behind its
network card, and a cable into each launcher pod that holds it or is to receive it. They outlive the
control plane; one that starts finds them again, and asks the kernel where each guest is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from lab import names, plumbing
from lab.cutover import Cutover, Report, report_from_json
from lab.guest_store import Guest, GuestStore, settle
from lab.nodes import in_netns
from lab.objects import LabPod, LabVMI
from lab.processes import in_namespaces, namespace_inodes, spawn
from lab.rtnl import PortState
from lab.state import StateDir
from lab.tools import LabError, run

READY_DEADLINE_S = 60.0
MOVE_DEADLINE_S = 90.0
"""A move whose control plane died ends by itself within its blackout (at most a minute)."""

Log = Callable[[str], None]

__all__ = ["Guest", "Guests", "Move"]


@dataclass(frozen=True, slots=True)
class Move:
    """A guest's way to another pod; its memory takes `copy_s` to get there."""

    migration_uid: str
    target_uid: str
    what: Cutover
    copy_s: float


@dataclass(slots=True)
class _Going:
    """A move under way: it can be called off until it is `gone`."""

    called_off: threading.Event = field(default_factory=threading.Event)
    gone: bool = False
    why: str = ""


class Guests:
    """All guests of the lab. Its methods belong to one thread; moves run on their own."""

    def __init__(self, state: StateDir, log: Log, changed: Callable[[], None]) -> None:
        self._state = state
        self._log = log
        self._changed = changed
        self._store = GuestStore(state.guests)
        self._lock = threading.Lock()
        self._guests: dict[str, Guest] = {}
        self._going: dict[str, _Going] = {}

    def get(self, vmi_uid: str) -> Guest | None:
        """A guest by its VMI."""
        return self._guests.get(vmi_uid)

    def all(self) -> tuple[Guest, ...]:
        """Every guest."""
        return tuple(self._guests.values())

    def recover(self) -> None:
        """Find the guests that an earlier control plane left; one that has died is forgotten."""
        for guest in self._store.load():
            if not in_namespaces(namespace_inodes((guest.netns,))):
                self._log(f"vmi {guest.name}: its guest has died")
                self._remove(guest.hypervisor, guest.netns)
                self._store.forget(guest.vmi_uid)
                continue
            self._settle(guest)
            self._guests[guest.vmi_uid] = guest
            self._store.save(guest)
            self._log(f"vmi {guest.name}: guest found again in pod {guest.pod_uid}")

    def _settle(self, guest: Guest) -> None:
        """Wait for a move that goes on without us, and see where it led."""
        inodes = namespace_inodes((guest.hypervisor,))
        end = time.monotonic() + MOVE_DEADLINE_S
        while in_namespaces(inodes) and time.monotonic() < end:
            time.sleep(0.05)
        for migration, target in list(guest.moving.items()):
            forwarding = plumbing.forwarding_cables(guest.hypervisor)
            outcome = settle(forwarding, names.cable(target))
            if outcome == "moved":
                guest.pod_uid = target
                guest.moved[migration] = self._store.report(migration)
            elif outcome == "lost":
                home = names.cable(guest.pod_uid)
                plumbing.set_port(guest.hypervisor, home, PortState.FORWARDING)
                guest.failed[migration] = "the process that moved the guest was killed"
            del guest.moving[migration]

    def start(self, vmi: LabVMI, pod: LabPod) -> None:
        """Boot a guest in its launcher pod. Raises `LabError`."""
        uid, name = vmi.metadata.uid, vmi.metadata.name
        pod_ns = names.pod_netns(pod.metadata.name, pod.metadata.uid)
        interface = plumbing.bind_pod(pod_ns, pod.metadata.uid)
        hypervisor = names.hypervisor_netns(name, uid)
        netns = names.guest_netns(name, uid)
        cable = names.cable(pod.metadata.uid)
        self._remove(hypervisor, netns)
        plumbing.make_guest(hypervisor, netns, interface)
        plumbing.lay_cable(hypervisor, cable, pod_ns, interface.mtu)
        self._boot(name, uid, netns)
        plumbing.set_port(hypervisor, cable, PortState.FORWARDING)
        guest = Guest(uid, name, hypervisor, netns, pod.metadata.uid, interface)
        self._store.save(guest)
        self._guests[uid] = guest
        self._log(f"vmi {name}: guest started in {pod.metadata.name}")

    def _boot(self, name: str, uid: str, netns: str) -> None:
        """Start the guest's servers and wait until they listen."""
        log = self._state.logs / f"guest-{name}-{uid[:8]}.log"
        log.unlink(missing_ok=True)
        command = in_netns(netns, [sys.executable, "-m", "lab.guest"])
        child = spawn(self._state.ledger, f"guest {name}", command, log=log)
        end = time.monotonic() + READY_DEADLINE_S
        while b"ready" not in log.read_bytes():
            if child.poll() is not None or time.monotonic() > end:
                raise LabError(f"the guest of {name} does not come up; see {log}")
            time.sleep(0.01)

    def prepare_target(self, vmi: LabVMI, pod: LabPod) -> None:
        """Make a target pod ready to receive the guest. Raises `LabError`."""
        guest = self._guests[vmi.metadata.uid]
        pod_ns = names.pod_netns(pod.metadata.name, pod.metadata.uid)
        there = plumbing.bind_pod(pod_ns, pod.metadata.uid)
        if (there.mac, there.addresses) != (guest.interface.mac, guest.interface.addresses):
            raise LabError(
                f"target pod {pod.metadata.name} has {there.mac} {there.addresses},"
                f" the guest {guest.interface.mac} {guest.interface.addresses}"
            )
        if pod.metadata.uid not in guest.targets:
            cable = names.cable(pod.metadata.uid)
            plumbing.lay_cable(guest.hypervisor, cable, pod_ns, there.mtu)
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
                report = self._move(guest, move, going)
                guest.moved[move.migration_uid] = report
                self._log(f"guest moved: blackout {report.blackout_ms} ms")
            except (LabError, OSError, ValueError) as error:
                guest.failed[move.migration_uid] = str(error)
            del guest.moving[move.migration_uid]
            if self._guests.get(guest.vmi_uid) is guest:
                self._store.save(guest)
            self._changed()

        threading.Thread(target=work, name="cut-over", daemon=True).start()

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
        self._call_off(migration_uid, why)

    def _call_off(self, migration_uid: str, why: str) -> None:
        """Call a move off if it has not begun."""
        with self._lock:
            going = self._going.get(migration_uid)
            if going is not None and not going.gone:
                going.why = why
                going.called_off.set()

    def _move(self, guest: Guest, move: Move, going: _Going) -> Report:
        command = [sys.executable, "-m", "lab.cutover", json.dumps(asdict(move.what))]
        command += ["--report", str(self._store.report_file(move.migration_uid))]
        with subprocess.Popen(
            in_netns(guest.hypervisor, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            self._state.ledger.add(process.pid, "cut-over")
            if not process.stdout.readline():
                raise LabError("the cut-over process did not start")
            going.called_off.wait(move.copy_s)
            with self._lock:
                if going.called_off.is_set():
                    raise LabError(going.why)
                going.gone = True
            process.stdin.write(b"go\n")
            process.stdin.flush()
            if process.stdout.readline():
                self._arrived(guest, move)
            report = process.stdout.readline()
        if not report:
            raise LabError(f"the cut-over process ended with {process.returncode}")
        return report_from_json(report.decode())

    def _arrived(self, guest: Guest, move: Move) -> None:
        """The guest is on the other cable: what becomes of its old pod is no matter any more."""
        guest.pod_uid = move.target_uid
        if self._guests.get(guest.vmi_uid) is guest:
            self._store.save(guest)

    def stop(self, vmi_uid: str) -> None:
        """Power off: the guest's processes and namespaces go."""
        guest = self._guests.pop(vmi_uid, None)
        if guest is not None:
            for migration in list(guest.moving):
                self._call_off(migration, "the guest was stopped")
            self._remove(guest.hypervisor, guest.netns)
            self._store.forget(vmi_uid)

    @staticmethod
    def _remove(*namespaces: str) -> None:
        present = [name for name in namespaces if names.netns_path(name).exists()]
        for pid in in_namespaces(namespace_inodes(present)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in present:
            run(["ip", "netns", "del", name])
