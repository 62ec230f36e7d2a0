"""Migration states on disk, so that a kill -9 in the middle of a migration loses nothing.

Times are on the kernel's monotonic clock, which runs on while the agent does not and does not
follow the wall clock; the boot id says whether it is still the same clock. After a reboot all
veths are gone, and with them what this file says.

The file is replaced by an atomic rename after its data reached the disk: it is the old one or
the new one. An unreadable file is as good as none: the kernel's raised routes are evidence too. So
is a machine that cannot be read, of an agent that is newer than this one: others' stay.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni_plugin.durable import replace_file
from felix_shim.migration import Machine, Timing
from felix_shim.migration_record import dump_machine, load_machine
from felix_shim.model import EndpointId
from felix_shim.raises import Raises, load_raises
from libtortie.errors import Malformed
from libtortie.files import read_bytes

FORMAT = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Remembered:
    """One endpoint's machine; the container id fences it against a later pod of the name."""

    endpoint: EndpointId
    container_id: str
    machine: Machine
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What survives a restart of the agent."""

    machines: tuple[Remembered, ...] = ()
    raises: Raises = field(default_factory=Raises)

    def of(self, endpoint: EndpointId, container_id: str) -> Remembered | None:
        """What is remembered of exactly this sandbox."""
        for item in self.machines:
            if item.endpoint == endpoint and item.container_id == container_id:
                return item
        return None


def encode(memory: Memory, boot_id: str, now: float) -> bytes:
    """The file's content; `now` is monotonic."""
    body = {
        "format": FORMAT,
        "bootID": boot_id,
        "machines": [
            {
                "namespace": item.endpoint.namespace,
                "pod": item.endpoint.pod,
                "endpoint": item.endpoint.endpoint,
                "containerID": item.container_id,
                "returned": item.returned,
                "machine": dump_machine(item.machine, now=now, wall=now),
            }
            for item in memory.machines
        ],
        "raises": memory.raises.dump(),
    }
    return json.dumps(body, sort_keys=True).encode() + b"\n"


def decode(raw: bytes, boot_id: str, now: float, settings: Timing) -> Memory:
    """What a file says; empty when it is from before a reboot. Raises `Malformed`."""
    try:
        body = json.loads(raw)
        if body["format"] != FORMAT:
            raise Malformed(f"migration state: format {body['format']!r}, not {FORMAT}")
        if body["bootID"] != boot_id:
            return Memory()
        machines = [_remembered(item, now, settings) for item in body["machines"]]
        return Memory(tuple(filter(None, machines)), load_raises(body["raises"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"migration state: {type(error).__name__}: {error}") from error


def _remembered(item: Any, now: float, settings: Timing) -> Remembered | None:
    endpoint = EndpointId(str(item["namespace"]), str(item["pod"]), str(item["endpoint"]))
    try:
        machine = load_machine(item["machine"], now=now, wall=now, settings=settings)
    except Malformed:
        return None
    return Remembered(endpoint, str(item["containerID"]), machine, bool(item["returned"]))


@dataclass(frozen=True, slots=True)
class StateFile:
    """The file itself."""

    path: Path
    boot_id: str

    def load(self, now: float, settings: Timing) -> Memory:
        """What was saved last in this boot. Raises `Malformed` or OSError when unreadable."""
        try:
            raw = read_bytes(self.path)
        except FileNotFoundError:
            return Memory()
        return decode(raw, self.boot_id, now, settings)

    def save(self, memory: Memory, now: float) -> None:
        """Replace the file, durably. Raises OSError."""
        replace_file(self.path, encode(memory, self.boot_id, now), 0o600)


def boot_id() -> str:
    """Identity of the running kernel's boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
