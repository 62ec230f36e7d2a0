"""podman 4 with its CNI backend: containers of a real runtime, on our network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.calling_runtime import NETWORK, CallingNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

PORTMAP = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
TUNING = {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}}
ULIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")


class Podman:
    """A podman of its own below a directory, in a node's network namespace."""

    def __init__(self, node: CallingNode, directory: Path) -> None:
        self.node = node
        self.directory = directory
        self.rootfs = directory / "rootfs"
        for name in ("bin", "proc", "sys", "dev", "etc", "tmp", "run"):
            (self.rootfs / name).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox, "busybox is missing; run `make setup`"
        shutil.copy(busybox, self.rootfs / "bin" / "busybox")
        for name in ("sh", "sleep", "ip", "httpd", "wget"):
            (self.rootfs / "bin" / name).symlink_to("busybox")
        self.config = directory / "containers.conf"
        self.config.write_text(
            "[network]\n"
            'network_backend="cni"\n'
            f'cni_plugin_dirs=["{node.bin_dir}"]\n'
            f'network_config_dir="{node.conf_dir}"\n'
            "[engine]\n"
            'cgroup_manager="cgroupfs"\n'
            'events_logger="file"\n'
            'lock_type="file"\n'  # else in /dev/shm, with every podman of the machine
        )

    def __call__(self, *words: str) -> str:
        """Run podman successfully; what it prints."""
        done = self.attempt(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run podman, whatever its outcome."""
        command = [
            "podman",
            "--root",
            str(self.directory / "root"),
            "--runroot",
            str(self.directory / "run"),
            "--tmpdir",
            str(self.directory / "tmp"),
            "--storage-driver",
            "vfs",
            "--runtime",
            "runc",
            *words,
        ]
        return subprocess.run(
            self.node.inside_command(*command),
            env={**os.environ, "CONTAINERS_CONF": str(self.config)},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )

    def close(self) -> None:
        """End its containers, which would outlive their files, and unmount what it mounted."""
        remove = ("rm", "--all", "--force", "--time", "0")
        try:
            until("its containers go", lambda: self.attempt(*remove).returncode == 0)
        finally:
            for name in ("root/vfs", "root", "tmp"):
                command = ["umount", "-R", str(self.directory / name)]
                subprocess.run(command, check=False, capture_output=True)

    def run(
        self, name: str, *options: str, command: tuple[str, ...] = ("/bin/sleep", "1000")
    ) -> str:
        """A container in the background; its id."""
        words = ("run", "-d", "--name", name, "--network", NETWORK, *ULIMITS, *options)
        return self(*words, "--rootfs", str(self.rootfs), *command).strip()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallingNode]:
    """One node with an agent."""
    with closing(CallingNode(tmp_path_factory.mktemp("cp") / "node", fresh_name("cp"))) as made:
        made.start()
        made.configure(made.network(TUNING, PORTMAP))
        yield made


@pytest.fixture
def podman(node: CallingNode) -> Iterator[Podman]:
    """A podman in a directory with a short name, as it wants; afterwards nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="tp-", dir="/tmp"))
    try:
        made = Podman(node, directory)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_containers_come_reach_each_other_and_go(node: CallingNode, podman: Podman) -> None:
    podman.run("one")
    podman.run("two")
    addresses = {}
    for name in ("one", "two"):
        (found,) = json.loads(podman("inspect", name))
        addresses[name] = found["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
    assert set(addresses.values()) == set(node.owners())
    shown = podman("exec", "one", "ip", "address", "show", "eth0")
    assert f"inet {addresses['one']}/32" in shown
    assert "169.254.1.1" in podman("exec", "one", "ip", "route")
    until("one reaches the other", lambda: "bytes from" in ping(podman, "one", addresses["two"]))
    podman("rm", "--force", "--time", "0", "one")
    assert set(node.owners()) == {addresses["two"]}
    podman("restart", "--time", "0", "two")
    assert len(node.owners()) == 1
    podman("rm", "--force", "--time", "0", "two")
    left = node.left()
    assert (left["owners"], left["endpoints"], left["handles"]) == ({}, {}, [])
    until("policy goes", lambda: not node.left()["status"] and not node.left()["rules"])


def ping(podman: Podman, name: str, address: str) -> str:
    """What busybox's ping in a container prints."""
    return podman.attempt("exec", name, "/bin/busybox", "ping", "-c1", "-W2", address).stdout


def test_a_published_port_leads_into_the_container(node: CallingNode, podman: Podman) -> None:
    (podman.rootfs / "index.html").write_text("it is me")
    httpd = ("/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/")
    podman.run("web", "--publish", "18081:80", command=httpd)
    fetch = node.inside_command(
        "timeout", "20", "busybox", "wget", "-q", "-O", "-", "http://172.31.1.2:18081/"
    )

    def fetched() -> bool:
        done = subprocess.run(fetch, check=False, capture_output=True, timeout=200)
        return done.stdout == b"it is me"

    until("the port leads there", fetched)


def test_a_network_that_refuses_leaves_no_container_and_nothing_else(
    node: CallingNode, podman: Podman
) -> None:
    node.configure(node.network(ipam={"ipv4_pools": ["nowhere"]}))
    try:
        words = ("run", "-d", "--name", "none", "--network", NETWORK, *ULIMITS)
        done = podman.attempt(*words, "--rootfs", str(podman.rootfs), "/bin/sleep", "9")
        assert done.returncode != 0
        assert "the given pool (nowhere) does not exist" in done.stderr
    finally:
        node.configure(node.network(TUNING, PORTMAP))
    assert node.owners() == {}
    assert node.endpoints() == {}
