"""What the hypervisors remember of a guest over a restart of the control plane: one JSON file each.

Where a guest *is* is never taken from the file but from the kernel (the cable that forwards), or
from QEMU.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from lab.cutover import Report, report_from_json
from lab.plumbing import PodInterface

PACKET, QEMU = "packet", "qemu"
KINDS = (PACKET, QEMU)


class Outcome(StrEnum):
    """What became of a move: the guest has moved, waits for it, stays (the move is lost), or has
    died."""

    MOVED = "moved"
    WAITS = "waits"
    LOST = "lost"
    DEAD = "dead"


@dataclass(slots=True)
class Guest:
    """A running guest. `pod_uid` is the pod it runs in; `moving` maps a migration to the pod it
    leads to, `moved` to its report (None when nobody was left to write it). The namespaces are
    those of a packet guest."""

    vmi_uid: str
    name: str
    hypervisor: str
    netns: str
    pod_uid: str
    interface: PodInterface
    targets: set[str] = field(default_factory=set)
    moving: dict[str, str] = field(default_factory=dict)
    moved: dict[str, Report | None] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    kind: str = PACKET

    @property
    def addresses(self) -> tuple[str, ...]:
        """The guest's addresses, IPv4 first."""
        found = (address.split("/")[0] for address in self.interface.addresses)
        return tuple(sorted(found, key=lambda address: ":" in address))

    def address(self, version: int) -> str:
        """Its address of a family, empty for none."""
        return next((one for one in self.addresses if (":" in one) == (version == 6)), "")


class GuestStore:
    """The files, one per VMI UID. A file that was cut short by a kill is as good as none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def save(self, guest: Guest) -> None:
        """Write a guest down, by rename. Thread-safe."""
        with self._lock:
            self._directory.mkdir(parents=True, exist_ok=True)
            fresh = self._file(guest.vmi_uid).with_suffix(".new")
            fresh.write_text(json.dumps(to_json(guest)))
            fresh.rename(self._file(guest.vmi_uid))

    def forget(self, guest: Guest) -> None:
        """A guest is no more; nor are the reports of its moves."""
        self._file(guest.vmi_uid).unlink(missing_ok=True)
        for migration in (*guest.moving, *guest.moved, *guest.failed):
            self.report_file(migration).unlink(missing_ok=True)

    def load(self) -> Iterable[Guest]:
        """Everything written down."""
        for path in sorted(self._directory.glob("*.json")):
            yield from_json(json.loads(path.read_text()))

    def report_file(self, migration_uid: str) -> Path:
        """Where the process that moves a guest leaves its report."""
        self._directory.mkdir(parents=True, exist_ok=True)
        return self._directory / f"{migration_uid}.report"

    def report(self, migration_uid: str) -> Report | None:
        """The report of a move; None when its process never wrote it."""
        try:
            return report_from_json(self.report_file(migration_uid).read_text())
        except FileNotFoundError:
            return None

    def _file(self, vmi_uid: str) -> Path:
        return self._directory / f"{vmi_uid}.json"


def to_json(guest: Guest) -> dict[str, Any]:
    """A guest as its file has it."""
    eth0 = guest.interface
    return {
        "vmi_uid": guest.vmi_uid,
        "name": guest.name,
        "hypervisor": guest.hypervisor,
        "netns": guest.netns,
        "pod_uid": guest.pod_uid,
        "interface": {"mac": eth0.mac, "mtu": eth0.mtu, "addresses": list(eth0.addresses)},
        "targets": sorted(guest.targets),
        "moving": guest.moving,
        "moved": {uid: one.to_json() if one else None for uid, one in guest.moved.items()},
        "failed": guest.failed,
        "kind": guest.kind,
    }


def from_json(data: dict[str, Any]) -> Guest:
    """A guest as `to_json` wrote it."""
    eth0 = data["interface"]
    return Guest(
        vmi_uid=data["vmi_uid"],
        name=data["name"],
        hypervisor=data["hypervisor"],
        netns=data["netns"],
        pod_uid=data["pod_uid"],
        interface=PodInterface(eth0["mac"], eth0["mtu"], tuple(eth0["addresses"])),
        targets=set(data["targets"]),
        moving=data["moving"],
        moved={
            uid: report_from_json(text) if text else None for uid, text in data["moved"].items()
        },
        failed=data["failed"],
        kind=data["kind"],
    )


def settle(forwarding: frozenset[str], cable: str) -> Outcome:
    """What became of a packet guest's move that nobody watched.

    `forwarding` are the cables that forward, `cable` is the target's. A guest on no cable at all
    was unplugged by a process that then died.
    """
    if cable in forwarding:
        return Outcome.MOVED
    return Outcome.WAITS if forwarding else Outcome.LOST
