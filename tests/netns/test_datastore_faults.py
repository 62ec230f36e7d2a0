"""The datastore's file under a running agent: locked, on a full disk, taken away, read-only.

ADD answers code 11 and says which file and what to do; nothing of it is left; what runs already
keeps its route, policy and status; and when the fault ends everything goes on by itself. The
plugin tries for half a minute before it gives up, so all faults are struck at the same time, each
on a node of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root
HOLD = (
    "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], 600, isolation_level=None);"
    "c.execute('BEGIN IMMEDIATE'); print(flush=True); sys.stdin.read()"
)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=120)


class Stricken(ABC):
    """A node whose database has a file system of its own, with one pod that runs."""

    says: tuple[str, ...] = ()

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.place = root / "db"
        self.place.mkdir(parents=True)
        mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(self.place))
        umount = ["umount", "--lazy", str(self.place)]
        stack.callback(subprocess.run, umount, check=False, timeout=120)
        self.database = self.place / "tortie.db"
        self.node = stack.enter_context(
            closing(CalledNode(root, fresh_name("df"), sqlite_path=str(self.database)))
        )
        stack.callback(self.heal)
        for pod in ("web", "new", "spare"):
            self.node.world.put_pod(pod)
        self.node.start()
        self.node.done("ADD", "web", "c1")
        self.before = self.seen()

    @abstractmethod
    def strike(self) -> None:
        """Begin the fault."""

    @abstractmethod
    def heal(self) -> None:
        """End the fault; twice is once."""

    def seen(self) -> dict[str, object]:
        """What there is beside the datastore, which cannot be asked now."""
        node = self.node
        return {
            "links": [one["ifname"] for one in node.ip_json("link")],
            "routes": [one["dst"] for one in node.ip_json("route")],
            "rules": re.sub(r"packets \d+ bytes \d+", "", node.rules()),
            "status": node.status("web"),
            "locks": list(node.root.glob("run/locks/*")),
        }


class Locked(Stricken):
    """Another process writes, and does not come to an end."""

    says = ("locked by another process", "fuser")
    holder: subprocess.Popen[bytes] | None = None

    def strike(self) -> None:
        command = [sys.executable, "-c", HOLD, str(self.database)]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline(), "it holds the lock"

    def heal(self) -> None:
        if self.holder is not None:
            self.holder.kill()
            self.holder.communicate()


class Full(Stricken):
    """The disk has not a byte left."""

    says = ("no space left", "free some")

    def strike(self) -> None:
        with suppress(OSError), (self.place / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def heal(self) -> None:
        (self.place / "filler").unlink(missing_ok=True)


class TakenAway(Stricken):
    """Somebody moved the file to another place."""

    says = ("removed or replaced", "put it back")

    def strike(self) -> None:
        self.database.rename(self.place / "elsewhere")

    def heal(self) -> None:
        with suppress(FileNotFoundError):
            (self.place / "elsewhere").rename(self.database)


@pytest.fixture
def struck(tmp_path: Path) -> Iterator[list[Stricken]]:
    with ExitStack() as stack:
        nodes: list[Stricken] = [
            kind(tmp_path / kind.__name__, stack) for kind in (Locked, Full, TakenAway)
        ]
        for one in nodes:
            one.strike()
        yield nodes


def test_a_fault_of_the_file_is_told_survived_and_over_when_it_ends(
    struck: list[Stricken],
) -> None:
    calls = [
        (one, verb, one.node.begin(verb, pod, container))
        for one in struck
        for verb, pod, container in (("ADD", "new", "c2"), ("DEL", "spare", "c3"))
    ]
    agents = [one.node.agent and one.node.agent.pid for one in struck]
    for one, verb, process in calls:
        answer = one.node.finish(process)
        if verb == "DEL" and answer.status == 0:
            continue  # there was nothing to write
        assert answer.code == 11, (type(one), verb, answer)
        for words in (*one.says, str(one.database)):
            assert words in answer.body["msg"], (type(one), verb, answer)
    for one in struck:
        assert one.seen() == one.before, type(one)
        assert one.node.metrics("web") == [1024]
        one.heal()
    for one in struck:
        node = one.node
        until("the datastore is back", lambda node=node: list(node.endpoints()) == ["web"])  # type: ignore[misc]  # bound now
        assert len(node.owners()) == 1, type(one)
        node.done("ADD", "new", "c2")
        assert node.status("new"), "its policy is in force"
        for pod, container in (("new", "c2"), ("web", "c1")):
            node.done("DEL", pod, container)
        assert (node.owners(), node.endpoints()) == ({}, {})
        until("status files go", lambda node=node: not node.left()["status"])  # type: ignore[misc]  # bound now
    assert agents == [one.node.agent and one.node.agent.pid for one in struck]
    assert all(one.node.agent and one.node.agent.poll() is None for one in struck)


class ReadOnly(Stricken):
    """The file system is mounted read-only."""

    says = ("unable to open", "this user may write the file")

    def strike(self) -> None:
        self.node.stop()
        self.node.store.close()
        mount("-o", "remount,ro", str(self.place))

    def heal(self) -> None:
        mount("-o", "remount,rw", str(self.place))


def test_an_agent_on_a_read_only_disk_waits_for_it_to_be_writable(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = ReadOnly(tmp_path, stack)
        node = one.node
        one.strike()
        answer = node.call("ADD", "new", "c2")  # by the fallback
        assert answer.code == 11, answer
        for words in (*one.says, str(one.database)):
            assert words in answer.body["msg"], answer
        node.start(wait=False)
        until("it says so", lambda: node.lines("datastore_unavailable"))
        assert str(one.database) in node.lines("datastore_unavailable")[0]["reason"]
        assert one.seen() == one.before
        served = len(node.lines("cni_serving"))
        one.heal()
        until("it serves", lambda: len(node.lines("cni_serving")) > served)
        node.done("ADD", "new", "c2")
        node.done("DEL", "new", "c2")
        assert one.node.metrics("web") == [1024]
