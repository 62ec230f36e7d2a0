"""What a QEMU guest boots: a Debian kernel that `make setup` unpacked, busybox, and a script.

The guest is a witness. It fills a part of its memory with random bytes, and says on its serial
line, a line at a time, how often it has looked, the sum of those bytes and its own uptime; it
writes each count to its disk too. A guest that goes on elsewhere goes on counting; one that was
started anew, or whose memory or disk is not what it was, says so by itself. With a network it also
echoes what it is sent (`guest_echo.c`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.plumbing import GATEWAY, GATEWAY6
from lab.tools import LabError

BUILD = Path(__file__).resolve().parents[1] / "build"
KERNEL_DIRECTORY = BUILD / "guest"
"""Where `scripts/guest_kernel.sh` puts `vmlinuz` and the modules."""
ECHO = BUILD / "guest-echo"
"""`guest_echo.c`, compiled."""
MODULES = (
    "failover",
    "net_failover",
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
)
"""In the order they are loaded."""
SECTOR = 512
DISK_SECTORS = 4096
"""How many sectors of the disk the guest writes counts to, one after the other."""
_TICK = re.compile(r"tick (\d+) ([0-9a-f]{64}) disk (\d+) up (\d+\.\d+)")

_SCRIPT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t tmpfs -o size=90% tmp /run
for module in {modules}; do insmod /modules/$module.ko; done
{network}exec >/dev/ttyS0 2>&1 </dev/ttyS0
stty raw -echo
dd if=/dev/urandom of=/run/witness bs=64k count=$(({witness_mib} * 16)) 2>/dev/null
n=0
disk=0
while :; do
    n=$((n + 1))
    [ $((n % 5)) = 1 ] && sum=$(sha256sum </run/witness | cut -d' ' -f1)
    if [ -e /dev/vda ]; then
        printf 'count %-505s\\n' $n >/run/count
        dd if=/run/count of=/dev/vda bs={sector} seek=$((n % {sectors})) conv=notrunc,fsync \\
            2>/dev/null && disk=$n
    fi
    echo "tick $n $sum disk $disk up $(cut -d' ' -f1 /proc/uptime)"
    sleep {beat_s}
done
"""


@dataclass(frozen=True, slots=True)
class Network:
    """The guest's only interface; addresses as `a.b.c.d/len`."""

    mac: str
    mtu: int
    addresses: tuple[str, ...]

    def script(self) -> str:
        """What the guest does with it: addresses, gateway, and the echo server."""
        lines = ["ip link set lo up", f"ip link set eth0 mtu {self.mtu} up"]
        for address in self.addresses:
            family, gateway = ("-6", GATEWAY6) if ":" in address else ("-4", GATEWAY)
            host = address.split("/")[0]
            lines.append(f"ip {family} addr add {host}/{'128' if ':' in host else '32'} dev eth0")
            if family == "-4":
                lines.append(f"ip route add {gateway} dev eth0")
            lines.append(f"ip {family} route add default via {gateway} dev eth0")
        # No search for duplicates: the guest's by right, the address is to answer at once.
        first = ["echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad"]
        return "".join(f"{line}\n" for line in [*first, *lines, "/bin/echod >/run/echo &"])


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the guest's: its count, the sum of its witness, the last count on its disk (0 for
    none) and its uptime in seconds."""

    count: int
    witness: str
    disk: int
    uptime: float


def parse_ticks(text: str) -> tuple[Tick, ...]:
    """The whole lines of a serial log that are the guest's own."""
    lines = text.replace("\r", "\n").split("\n")[:-1]
    found = (_TICK.fullmatch(line) for line in lines)
    return tuple(Tick(int(m[1]), m[2], int(m[3]), float(m[4])) for m in found if m)


def disk_sector(count: int) -> tuple[int, bytes]:
    """Where on its disk a guest writes a count, in bytes, and what."""
    return (count % DISK_SECTORS) * SECTOR, f"count {count:<505}\n".encode()


def write_initramfs(
    path: Path,
    *,
    witness_mib: int,
    beat_s: float = 0.1,
    network: Network | None = None,
    kernel: Path = KERNEL_DIRECTORY,
) -> None:
    """The guest's root: busybox, modules and its script, which counts every `beat_s` seconds.

    Raises `LabError` for what is missing.
    """
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LabError("busybox is not installed: run `make setup`")
    script = _SCRIPT.format(
        modules=" ".join(MODULES),
        witness_mib=witness_mib,
        sector=SECTOR,
        sectors=DISK_SECTORS,
        beat_s=f"{beat_s:g}",
        network=network.script() if network else "",
    )
    files = {"bin/busybox": Path(busybox).read_bytes(), "init": script.encode()}
    if network is not None:
        files["bin/echod"] = _read(ECHO)
    for name in MODULES:
        files[f"modules/{name}.ko"] = _read(kernel / f"{name}.ko")
    path.write_bytes(b"".join(_archive(("bin", "modules", "dev", "proc", "run"), files)))


def kernel_image(kernel: Path = KERNEL_DIRECTORY) -> Path:
    """The kernel to boot. Raises `LabError` when it is not there."""
    path = kernel / "vmlinuz"
    if not path.exists():
        raise LabError(f"{path} is missing: run `make setup`")
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LabError(f"{path} is missing: run `make setup`") from None


def _archive(directories: tuple[str, ...], files: dict[str, bytes]) -> Iterator[bytes]:
    """A cpio archive in the kernel's format (Documentation/driver-api/early-userspace)."""
    for name in directories:
        yield _entry(name, 0o040755, b"")
    for name, content in files.items():
        yield _entry(name, 0o100755, content)
    yield _entry("TRAILER!!!", 0, b"")


def _entry(name: str, mode: int, content: bytes) -> bytes:
    """Thirteen numbers of eight hex digits, the name, the content, each padded to four bytes."""
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
