"""A libvirt daemon in a network namespace, and its guest: nothing of the machine's own libvirt.

A daemon has process, mount and host names to itself, as a launcher's pod has: its sockets, state
and logs lie in file systems that end with it, and QEMU, which libvirt detaches from itself, dies
with it. Two daemons know their guest's files by the same paths, which are not the same files.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.mortal import mortal
from lab.qemu import Machine
from lab.qemu_guest import KERNEL_DIRECTORY, Tick, kernel_image, parse_ticks, write_initramfs
from lab.tools import LabError, run
from tests.fakes.migration_proxies import KEY, PATIENCE, until
from tests.fakes.proxied_hosts import Host

DOMAIN = "guest"
WITHIN = Path("/run/guest")
"""Where a daemon and its QEMU find their guest's files."""
SOCKETS = Path("/run/kubevirt/migrationproxy")
"""Where they find the sockets of a migration."""

_DAEMON_SETTINGS = """
unix_sock_dir = "{directory}"
auth_unix_rw = "none"
auth_unix_ro = "none"
host_uuid = "{uuid}"
keepalive_interval = -1
"""
# Who cannot ask systemd or make control groups; and a machine that stands still for half a minute
# is not to look like a peer that is gone.
_DRIVER_SETTINGS = """
user = "root"
group = "root"
dynamic_ownership = 0
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
keepalive_interval = -1
"""
# The driver does not start without the account that it runs guests by, even if told another.
_SCRIPT = f"""set -e
hostname "$(basename "$1")"
mount -t sysfs sysfs /sys
for each in /run /var/lib /var/cache /var/log; do mount -t tmpfs tmpfs $each; done
mkdir -p {WITHIN} {SOCKETS} /var/cache/libvirt
mount --bind "$1/guest" {WITHIN}
mount --bind "$2" {SOCKETS}
mount --bind "$3" {WITHIN}/kernel
mount --bind "$4" /var/cache/libvirt
mount --bind "$1/etc" /etc/libvirt
for each in passwd group; do
    {{ cat /etc/$each; echo "libvirt-qemu:x:0:0::/:/bin/false"; }} >/run/$each
    mount --bind /run/$each /etc/$each
done
libvirtd --config /etc/libvirt/libvirtd.conf &
wait
"""

_GUEST = f"""
<domain type='qemu'>
  <name>{DOMAIN}</name>
  <memory unit='MiB'>{{memory_mib}}</memory>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>{WITHIN}/kernel/{{kernel}}</kernel>
    <initrd>{WITHIN}/initramfs</initrd>
    <cmdline>console=ttyS0 quiet panic=-1</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{WITHIN}/disk.img'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='{WITHIN}/serial'/></serial>
  </devices>
</domain>
"""


class Libvirt:
    """A host's libvirt daemon, and what it says of its only guest."""

    def __init__(self, host: Host, machine: Machine, cache: Path, sockets: str) -> None:
        """Start it; see `ready`.

        Daemons may share a `cache` of what QEMU can do, which takes time to find out. `sockets` is
        where the host's directory has a migration's sockets.
        """
        self.directory = host.directory
        self.disk = host.directory / "guest" / "disk.img"
        for each in ("guest", "guest/kernel", "etc", sockets):
            (self.directory / each).mkdir(exist_ok=True)
        write_initramfs(self.directory / "guest" / "initramfs", witness_mib=machine.witness_mib)
        said = _GUEST.format(memory_mib=machine.memory_mib, kernel=kernel_image().name)
        (self.directory / "guest" / "guest.xml").write_text(said)
        settings = _DAEMON_SETTINGS.format(directory=self.directory, uuid=uuid.uuid4())
        (self.directory / "etc" / "libvirtd.conf").write_text(settings)
        (self.directory / "etc" / "qemu.conf").write_text(_DRIVER_SETTINGS)
        alone = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        places = [self.directory, self.directory / sockets, KERNEL_DIRECTORY, cache]
        script = ["sh", "-c", _SCRIPT, "sh", *map(str, places)]
        command = [*host.within, *alone, *script]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                mortal(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def ready(self) -> None:
        """Wait until it answers, also where KubeVirt's would."""
        until(self._answers)
        (self.directory / "virtqemud-sock").hardlink_to(self.directory / "libvirt-sock")

    def virsh(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What virsh says. Raises `LabError` with its complaint."""
        return run(self._virsh(*words), env={**_ENVIRONMENT, **(env or {})}).strip()

    def begin(self, *words: str) -> Job:
        """Run virsh beside the test; it dies with it."""
        return Job(
            subprocess.Popen(
                mortal(self._virsh(*words)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=_ENVIRONMENT,
            )
        )

    def boot(self) -> None:
        """Start the guest anew."""
        self.virsh("create", str(self.directory / "guest" / "guest.xml"))

    def state(self) -> str:
        """The guest's: `running`, `paused`; empty if it is not there."""
        names = self.virsh("list", "--name").split()
        return self.virsh("domstate", DOMAIN) if DOMAIN in names else ""

    def ticks(self) -> tuple[Tick, ...]:
        """What the guest has said on this host."""
        serial = self.directory / "guest" / "serial"
        return parse_ticks(serial.read_text(errors="replace")) if serial.exists() else ()

    def wait_ticks(self, after: int = 0) -> tuple[Tick, ...]:
        """The same once a count beyond `after` is there."""

        def beyond() -> bool:
            found = self.ticks()
            return bool(found) and found[-1].count > after

        until(beyond)
        return self.ticks()

    def log(self) -> str:
        """What the daemon has complained of."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End the daemon and its guest."""
        self._process.kill()
        self._process.wait()

    @property
    def _log(self) -> Path:
        return self.directory / "libvirt.log"

    def _virsh(self, *words: str) -> list[str]:
        socket = self.directory / "libvirt-sock"
        return ["virsh", "--quiet", "-c", f"qemu+unix:///system?socket={socket}", *words]

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log()
        with suppress(LabError):
            return bool(self.virsh("version"))
        return False


_ENVIRONMENT = {**os.environ, "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class Job:
    """A virsh that runs beside the test."""

    process: subprocess.Popen[str]

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def end(self) -> tuple[int, str]:
        """Its exit code and what it has said, once it has ended."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def migration(*, block: bool, channels: int) -> Sequence[str]:
    """virsh's words for a migration as KubeVirt's launcher asks for it: peer to peer, and each
    stream at the socket of its logical port."""
    words = ["migrate", DOMAIN, "--live", "--p2p", "--persistent"]
    words += ["--desturi", f"qemu+unix:///system?socket={SOCKETS}/{KEY}-source.sock"]
    words += ["--migrateuri", f"unix://{SOCKETS}/{KEY}-49152-source.sock"]
    if block:
        words += ["--copy-storage-all", "--disks-uri", f"unix://{SOCKETS}/{KEY}-49153-source.sock"]
    else:
        words += ["--unsafe"]  # libvirt does not know that both hosts have the disk
    if channels:
        words += ["--parallel", "--parallel-connections", str(channels)]
    return words
