"""The packet guest: a namespace with echo servers, a switch behind it, and a cable into each pod.

Its kernel is this machine's, so its blackout is whatever a test wants it to be.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from lab import names, plumbing
from lab.cutover import Cutover
from lab.guest_kind import Move, Site
from lab.guest_store import PACKET, Guest, Outcome, settle
from lab.nodes import in_netns
from lab.objects import LabPod, LabVMI
from lab.plumbing import PodInterface
from lab.processes import in_namespaces, namespace_inodes, spawn
from lab.rtnl import PortState
from lab.tools import LabError, run

READY_DEADLINE_S = 60.0
MOVE_DEADLINE_S = 90.0
"""A move whose control plane died ends by itself within its blackout (at most a minute)."""


class PacketGuests:
    """Guests that are a network namespace."""

    late_cancel = False

    def __init__(self, site: Site) -> None:
        self._site = site

    def boot(self, vmi: LabVMI, pod: LabPod, interface: PodInterface) -> Guest:
        """See `Kind`."""
        uid, name = vmi.metadata.uid, vmi.metadata.name
        hypervisor = names.hypervisor_netns(name, uid)
        netns = names.guest_netns(name, uid)
        cable = names.cable(pod.metadata.uid)
        _remove(hypervisor, netns)
        plumbing.make_guest(hypervisor, netns, interface)
        plumbing.lay_cable(hypervisor, cable, _netns(pod), interface.mtu)
        self._start(name, uid, netns)
        plumbing.set_port(hypervisor, cable, PortState.FORWARDING)
        return Guest(uid, name, hypervisor, netns, pod.metadata.uid, interface, kind=PACKET)

    def _start(self, name: str, uid: str, netns: str) -> None:
        """Start the guest's servers and wait until they listen."""
        log = self._site.logs / f"guest-{name}-{uid[:8]}.log"
        log.unlink(missing_ok=True)
        command = in_netns(netns, [sys.executable, "-m", "lab.guest"])
        child = spawn(self._site.ledger, f"guest {name}", command, log=log)
        end = time.monotonic() + READY_DEADLINE_S
        while b"ready" not in log.read_bytes():
            if child.poll() is not None or time.monotonic() > end:
                raise LabError(f"the guest of {name} does not come up; see {log}")
            time.sleep(0.01)

    def prepare(self, guest: Guest, pod: LabPod) -> None:
        """See `Kind`."""
        cable = names.cable(pod.metadata.uid)
        plumbing.lay_cable(guest.hypervisor, cable, _netns(pod), guest.interface.mtu)

    def mover(self, guest: Guest, move: Move, report: Path) -> list[str]:
        """See `Kind`."""
        what = Cutover(
            source=names.cable(guest.pod_uid),
            target=names.cable(move.target_uid),
            mac=guest.interface.mac,
            address=guest.address(4),
            address6=guest.address(6),
            blackout_ms=move.wishes.blackout_ms,
            garp=move.wishes.garp,
            silent=move.wishes.silent,
        )
        command = [sys.executable, "-m", "lab.cutover", json.dumps(asdict(what))]
        return in_netns(guest.hypervisor, [*command, "--report", str(report)])

    def settle(self, guest: Guest, target_uid: str, moving: Callable[[], bool]) -> Outcome:
        """See `Kind`; where it is, the kernel says: the cable that forwards."""
        inodes = namespace_inodes((guest.hypervisor,))
        end = time.monotonic() + MOVE_DEADLINE_S
        while (moving() or in_namespaces(inodes)) and time.monotonic() < end:
            time.sleep(0.05)
        forwarding = plumbing.forwarding_cables(guest.hypervisor)
        outcome = settle(forwarding, names.cable(target_uid))
        if outcome is Outcome.LOST:
            home = names.cable(guest.pod_uid)
            plumbing.set_port(guest.hypervisor, home, PortState.FORWARDING)
        return outcome

    def alive(self, guest: Guest) -> bool:
        """See `Kind`."""
        return bool(in_namespaces(namespace_inodes((guest.netns,))))

    def tend(self, guest: Guest) -> bool:
        """See `Kind`; to look through all processes is not cheap."""
        return bool(guest.netns)

    def remove(self, guest: Guest) -> None:
        """See `Kind`."""
        _remove(guest.hypervisor, guest.netns)


def _netns(pod: LabPod) -> str:
    return names.pod_netns(pod.metadata.name, pod.metadata.uid)


def _remove(*namespaces: str) -> None:
    present = [name for name in namespaces if names.netns_path(name).exists()]
    for pid in in_namespaces(namespace_inodes(present)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for name in present:
        run(["ip", "netns", "del", name])
