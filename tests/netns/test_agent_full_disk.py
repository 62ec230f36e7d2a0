"""The disk of the agent's state, log and history is full: it serves on as if nothing were, a VM
that comes is raised, and what could not be kept is kept as soon as there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import Guest
from tests.fakes.node_process import until

pytestmark = pytest.mark.root
POD = "virt-launcher-db-1"


class Cramped(CalledNode):
    """State and log are on a file system of their own, of half a megabyte."""

    def __init__(self, root: Path) -> None:
        self.disk = root / "disk"
        self.disk.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(self.disk)]
        subprocess.run(mount, check=True, timeout=120)
        super().__init__(
            root,
            fresh_name("fd"),
            state_dir=str(self.disk / "state"),
            nodename_file=str(self.disk / "state" / "nodename"),
            log_file=str(self.disk / "log" / "node.log"),
            drain_seconds=0,
        )

    def fill(self) -> None:
        """Not a byte is left, and none comes back while a log grows: there is no room for it."""
        with suppress(OSError), (self.disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def free(self) -> None:
        (self.disk / "filler").unlink()

    def remembered(self) -> str:
        path = self.disk / "state" / "migration-state.json"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cramped]:
    root = tmp_path / "node"
    made = Cramped(root)
    try:
        (root / "log").symlink_to(made.disk / "log")  # where a node's log is looked for
        made.expect_vm(POD)
        made.world.put_pod("web")
        made.start()
        yield made
    finally:
        made.close()
        subprocess.run(["umount", "--lazy", str(made.disk)], check=False, timeout=120)


def test_it_serves_on_and_remembers_when_there_is_room(node: Cramped) -> None:
    node.fill()
    web = node.done("ADD", "web", "c1", policy_setup_on_timeout="fail")
    assert node.status("web"), "its policy is in force"
    answer = node.done("ADD", POD, "c2", policy_setup_on_timeout="fail")
    guest = Guest(node, "c2", node.address, answer.body["interfaces"][1]["mac"])
    try:
        guest.arrive()  # and speaks on until it is heard: no log says when the agent listens
        until("the raised route", lambda: node.metrics(POD) == [512])
        assert '"live"' not in node.remembered(), "the disk is full"
        node.done("DEL", "web", "c1")
        assert web.address not in node.owners()
        assert node.agent is not None
        assert node.agent.poll() is None
        node.free()
        until("it is remembered", lambda: '"live"' in node.remembered())
        node.done("ADD", "web", "c3")
        until("the log goes on", lambda: node.lines("cni_add"))
        assert node.stop() == 0
        node.start()
        assert node.metrics(POD) == [512], "the next agent knows"
    finally:
        guest.leave()
