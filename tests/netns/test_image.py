"""The image, as podman builds it by the Dockerfile from what its build stage's commands made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.bare_host import BareHost
from tests.fakes.shim_node import SECONDS

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "conf/image/Dockerfile"
IMAGE = "localhost/tortie:test"
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")


class Podman:
    """A podman with everything of its own in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.config = directory / "containers.conf"
        self.config.write_text(
            '[engine]\ncgroup_manager="cgroupfs"\nevents_logger="file"\nlock_type="file"\n'
        )

    def __call__(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        places = {name: str(self.directory / name) for name in ("root", "runroot", "tmpdir")}
        options = [word for name, place in places.items() for word in (f"--{name}", place)]
        done = subprocess.run(
            ["podman", *options, "--storage-driver", "vfs", "--runtime", "runc", *words],
            env={**os.environ, "CONTAINERS_CONF": str(self.config)},
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * SECONDS,
        )
        assert not ok or done.returncode == 0, done.stderr
        return done

    def run(self, *words: str, options: tuple[str, ...] = ()) -> str:
        """What a container prints: without a network, its root read-only."""
        plain = ("--rm", "--network", "none", "--read-only", "--cap-drop", "all")
        return self("run", *plain, *LIMITS, *options, IMAGE, *words).stdout

    def close(self) -> None:
        """Remove containers, then what is mounted."""
        self("rm", "--all", "--force", "--time", "0", ok=False)
        for name in ("root/vfs", "root", "tmpdir"):
            command = ["umount", "-R", str(self.directory / name)]
            subprocess.run(command, check=False, capture_output=True)
        shutil.rmtree(self.directory)


@pytest.fixture(scope="module")
def podman(memory: Path, image_root: Path) -> Iterator[Podman]:
    """With the image built: the build stage is `image_root`, no base is fetched."""
    made = Podman(memory / "podman")
    context = memory / "context"
    context.mkdir()
    try:
        made(
            "build", "--isolation", "chroot", "--layers=false", "-f", str(DOCKERFILE), "-t", IMAGE,
            "--build-context", f"build={image_root.parent}", str(context),
        )  # fmt: skip
        yield made
    finally:
        made.close()
        context.rmdir()


def test_it_runs_as_nobody_and_has_no_shell(podman: Podman) -> None:
    assert podman.run() == "Client Version:    v0.1.0\n"
    (config,) = json.loads(podman("image", "inspect", IMAGE).stdout)
    assert config["User"] == "65532:65532"
    assert config["Config"]["Env"] == ["PATH=/opt/tortie/bundle/bin"]
    script = "import os; print(os.getuid(), os.getgid(), sorted(os.listdir('/')))"
    names = ["dev", "etc", "host", "opt", "proc", "run", "sys", "tmp", "var"]
    assert podman.run("python3", "-c", script) == f"65532 65532 {names}\n"
    done = podman("run", "--rm", "--network", "none", *LIMITS, IMAGE, "sh", ok=False)
    assert done.returncode == 127
    script = "import pwd, tempfile; print(pwd.getpwuid(65532)[0], tempfile.gettempdir())"
    assert podman.run("python3", "-c", script) == "tortie /tmp\n"


def test_it_installs_as_an_init_container(podman: Podman, memory: Path) -> None:
    """With no more rights than the documentation gives it, and only those directories mounted."""
    host = BareHost(memory / "podman-host")
    mounts: list[str] = []
    for place in ("opt/cni/bin", "etc/cni/net.d", "opt/tortie"):
        (host.root / place).mkdir(parents=True)
        mounts += ["-v", f"{host.root / place}:/host/{place}"]
    rights = [word for name in ("DAC_OVERRIDE", "FOWNER", "CHOWN") for word in ("--cap-add", name)]
    command = ("tortiectl", "node", "install", "--root", "/host", "--bundle", "/opt/tortie/bundle")
    try:
        for _ in range(2):
            podman.run(*command, options=("--user", "0", *rights, *mounts))
        status, answer = host.cni("VERSION")
        assert status == 0
        assert "1.1.0" in answer["supportedVersions"]
        uninstall = ("tortiectl", "node", "uninstall", "--root", "/host")
        podman.run(*uninstall, options=("--user", "0", *rights, *mounts))
        assert list((host.root / "opt/tortie").iterdir()) == []
        assert list((host.root / "etc/cni/net.d").iterdir()) == []
    finally:
        shutil.rmtree(host.root)


def test_the_dockerfile_says_what_was_tried(image_root: Path) -> None:
    """Its build stage is one script of the repository, which ends in the one tried here."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and line[0] != "#"]
    words = [line.split(maxsplit=1) for line in lines]
    assert [one[0] for one in words] == [
        "ARG", "FROM", "COPY", "RUN", "FROM", "COPY", "ENV", "USER", "CMD",
    ]  # fmt: skip
    (run,) = (rest for name, rest in words if name == "RUN")
    script, target = run.split()
    path = ROOT / script.removeprefix("/src/")
    assert os.access(path, os.X_OK)
    assert path.read_text().rstrip().endswith('./scripts/image_root.sh "$venv/bin/python" "$root"')
    assert words[4][1] == "scratch"
    assert words[5][1] == f"--from=build {target}/ /"
    assert Path(target).name == image_root.name
    packages = set(re.findall(r"[a-z0-9-]+", path.read_text().partition("recommends")[2][:120]))
    assert {"python3", "python3-venv", "gcc", "libc6-dev", "bird2", "nftables"} <= packages
