"""containerd's `ctr run --cni`: no CNI_ARGS, and a DEL with an empty CNI_NETNS."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.calling_runtime import CallingNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

IMAGE = "docker.io/library/tortie-test:latest"
PLACES = ("/etc/cni/net.d", "/opt/cni/bin", "/var/lib/cni", "/run/containerd")
"""ctr, runc and libcni know no other places: each node has its own there."""

PATIENCE = "100s"
WAITS = ("shim.load", "shim.cleanup", "shim.shutdown", "task.state")
"""For what containerd waits a few seconds, unless it is told to wait longer."""

MOUNTS = (
    f"for place in {' '.join(PLACES)}; do "
    'mkdir -p "$place" && mount --bind "$1" "$place" && shift || exit; done; exec "$@"'
)


def image() -> bytes:
    """An OCI archive with busybox in it."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing; run `make setup`"
    layer = archive({"bin/busybox": Path(busybox).read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/busybox"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    blobs = [layer, json.dumps(config).encode()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described(blobs[1], "application/vnd.oci.image.config.v1+json"),
        "layers": [described(layer, "application/vnd.oci.image.layer.v1.tar")],
    }
    blobs.append(json.dumps(manifest).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                **described(blobs[2], "application/vnd.oci.image.manifest.v1+json"),
                "annotations": {"io.containerd.image.name": IMAGE},
            }
        ],
    }
    files = {f"blobs/sha256/{digest(blob).partition(':')[2]}": blob for blob in blobs}
    files["index.json"] = json.dumps(index).encode()
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    return archive(files)


def archive(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    """A tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def described(data: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


class Containerd:
    """A containerd of its own, and ctr, in a node's network namespace."""

    def __init__(self, node: CallingNode, directory: Path) -> None:
        self.node = node
        self.address = directory / "c.sock"
        self.own = directory / "cni", directory / "run"
        for place in self.own:
            place.mkdir()
        config = directory / "config.toml"
        config.write_text(
            "version = 2\n"
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'root = "{directory}/root"\n'
            f'state = "{directory}/state"\n'
            f'[grpc]\n  address = "{self.address}"\n'
            "[timeouts]\n"
            + "".join(f'  "io.containerd.timeout.{one}" = "{PATIENCE}"\n' for one in WAITS)
        )
        self.log = directory / "containerd.log"
        with self.log.open("wb") as log:
            daemon = ("setpriv", "--pdeathsig", "KILL", "containerd", "--config", str(config))
            self.process = subprocess.Popen(self._inside(*daemon), stdout=log, stderr=log)
        self.archive = directory / "image.tar"

    def prepare(self) -> None:
        """Wait until it answers, and give it the image."""
        until("containerd answers", lambda: self.attempt("version").returncode == 0)
        self.archive.write_bytes(image())
        done = self.attempt("images", "import", "--snapshotter", "native", str(self.archive))
        assert done.returncode == 0, done.stderr

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ctr, whatever its outcome."""
        return subprocess.run(
            self._inside(
                *("ctr", "--address", str(self.address), "--connect-timeout", PATIENCE, *words)
            ),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=200,
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a container to its end. Its name is its control group's, on the whole machine."""
        options = ("--cni", "--rm", "--snapshotter", "native")
        name = fresh_name("ctr")
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
        private = ("unshare", "--mount", "sh", "-c", MOUNTS, "sh", *map(str, directories))
        return self.node.inside_command(*private, *command)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CallingNode]:
    with closing(CallingNode(tmp_path / "node", fresh_name("cd"))) as made:
        made.start()
        made.configure(made.network())
        yield made


@pytest.fixture
def containerd(node: CallingNode) -> Iterator[Containerd]:
    """In a directory with a short name: sockets' paths are bounded."""
    directory = Path(tempfile.mkdtemp(prefix="td-", dir="/tmp"))
    try:
        with closing(Containerd(node, directory)) as made:
            made.prepare()
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_containers_get_an_address_and_give_it_back(
    node: CallingNode, containerd: Containerd
) -> None:
    for _ in range(2):
        done = containerd.run("ip", "address", "show", "eth0")
        assert done.returncode == 0, done.stderr
        assert "inet 10.65.0." in done.stdout
        assert node.owners() == {}, "its DEL has come, and named no namespace"
    node.configure(node.network(ipam={"ipv4_pools": ["nowhere"]}))

    def refused() -> bool:
        """Whether ctr says what our plugin said; on a busy machine its own steps may fail first."""
        done = containerd.run("true")
        assert done.returncode != 0
        return "the given pool (nowhere) does not exist" in done.stderr

    until("the refusal is told", refused)
    assert node.owners() == {}
    until("policy goes", lambda: not node.left()["status"])
