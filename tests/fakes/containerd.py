"""A containerd of its own in a node's network namespace, and ctr to ask it.

ctr, runc and libcni know no places but some fixed ones: each node has its own there, by bind
mounts in a mount namespace. The mounts of `/run/netns` are shared with ours: the agent has to find
the network namespaces that containerd makes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fakes.calling_runtime import CallingNode
from tests.fakes.node_process import until
from tests.fakes.oci_image import IMAGE, image

PLACES = ("/etc/cni/net.d", "/opt/cni/bin", "/var/lib/cni", "/run/containerd")
PATIENCE = "100s"
WAITS = ("shim.load", "shim.cleanup", "shim.shutdown", "task.state")
"""For what containerd waits a few seconds, unless it is told to wait longer."""

MOUNTS = (
    "while read -r _ _ _ _ place _; do case $place in /run/netns*) ;; "
    '*) mount --make-private "$place" || exit;; esac; done </proc/self/mountinfo; '
    f"for place in {' '.join(PLACES)}; do "
    'mkdir -p "$place" && mount --bind "$1" "$place" && shift || exit; done; exec "$@"'
)
NO_CRI = 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'


class Containerd:
    """`cri`: the configuration of the plugin that a kubelet talks to; without it there is none."""

    def __init__(self, node: CallingNode, directory: Path, *, cri: str = "") -> None:
        self.node = node
        self.address = directory / "c.sock"
        self.own = directory / "cni", directory / "run"
        self.namespace = "k8s.io" if cri else "default"
        for place in self.own:
            place.mkdir()
        config = directory / "config.toml"
        config.write_text(
            "version = 2\n"
            + ("" if cri else NO_CRI)
            + f'root = "{directory}/root"\n'
            + f'state = "{directory}/state"\n'
            + f'[grpc]\n  address = "{self.address}"\n'
            + "[timeouts]\n"
            + "".join(f'  "io.containerd.timeout.{one}" = "{PATIENCE}"\n' for one in WAITS)
            + cri
        )
        self.log = directory / "containerd.log"
        with self.log.open("wb") as log:
            daemon = ("setpriv", "--pdeathsig", "KILL", "containerd", "--config", str(config))
            self.process = subprocess.Popen(self._inside(*daemon), stdout=log, stderr=log)
        self.archive = directory / "image.tar"

    def prepare(self, *command: str) -> None:
        """Wait until it answers, and give it an image that runs busybox with these words."""
        until("containerd answers", lambda: self.attempt("version").returncode == 0)
        self.archive.write_bytes(image(*command))
        done = self.attempt("images", "import", "--snapshotter", "native", str(self.archive))
        assert done.returncode == 0, done.stderr

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ctr, whatever its outcome."""
        about = ("--address", str(self.address), "--namespace", self.namespace)
        return subprocess.run(
            self._inside("ctr", *about, "--connect-timeout", PATIENCE, *words),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=200,
        )

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a container to its end. Its name is its control group's, on the whole machine."""
        options = ("--cni", "--rm", "--snapshotter", "native")
        return self.attempt("run", *options, IMAGE, name, "/bin/busybox", *command)

    def close(self) -> None:
        """End it, and what it started: a container whose network was refused stays behind."""
        try:
            for name in self.attempt("tasks", "list", "--quiet").stdout.split():
                self.attempt("tasks", "delete", "--force", name)
        finally:
            self.process.kill()
            self.process.wait()

    def _inside(self, *command: str) -> list[str]:
        directories = (self.node.conf_dir, self.node.bin_dir, *self.own)
        unshare = ("unshare", "--mount", "--propagation", "unchanged")
        private = (*unshare, "sh", "-c", MOUNTS, "sh", *map(str, directories))
        return self.node.inside_command(*private, *command)
