"""`tortiectl node install` where it cannot write: real mounts, in mount namespaces of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fakes.bundles import make_bundle
from tests.fakes.shim_node import SECONDS

pytestmark = pytest.mark.root

TORTIECTL = Path(sys.executable).with_name("tortiectl")
PLACES = {
    "bin": "opt/cni/bin",
    "conf": "etc/cni/net.d",
    "kube": "etc/tortie",
    "prefix": "opt/tortie",
}


class Mounted:
    """A host's file system below a directory, parts of which are mounted as a test says."""

    def __init__(self, root: Path) -> None:
        self.host = root / "host"
        for place in PLACES.values():
            (self.host / place).mkdir(parents=True)
        (root / "token").write_text("t0k3n")
        self.config = root / "node.yaml"
        config = {
            "k8s_api_root": "http://192.0.2.1",
            "k8s_token_file": str(root / "token"),
            "cni_kubeconfig": "/etc/tortie/cni-kubeconfig",
        }
        self.config.write_text(yaml.safe_dump(config))

    def node(
        self, verb: str, *mounts: str, after: str = "", options: str = ""
    ) -> tuple[int, list[str], str]:
        """Mount, run, look: exit status, the files that are there then, standard error."""
        command = f"{TORTIECTL} node {verb} --root {self.host} -c {self.config} {options}"
        script = [*mounts, f"{command} && status=0 || status=1", f"find {self.host} -type f", after]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", "\n".join(script) + "\nexit $status"],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        files = sorted(line.removeprefix(f"{self.host}/") for line in done.stdout.splitlines())
        return done.returncode, files, done.stderr

    def read_only(self, place: str) -> list[str]:
        path = self.host / PLACES[place]
        return [f"mount --bind {path} {path}", f"mount -o remount,bind,ro {path}"]

    def small(self, place: str, size: str, options: str = "") -> list[str]:
        return [f"mount -t tmpfs -o size={size}{options} small {self.host / PLACES[place]}"]


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path)


@pytest.mark.parametrize(
    ("place", "remedy"),
    [("bin", "--bin-dir"), ("conf", "--conf-dir"), ("kube", "cni_kubeconfig")],
)
def test_a_read_only_directory(mounted: Mounted, place: str, remedy: str) -> None:
    """One error that names directory and option; nothing is written anywhere."""
    status, files, message = mounted.node("install", *mounted.read_only(place))
    assert (status, files) == (1, [])
    directory = mounted.host / PLACES[place]
    assert message == (
        f"Error: cannot write to {directory}: Read-only file system: "
        f"name another directory with {remedy}\n"
    )


@pytest.mark.parametrize(
    ("place", "size", "file"),
    [
        ("bin", "256k", "opt/cni/bin/tortie"),
        ("bin", "1m", "opt/cni/bin/tortie-ipam"),
    ],
)
def test_a_full_disk(mounted: Mounted, place: str, size: str, file: str) -> None:
    """One error that names the file, which is not there, and no network without its plugin."""
    status, files, message = mounted.node("install", *mounted.small(place, size))
    assert status == 1
    assert message == f"Error: {mounted.host / file}: No space left on device\n"
    assert files == [PLACES["bin"] + "/tortie"] * (file != "opt/cni/bin/tortie")


def test_an_upgrade_on_a_full_disk_leaves_what_was(mounted: Mounted) -> None:
    bins, sums = mounted.host / PLACES["bin"], mounted.host / "sums"
    earlier = [
        f"{TORTIECTL} node install --root {mounted.host} -c {mounted.config}",
        f"sha256sum {bins}/tortie* >{sums}",
        f"dd if=/dev/zero of={bins}/filler 2>&1 | true",
    ]
    after = f"sha256sum --check --status {sums} && echo intact"
    status, seen, message = mounted.node(
        "install", *mounted.small("bin", "2m"), *earlier, after=after
    )
    assert status == 1
    assert message == f"Error: {bins}/tortie: No space left on device\n"
    assert "intact" in seen
    assert not [name for name in seen if name.endswith("tmp")]


def test_a_bundle_and_a_disk_that_cannot_have_it(mounted: Mounted, tmp_path: Path) -> None:
    """Too small, without room for more files, not to be executed from, read-only: no network."""
    bundle = make_bundle(tmp_path / "bundle")
    home = mounted.host / PLACES["prefix"]
    for mounts, reason in (
        (mounted.small("prefix", "12k"), "0 MiB free and 1.0-"),
        (mounted.small("prefix", "1m", ",nr_inodes=5"), "No space left on device"),
        (mounted.small("prefix", "1m", ",noexec"), "does not run here: [Errno 13] Permission den"),
        (mounted.read_only("prefix"), f"cannot write to {home}: Read-only file system: name"),
    ):
        status, files, message = mounted.node("install", *mounts, options=f"--bundle {bundle}")
        assert (status, message.count("\n")) == (1, 1)
        assert reason in message
        in_use = [name for name in files if not name.startswith(PLACES["prefix"])]
        assert in_use == []
        assert not [name for name in files if "tortie-tmp" in name]


def test_an_upgrade_of_a_bundle_on_a_full_disk(mounted: Mounted, tmp_path: Path) -> None:
    """The old version stays in use."""
    bundles = [make_bundle(tmp_path / name, name) for name in ("1.0", "2.0")]
    home = mounted.host / PLACES["prefix"]
    command = f"{TORTIECTL} node install --root {mounted.host} -c {mounted.config} --bundle"
    earlier = [f"{command} {bundles[0]}", f"dd if=/dev/zero of={home}/filler 2>&1 | true"]
    status, seen, message = mounted.node(
        "install",
        *mounted.small("prefix", "64k"),
        *earlier,
        after=f"readlink {home}/bin; {home}/bin/tortie-cni",
        options=f"--bundle {bundles[1]}",
    )
    assert status == 1
    assert "make room, or name another --prefix" in message
    assert any(line.startswith("versions/1.0-") for line in seen)
    assert '{"supportedVersions": []}' in seen


def test_uninstall_from_a_read_only_directory(mounted: Mounted) -> None:
    assert mounted.node("install")[0] == 0
    for place, name in (("bin", "tortie"), ("conf", "10-tortie.conflist")):
        status, files, message = mounted.node("uninstall", *mounted.read_only(place))
        assert status == 1
        assert message == f"Error: {mounted.host / PLACES[place] / name}: Read-only file system\n"
        assert f"{PLACES[place]}/{name}" in files
        assert mounted.node("install")[0] == 0
    assert mounted.node("uninstall") == (0, [], "")
