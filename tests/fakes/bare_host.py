"""A node's file system with a busybox and nothing else: no Python, no libraries, no shell."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.fakes.shim_node import SECONDS

CONF = '{"cniVersion":"1.0.0","name":"n","type":"tortie","datastore_type":"sqlite"}'


class BareHost:
    """Programs run in its root, in mount and pid namespaces of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "proc", "dev", "tmp", "run"):
            (root / name).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox, "busybox is missing; run `make setup`"
        shutil.copy(busybox, root / "bin/busybox")

    def begin(self, *words: str, before: str = "", **options: Any) -> subprocess.Popen[str]:
        """Start a program in the host's root; `before` are shell commands outside of it."""
        script = (
            f"{before}\nmount -t proc proc {self.root}/proc\n"
            f"exec chroot {self.root} /bin/busybox env -i PATH=/bin {shlex.join(words)}"
        )
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, text=True, **{**pipes, **options})

    def run(
        self, *words: str, text: str = "", before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        with self.begin(*words, before=before) as process:
            stdout, stderr = process.communicate(text, timeout=SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def cni(self, command: str, program: str = "tortie") -> tuple[int, dict[str, Any]]:
        """A runtime's call; its exit status and what it printed."""
        variables = [
            f"CNI_COMMAND={command}", "CNI_CONTAINERID=c", "CNI_NETNS=/proc/1/ns/net",
            "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
        ]  # fmt: skip
        done = self.run("/bin/busybox", "env", *variables, f"/opt/cni/bin/{program}", text=CONF)
        return done.returncode, json.loads(done.stdout or done.stderr)

    def install_from(self, image: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """What the init container of an image does, with this host's root at /host."""
        return self.run_in(image, "install", "--bundle", "/opt/tortie/bundle", *options)

    def run_in(self, image: Path, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """`tortiectl node` in an image's root."""
        script = (
            f"mount --bind {self.root} {image}/host\nmount -t proc proc {image}/proc\n"
            f"exec chroot {image} /opt/tortie/bundle/bin/tortiectl node {verb} --root /host "
            + shlex.join(options)
        )
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", script],
            env={},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
