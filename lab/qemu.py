"""A QEMU guest as a process of this machine: start it, and move it over unix sockets.

TCG only: `/dev/kvm` may be there and still hang guests. A guest ends with `close`, or with the
thread that started it, however that ends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lab.mortal import mortal
from lab.qemu_control import DISK_NODE, Control, Progress, Status, Transfer
from lab.qemu_guest import Network, kernel_image, write_initramfs
from lab.tools import LabError

BINARY = "qemu-system-x86_64"
TAP = "tap0"
"""The guest's network card outside, where it has one."""
SOCKET_MAX = 107
"""How long a unix socket's path may be, in bytes (unix(7))."""

__all__ = ["Guest", "Machine", "Progress", "Status", "Transfer", "command_line"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What source and target have alike."""

    memory_mib: int = 96
    witness_mib: int = 24
    beat_s: float = 0.1
    network: Network | None = None


def command_line(
    directory: Path, machine: Machine, *, disk: Path | None = None, incoming: bool = False
) -> list[str]:
    """How QEMU is started in a directory, in which the guest's root is made.

    Devices are named one by one: source and target must be alike. Raises `LabError`.
    """
    qmp = directory / "qmp"
    if len(str(qmp).encode()) > SOCKET_MAX:
        raise LabError(f"{qmp} is too long a path for a socket: choose a shorter state directory")
    initramfs = directory / "initramfs"
    write_initramfs(
        initramfs,
        witness_mib=machine.witness_mib,
        beat_s=machine.beat_s,
        network=machine.network,
    )
    command = [BINARY, "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg"]
    command += ["-no-reboot"]  # a guest that panics ends, and says why on its serial line
    command += ["-machine", "q35", "-cpu", "max", "-m", str(machine.memory_mib)]
    command += ["-qmp", f"unix:{qmp},server=on,wait=off"]
    command += ["-serial", f"file:{directory / 'serial'}"]
    command += ["-kernel", str(kernel_image()), "-initrd", str(initramfs)]
    command += ["-append", "console=ttyS0 quiet panic=-1"]
    if machine.network is not None:
        card = f"virtio-net-pci,netdev=net0,mac={machine.network.mac},romfile="
        command += ["-netdev", f"tap,id=net0,ifname={TAP},script=no,downscript=no"]
        command += ["-device", card]
    if incoming:
        command += ["-S", "-incoming", "defer"]
    if disk is not None:
        node = f"node-name={DISK_NODE},driver=raw,file.driver=file,file.filename={disk}"
        command += ["-blockdev", node, "-device", f"virtio-blk-pci,drive={DISK_NODE}"]
    return command


class Guest(Control):
    """A QEMU process of this thread's."""

    def __init__(
        self,
        directory: Path,
        machine: Machine,
        *,
        disk: Path | None = None,
        incoming: bool = False,
        within: Sequence[str] = (),
    ) -> None:
        """Start QEMU, stopped and waiting for what comes if `incoming`.

        `disk` is a raw image. `within` is put before the command, `nsenter` for one. Raises
        `LabError`.
        """
        self.machine = machine
        directory.mkdir(parents=True, exist_ok=True)
        command = [*within, *command_line(directory, machine, disk=disk, incoming=incoming)]
        with (directory / "qemu.log").open("wb") as log:
            self._process = subprocess.Popen(
                mortal(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            super().__init__(directory, lambda: self._process.poll() is None)
        except LabError:
            self._end()
            raise

    def close(self) -> None:
        """End QEMU, whatever it does."""
        super().close()
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
