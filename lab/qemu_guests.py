"""QEMU guests of the lab: one QEMU process in each launcher pod that holds one or is to receive it.

As KubeVirt's: the pod's bridge has a tap device, QEMU is in the pod's network namespace and ends
with the pod. Where a guest is, only QEMU knows: see `qemu_settle`. The files of each QEMU are in a
directory named after guest and pod, under the lab's own.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lab import names, plumbing
from lab.guest_kind import Move, Site
from lab.guest_store import QEMU, Guest, Outcome
from lab.nodes import in_netns
from lab.objects import LabPod, LabVMI
from lab.plumbing import PodInterface
from lab.qemu import TAP, Machine
from lab.qemu_control import Control, last_words
from lab.qemu_guest import Network
from lab.qemu_move import Order
from lab.qemu_process import clear, end_within, launch, running
from lab.qemu_settle import settle

MEMORY_MIB, WITNESS_MIB, BEAT_S = 96, 1, 0.5
BOOT_DEADLINE_S = 180.0
MOVE_DEADLINE_S = 300.0
"""How long a mover whose control plane died is waited for."""


class QemuGuests:
    """Guests that are a machine of their own."""

    late_cancel = True

    def __init__(self, site: Site) -> None:
        self._site = site

    def boot(self, vmi: LabVMI, pod: LabPod, interface: PodInterface) -> Guest:
        """See `Kind`."""
        meta = vmi.metadata
        guest = Guest(meta.uid, meta.name, "", "", pod.metadata.uid, interface, kind=QEMU)
        self.remove(guest)
        self._launch(guest, pod, incoming=False)
        directory = self.directory(guest, pod.metadata.uid)
        one = Control(directory, lambda: running(directory) is not None)
        try:
            one.wait_ticks(deadline=BOOT_DEADLINE_S)
        finally:
            one.close()
        return guest

    def prepare(self, guest: Guest, pod: LabPod) -> None:
        """See `Kind`."""
        self._launch(guest, pod, incoming=True)

    def _launch(self, guest: Guest, pod: LabPod, *, incoming: bool) -> None:
        meta, eth0 = pod.metadata, guest.interface
        netns = names.pod_netns(meta.name, meta.uid)
        plumbing.add_tap(netns, TAP, eth0.mtu)
        network = Network(eth0.mac, eth0.mtu, eth0.addresses)
        machine = Machine(MEMORY_MIB, WITNESS_MIB, BEAT_S, network)
        where = self.directory(guest, meta.uid)
        end_within(netns)
        within = in_netns(netns, ())
        launch(self._site.ledger, f"qemu {meta.name}", where, machine, within, incoming=incoming)

    def mover(self, guest: Guest, move: Move, report: Path) -> list[str]:
        """See `Kind`."""
        source, target = (self.directory(guest, uid) for uid in (guest.pod_uid, move.target_uid))
        order = Order(str(source), str(target), move.wishes.hold)
        command = [sys.executable, "-m", "lab.qemu_move", json.dumps(asdict(order))]
        return [*command, "--report", str(report)]

    def settle(self, guest: Guest, target_uid: str, moving: Callable[[], bool]) -> Outcome:
        """See `Kind`."""
        end = time.monotonic() + MOVE_DEADLINE_S
        while moving() and time.monotonic() < end:
            time.sleep(0.05)
        return settle(self.directory(guest, guest.pod_uid), self.directory(guest, target_uid))

    def alive(self, guest: Guest) -> bool:
        """See `Kind`; while it moves it may be in any of its pods."""
        uids = [guest.pod_uid, *guest.moving.values()]
        return any(running(self.directory(guest, uid)) for uid in uids)

    def tend(self, guest: Guest) -> bool:
        """See `Kind`. What is left of a QEMU in a pod that has gone is removed."""
        in_use = {guest.pod_uid, *guest.moving.values()}
        for uid in guest.targets - in_use:
            directory = self.directory(guest, uid)
            if running(directory) is None:
                shutil.rmtree(directory, ignore_errors=True)
        if self.alive(guest):
            return True
        words = last_words(self.directory(guest, guest.pod_uid))
        self._site.log(f"vmi {guest.name}: QEMU has ended: {words or 'without a word'}")
        return False

    def remove(self, guest: Guest) -> None:
        """See `Kind`."""
        home = self._home(guest)
        for directory in home.glob("*"):
            clear(directory)
        shutil.rmtree(home, ignore_errors=True)

    def directory(self, guest: Guest, pod_uid: str) -> Path:
        """Where the files of the QEMU in a pod are; short, because sockets are among them."""
        return self._home(guest) / pod_uid[:8]

    def _home(self, guest: Guest) -> Path:
        return self._site.guests / guest.vmi_uid[:8]
