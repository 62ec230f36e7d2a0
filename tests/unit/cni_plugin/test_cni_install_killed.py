"""`install` and `uninstall` killed before every step: what is found then, and what repeats mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cni_plugin.conflist import CONFLIST, conflist
from cni_plugin.install import EXECUTABLES, SET_ASIDE, Kubeconfig, install, uninstall
from cni_plugin.program import executable
from tests.fakes import killed_steps

STEPS = ("open", "fchmod", "fsync", "rename", "unlink", "link", "mkdir")
"""All that `install` changes the world with, apart from the bytes of a temporary file."""

OLD, NEW = (executable(f"/run/{name}.sock", "/opt/f", "/usr/bin/python3") for name in ("a", "b"))
MARK = b"# Written by tortie, which keeps the token fresh: changes are lost.\n"
THEIRS = {
    "05-calico.conflist": b'{"name": "a", "plugins": [{"type": "calico"}]}',
    CONFLIST: b'{"name": "b", "plugins": [{"type": "bridge"}]}',
    "99-last.conf": b'{"name": "c", "type": "bridge"}',
}


def killed_before(step: int) -> AbstractContextManager[list[str]]:
    """Nothing from this step on has an effect: see there."""
    return killed_steps.killed_before(step, STEPS)


@dataclass(frozen=True, slots=True)
class Node:
    """A node's directories."""

    root: Path

    @property
    def confs(self) -> Path:
        return self.root / "net.d"

    @property
    def bins(self) -> Path:
        return self.root / "bin"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "etc" / "kubeconfig"

    def install(self, program: bytes = NEW, name: str = CONFLIST) -> None:
        install(
            self.bins,
            self.confs,
            program=program,
            conflist=self.conflist(program),
            kubeconfig=Kubeconfig(self.kubeconfig, self.content(program)),
            conflist_name=name,
            take_over=True,
        )

    def uninstall(self) -> None:
        assert uninstall(self.bins, self.confs, self.kubeconfig) == []

    def conflist(self, program: bytes) -> bytes:
        return conflist({"mtu": 1400 if program == OLD else 1500})

    def content(self, program: bytes) -> bytes:
        return MARK + (b"old" if program == OLD else b"new")

    def put_theirs(self) -> None:
        self.confs.mkdir()
        for name, text in THEIRS.items():
            (self.confs / name).write_bytes(text)

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Every file: its content and mode."""
        found = sorted(path for path in self.root.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mode & 0o777)
            for path in found
        }

    def check(self, network: bool) -> None:
        """What a runtime may find at any moment. `network`: there has to be one."""
        endings = (".conf", ".conflist", ".json")
        read = sorted(path for path in self.confs.glob("*") if path.suffix in endings)
        whole = {*THEIRS.values(), self.conflist(OLD), self.conflist(NEW)}
        assert {path.read_bytes() for path in read} <= whole
        assert read or not network
        programs = [path for path in (self.bins / name for name in EXECUTABLES) if path.exists()]
        for path in programs:
            assert path.read_bytes() in (OLD, NEW)
            assert path.stat().st_mode & 0o777 == 0o755
        if self.kubeconfig.exists():
            assert self.kubeconfig.read_bytes() in (self.content(OLD), self.content(NEW))
            assert self.kubeconfig.stat().st_mode & 0o777 == 0o600
        if read and "_tortie" in json.loads(read[0].read_bytes()):
            assert len(programs) == len(EXECUTABLES), "a network whose plugin is not there"
            assert self.kubeconfig.exists(), "a network whose fallback cannot ask the API"

    def keeps_theirs(self) -> bool:
        """Whether nothing of the others' is lost."""
        there = {path.read_bytes() for path in self.confs.iterdir()}
        return set(THEIRS.values()) <= there


def nothing(_: Node) -> None:
    """A node that had no network."""


def old(node: Node) -> None:
    """An earlier version, by another name, beside which others were set aside."""
    node.put_theirs()
    node.install(OLD, "00-earlier.conflist")


def installed(node: Node) -> None:
    node.put_theirs()
    node.install()


def alone(node: Node) -> None:
    node.install()


CASES: dict[str, tuple[Callable[[Node], None], Callable[[Node], None], bool]] = {
    "install on an empty node": (nothing, Node.install, False),
    "install beside others": (Node.put_theirs, Node.install, True),
    "install over an earlier version": (old, Node.install, True),
    "uninstall beside others": (installed, Node.uninstall, True),
    "uninstall alone": (alone, Node.uninstall, False),
}


@pytest.mark.parametrize("case", CASES)
def test_killed_before_every_step(case: str, tmp_path: Path) -> None:
    """Old or new and whole at every moment; a repeat completes it, the opposite undoes it."""
    before, action, network = CASES[case]
    theirs = network
    done = Node(tmp_path / "done")
    done.root.mkdir()
    before(done)
    with killed_before(0) as steps:
        action(done)
    undone = Node(tmp_path / "undone")
    undone.root.mkdir()
    if theirs:
        undone.put_theirs()
    clean = undone.files()
    undone.install()
    full = undone.files()
    opposite, expected = (
        (Node.install, full) if action is Node.uninstall else (Node.uninstall, clean)
    )
    assert len(steps) > 8
    for step in range(1, len(steps) + 1):
        for then, end in ((action, done.files()), (opposite, expected)):
            node = Node(tmp_path / f"{step}-{then.__name__}")
            node.root.mkdir()
            before(node)
            node.check(network)
            with killed_before(step) as taken:
                action(node)
            assert len(taken) >= step
            node.check(network)
            assert not theirs or node.keeps_theirs()
            then(node)
            assert node.files() == end, (step, taken[step - 1])


def test_the_sweep_sees_every_change(tmp_path: Path) -> None:
    """Killed before the first step there is nothing new, and what is set aside is counted."""
    node = Node(tmp_path)
    node.put_theirs()
    before = node.files()
    with killed_before(1):
        node.install()
    assert node.files() == before
    with killed_before(0) as steps:
        node.install()
    assert steps.count("rename") == len(EXECUTABLES) + 2 + 1
    assert steps.count("link") == 1
    assert sum(name.endswith(SET_ASIDE) for name in node.files()) == 2


def test_a_power_cut_finds_what_a_kill_finds(tmp_path: Path) -> None:
    """A file is on the disk before it has its name, and its name before the next step begins."""
    node = Node(tmp_path)
    with killed_before(0) as steps:
        node.install()
    while "rename" in steps:
        at = steps.index("rename")
        assert steps[at - 3 : at] == ["open", "fchmod", "fsync"], "of the file"
        assert steps[at + 1 : at + 4] == ["unlink", "open", "fsync"], "of the directory"
        del steps[: at + 4]
    with killed_before(0) as steps:
        node.uninstall()
    removed = [number for number, step in enumerate(steps) if step == "unlink"]
    assert all(steps[at + 1 : at + 3] == ["open", "fsync"] for at in removed)
