"""virt-handler's and QEMU's part: guests, the pods they run in, and moving them.

A guest is three things: its own namespace with the echo servers, the switch namespace behind its
network card, and a cable into each launcher pod that holds it or is to receive it.
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
from lab.nodes import in_netns
from lab.objects import LabPod, LabVMI
from lab.processes import in_namespaces, namespace_inodes, spawn
from lab.rtnl import PortState
from lab.state import StateDir
from lab.tools import LabError, run

READY_DEADLINE_S = 20.0
COPY_S = 0.3
"""Between "the migration runs" and the switch-over: a small guest's memory takes about as long."""

Log = Callable[[str], None]


@dataclass(slots=True)
class Guest:
    """A running guest. `pod_uid` is the pod whose cable forwards."""

    vmi_uid: str
    hypervisor: str
    netns: str
    pod_uid: str
    interface: plumbing.PodInterface
    targets: set[str] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)
    moved: dict[str, Report] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The guest's IPv4 address."""
        return next(a.split("/")[0] for a in self.interface.addresses if ":" not in a)


class Guests:
    """All guests of the lab. Not thread-safe but for `cut_over`, which works in a thread."""

    def __init__(self, state: StateDir, log: Log, changed: Callable[[], None]) -> None:
        self._state = state
        self._log = log
        self._changed = changed
        self._guests: dict[str, Guest] = {}

    def get(self, vmi_uid: str) -> Guest | None:
        """A guest by its VMI."""
        return self._guests.get(vmi_uid)

    def start(self, vmi: LabVMI, pod: LabPod) -> None:
        """Boot a guest in its launcher pod. Raises `LabError`."""
        uid = vmi.metadata.uid
        pod_ns = names.pod_netns(pod.metadata.name, pod.metadata.uid)
        interface = plumbing.bind_pod(pod_ns, pod.metadata.uid)
        hypervisor = names.hypervisor_netns(vmi.metadata.name, uid)
        netns = names.guest_netns(vmi.metadata.name, uid)
        cable = names.cable(pod.metadata.uid)
        self._remove(hypervisor, netns)
        plumbing.make_guest(hypervisor, netns, interface)
        plumbing.lay_cable(hypervisor, cable, pod_ns, interface.mtu)
        self._boot(vmi.metadata.name, uid, netns)
        plumbing.set_port(hypervisor, cable, PortState.FORWARDING)
        self._guests[uid] = Guest(uid, hypervisor, netns, pod.metadata.uid, interface)
        self._log(f"vmi {vmi.metadata.name}: guest started in {pod.metadata.name}")

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
        cable = names.cable(pod.metadata.uid)
        if not plumbing.has_cable(guest.hypervisor, cable):
            plumbing.lay_cable(guest.hypervisor, cable, pod_ns, there.mtu)
        guest.targets.add(pod.metadata.uid)

    def cut_over(self, vmi_uid: str, migration_uid: str, target_uid: str, what: Cutover) -> None:
        """Move a guest, in the background; the outcome is in `moved` or `failed`."""
        guest = self._guests[vmi_uid]
        if migration_uid in guest.moving:
            return
        guest.moving.add(migration_uid)

        def work() -> None:
            try:
                report = self._move(guest, what)
                guest.pod_uid = target_uid
                guest.moved[migration_uid] = report
                self._log(f"guest moved: blackout {report.blackout_ms} ms")
            except (LabError, OSError, ValueError) as error:
                guest.failed[migration_uid] = str(error)
            self._changed()

        threading.Thread(target=work, name="cut-over", daemon=True).start()

    def _move(self, guest: Guest, what: Cutover) -> Report:
        command = [sys.executable, "-m", "lab.cutover", json.dumps(asdict(what))]
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
            time.sleep(COPY_S)
            process.stdin.write(b"go\n")
            process.stdin.flush()
            lines = process.stdout.read().splitlines()
        if len(lines) != 2:
            raise LabError(f"the cut-over process ended with {process.returncode}")
        return report_from_json(lines[1].decode())

    def stop(self, vmi_uid: str) -> None:
        """Power off: the guest's processes and namespaces go."""
        guest = self._guests.pop(vmi_uid, None)
        if guest is not None:
            self._remove(guest.hypervisor, guest.netns)

    @staticmethod
    def _remove(*namespaces: str) -> None:
        present = [name for name in namespaces if names.netns_path(name).exists()]
        for pid in in_namespaces(namespace_inodes(present)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in present:
            run(["ip", "netns", "del", name])
