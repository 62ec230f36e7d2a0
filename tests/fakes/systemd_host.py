"""A host whose pid 1 is the real systemd, beside the machine's own.

It has all namespaces for itself, a cgroup, and a root of which nothing is the machine's to write:
an overlay in memory over the machine's file system, with /tmp, /run, /var, /home, /root and /dev of
its own. None of the machine's units run. Nothing starts unless all of that is so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.fakes.node_process import DEADLINE, until

SYSTEMD = "/lib/systemd/systemd"
SECONDS = 300.0
CGROUP = """
set -e
mkdir -p {work}/cgroup
mount -t cgroup2 none {work}/cgroup
"""
OUTER = (
    CGROUP
    + """
mkdir {work}/cgroup/{name}
echo $$ > {work}/cgroup/{name}/cgroup.procs
umount {work}/cgroup
exec unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child --propagation private \\
  bash -c "$INNER"
"""
)
INNER = """
set -e
mount -t tmpfs -o size=1g tmpfs {work}
mkdir {work}/upper {work}/work {work}/root
mount -t overlay -o lowerdir=/,upperdir={work}/upper,workdir={work}/work overlay {work}/root
cd {work}/root
for at in tmp run var home root mnt; do mount -t tmpfs tmpfs $at; done
mkdir -p var/log var/lib var/tmp run/netns run/lock mnt/old mnt/bundle
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for device in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9'; do
  set -- $device
  mknod -m 666 dev/$1 c $2 $3
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
mount --bind {bundle} mnt/bundle
rm -rf etc/systemd/system opt/tortie opt/cni etc/cni etc/tortie
mkdir -p etc/systemd/system etc/tortie etc/cni/net.d opt
echo 00000000000000000000000000000001 > etc/machine-id
: > etc/fstab
printf '[Unit]\\nRequires=systemd-journald.service\\nDefaultDependencies=no\\n' \\
  > etc/systemd/system/trial.target
hostname trial
ip link set lo up
ip link add up0 type veth peer name up1
ip address add 172.31.9.2/24 dev up0
ip link set up0 up
ip link set up1 up
pivot_root . mnt/old
umount -l /mnt/old
mount --make-rshared /
cd /
[ $$ = 1 ] && [ "$(stat -f -c %T /)" = overlayfs ] && [ "$(stat -f -c %T /tmp)" = tmpfs ]
exec env -i container=trial PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} --system \\
  --unit=trial.target --log-target=console --show-status=false
"""


class SystemdHost:
    """It boots when it is made; `work` is an empty directory, and is that afterwards."""

    def __init__(self, work: Path, bundle: Path, name: str) -> None:
        self._work, self._name = work, name
        places = {"work": work, "bundle": bundle, "name": name, "systemd": SYSTEMD}
        inner, outer = INNER.format(**places), OUTER.format(**places)
        self._log = (work.parent / f"{work.name}.log").open("w+b")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", outer],
            env={**os.environ, "INNER": inner},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self.init = until("systemd is pid 1", self._init)
            until("it has booted", self._booted)
        except BaseException:
            self.close()
            raise

    def _init(self) -> int:
        assert self._process.poll() is None, self.said()
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        return 0

    def _booted(self) -> bool:
        assert self._process.poll() is None, self.said()
        done = self.run("systemctl", "is-system-running", ok=False)
        return done.strip() in ("running", "degraded")

    def said(self) -> str:
        """What systemd, or what was to start it, has said."""
        return Path(self._log.name).read_text(errors="replace")

    def run(self, *words: str, ok: bool = True, text: str = "") -> str:
        """Run a program there, with its environment alone; its output."""
        enter = ["nsenter", f"--target={self.init}", "--all", "--wd=/", "env", "-i"]
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            [*enter, path, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert not ok or done.returncode == 0, (words, done.stdout, done.stderr, self.journal())
        return done.stdout

    def systemctl(self, *words: str) -> str:
        """Run systemctl; what a unit that fails has said is shown."""
        return self.run("systemctl", "--no-pager", *words)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.systemctl("show", "--value", "-p", name, unit).strip()

    def write(self, path: str, text: str) -> None:
        """Write a file there."""
        self.run("tee", path, text=text)

    def journal(self) -> str:
        """What all units have said."""
        enter = ["nsenter", f"--target={self.init}", "--all"]
        command = [*enter, "journalctl", "--no-pager", "-n", "2000"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        return done.stdout

    def close(self) -> None:
        """End everything of it."""
        for child in self._children():
            os.kill(child, signal.SIGKILL)  # pid 1: the kernel ends all others
        try:
            self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._remove_cgroup()

    def _children(self) -> list[int]:
        pid = self._process.pid
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return []
        return [int(one) for one in found]

    def _remove_cgroup(self) -> None:
        """It may be a moment until the kernel has let the last process of it go."""
        places = {"work": self._work, "name": self._name}
        script = CGROUP + "find {work}/cgroup/{name} -depth -type d -exec rmdir {{}} +\n"
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-c"]
        end = time.monotonic() + DEADLINE
        while True:
            script_ = [*command, script.format(**places)]
            done = subprocess.run(script_, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode == 0 or "No such file" in done.stderr:
                break
            assert time.monotonic() < end, done.stderr
            time.sleep(0.1)
        (self._work / "cgroup").rmdir()
