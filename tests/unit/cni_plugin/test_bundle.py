"""Versions side by side: brought whole, switched at once, pruned unless in use; killed anywhere."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_plugin import bundle as bundles
from cni_plugin.bundle import MANIFEST, Bundle, Home, read_bundle
from libtortie.errors import InvalidInput
from tests.fakes.bundles import make_bundle, tree
from tests.fakes.killed_steps import killed_before

MACHINE = os.uname().machine
STEPS = ("open", "mkdir", "chmod", "fchmod", "symlink", "rename", "unlink", "rmdir", "utime")
"""All that a home's methods change the world with, apart from bytes of unfinished files."""


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "flush_filesystem", lambda _: None)


class Node:
    """A home and the bundles that a test brings there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "opt"
        self.path.mkdir(parents=True)
        self.probed: list[str] = []
        self.home = Home(self.path, lambda one: self.probed.append(one.name))

    def bundle(self, version: str, text: str = "") -> Bundle:
        source = self.root / f"source-{version}{text}"
        return read_bundle(
            source if source.exists() else make_bundle(source, version, text=text), MACHINE
        )

    def use(self, *versions: str, keep: int = 2) -> None:
        """One after the other, each a second later."""
        for number, version in enumerate(versions):
            self.home.put_in_use(self.bundle(version))
            current = self.path / "versions" / self.home.current()
            os.utime(current, (1000 + number, 1000 + number))
            self.home.prune(keep)

    def names(self) -> list[str]:
        return sorted(one.name for one in (self.path / "versions").iterdir())

    def is_whole(self) -> None:
        """What a runtime may find: a version that is its bundle, or none."""
        link = self.path / "bin"
        if not os.path.lexists(link):
            return
        at = link.resolve().parent
        source = self.root / f"source-{at.name.partition('-')[0]}"
        assert tree(at) == tree(source)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_version_comes_whole_and_is_led_to(node: Node) -> None:
    bundle = node.bundle("1.0")
    node.home.require_ours()
    node.home.put_in_use(bundle)
    assert bundle.name.startswith("1.0-")
    assert node.names() == [bundle.name] == [node.home.current()]
    assert tree(node.path / "versions" / bundle.name) == tree(bundle.source)
    assert (node.path / "bin").readlink() == Path(f"versions/{bundle.name}/bin")
    assert (node.path / "bin/tortie-cni").read_text().startswith("#!")


def test_modes_do_not_depend_on_the_umask(node: Node) -> None:
    node.bundle("1.0")
    before = os.umask(0o077)
    try:
        node.use("1.0")
    finally:
        os.umask(before)
    assert tree(node.path / "versions" / node.home.current()) == tree(node.root / "source-1.0")


def test_a_repeat_copies_nothing(node: Node) -> None:
    node.use("1.0")
    before = (node.path / "versions" / node.home.current() / "lib/module.py").stat()
    node.use("1.0")
    after = (node.path / "versions" / node.home.current() / "lib/module.py").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(node.names()) == 1


def test_two_builds_of_a_version_are_two(node: Node) -> None:
    node.home.put_in_use(node.bundle("1.0"))
    node.home.put_in_use(node.bundle("1.0", "other"))
    assert len(node.names()) == 2


def test_it_is_on_the_disk_before_it_has_its_name(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut finds what a kill finds: files, then the version's name, then the link."""
    bundle, seen = node.bundle("1.0"), []

    def flushed(directory: Path) -> None:
        there = directory if directory.name.startswith(".1.0") else directory / "versions"
        seen.append((directory.name[:4], tree(there) == tree(bundle.source), node.home.current()))

    monkeypatch.setattr(bundles, "flush_filesystem", flushed)
    monkeypatch.setattr(bundles, "flush_directory", flushed)
    node.home.put_in_use(bundle)
    assert seen == [(".1.0", True, ""), ("vers", False, ""), ("opt", False, bundle.name)]


@pytest.mark.parametrize(
    ("keep", "left"), [(1, ["1.2"]), (2, ["1.1", "1.2"]), (9, ["1.0", "1.1", "1.2"])]
)
def test_so_many_stay(node: Node, keep: int, left: list[str]) -> None:
    node.use("1.0", "1.1", "1.2", keep=keep)
    assert [name.partition("-")[0] for name in node.names()] == left


def test_a_downgrade_keeps_what_it_came_from(node: Node) -> None:
    """What came into use last stays, whatever its number, and a version that is there is used."""
    node.use("1.0", "1.1", "1.0", keep=2)
    assert node.home.current().startswith("1.0-")
    assert [name.partition("-")[0] for name in node.names()] == ["1.0", "1.1"]
    node.use("1.2", keep=2)
    assert [name.partition("-")[0] for name in node.names()] == ["1.0", "1.2"]


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """As the launcher holds the version that a program of another process runs from."""
    command = ["flock", "--shared", str(directory), "sh", "-c", "echo held; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == b"held\n"
        yield
        process.stdin.close()


def test_a_version_that_runs_stays(node: Node) -> None:
    node.use("1.0", keep=1)
    old = node.path / "versions" / node.home.current()
    with held(old):
        node.use("1.1", keep=1)
        assert old.name in node.names()
        assert node.home.prune(1) == [old.name]
    assert node.home.prune(1) == []
    assert old.name not in node.names()


@pytest.mark.parametrize("harm", ["content", "mode", "gone", "link"])
def test_what_is_damaged_is_brought_again_beside_it(node: Node, harm: str) -> None:
    """A program may run from the damaged one: it is never written to."""
    node.use("1.0")
    name = node.home.current()
    directory = node.path / "versions" / name
    module = directory / "lib/module.py"
    match harm:
        case "content":
            module.write_text("?")
        case "mode":
            module.chmod(0o600)
        case "gone":
            module.unlink()
        case "link":
            (directory / "bin/python3").unlink()
            (directory / "bin/python3").symlink_to("tortie-cni")
    before = tree(directory)
    node.use("1.0", keep=2)
    node.is_whole()
    assert node.home.current() == f"{name}.1"
    assert tree(directory) == before
    node.use("1.0", keep=1)
    assert node.names() == [f"{name}.1"]


def test_one_that_does_not_run_is_not_put_in_use(node: Node) -> None:
    node.use("1.0")
    before = node.home.current()

    def fails(_: Path) -> None:
        raise InvalidInput("does not run")

    with pytest.raises(InvalidInput, match="does not run"):
        Home(node.path, fails).put_in_use(node.bundle("1.1"))
    assert node.home.current() == before
    node.is_whole()


def test_the_probe_is_asked_before_the_switch(node: Node) -> None:
    seen: list[str] = []
    home = Home(node.path, lambda _: seen.append(home.current()))
    home.put_in_use(node.bundle("1.0"))
    assert seen == [""]


def test_too_little_room_is_said_before_anything_is_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.use("1.0")
    before = tree(node.path)
    real = os.statvfs(node.path)
    full = os.statvfs_result((*real[:4], 1, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(InvalidInput, match=r"has 0 MiB free and 1\.1-\w+ needs 1 MiB: make room"):
        node.home.put_in_use(node.bundle("1.1"))
    assert tree(node.path) == before


def test_a_disk_that_is_full_in_the_middle(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.use("1.0")
    before = tree(node.path)

    def full(_: int, __: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bundle = node.bundle("1.1")
    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match=r"No space left on device: .*versions/") as caught:
        node.home.put_in_use(bundle)
    assert caught.value.errno == errno.ENOSPC
    assert tree(node.path) == before


def test_a_bundle_that_is_not_what_it_says(node: Node) -> None:
    bundle = node.bundle("1.0")
    (bundle.source / "lib/module.py").write_text("# of 1.0 \n?")
    with pytest.raises(InvalidInput, match=r"lib/module\.py is not what the bundle's"):
        node.home.put_in_use(bundle)
    assert node.names() == []
    (bundle.source / "lib/module.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"source-1\.0/lib/module\.py"):
        node.home.put_in_use(bundle)
    assert node.names() == []


def test_something_of_others_in_our_place(node: Node) -> None:
    (node.path / "bin").mkdir()
    with pytest.raises(InvalidInput, match="bin is not ours: move it away"):
        node.home.require_ours()
    (node.path / "bin").rmdir()
    (node.path / "bin").symlink_to("/usr/bin")
    with pytest.raises(InvalidInput, match="bin is not ours"):
        node.home.require_ours()
    assert node.home.remove_all() == []
    assert (node.path / "bin").readlink() == Path("/usr/bin")


def test_everything_goes(node: Node) -> None:
    node.use("1.0", "1.1")
    (node.path / "versions/theirs").mkdir()
    with held(node.path / "versions" / node.home.current()):
        (line,) = node.home.remove_all()
        assert "stays: a process runs from it" in line
        assert not os.path.lexists(node.path / "bin")
    (node.path / "versions/theirs").rmdir()
    assert node.home.remove_all() == []
    assert not node.path.exists()
    assert node.home.remove_all() == []


def test_this_process_does_not_keep_itself(node: Node) -> None:
    """As where `tortiectl node uninstall` runs from what it removes."""
    node.use("1.0")
    mine = os.open(node.path / "versions" / node.home.current(), os.O_RDONLY)
    fcntl.flock(mine, fcntl.LOCK_SH)
    assert node.home.remove_all() == []
    assert not node.path.exists()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(mine)


def nothing(_: Node) -> None:
    """A node without any."""


def upgrade(node: Node) -> None:
    node.home.put_in_use(node.bundle("1.1"))
    node.home.prune(1)


def remove(node: Node) -> None:
    assert node.home.remove_all() == []


CASES: dict[str, tuple[Callable[[Node], None], Callable[[Node], None]]] = {
    "first": (nothing, upgrade),
    "upgrade": (lambda node: node.use("1.0"), upgrade),
    "downgrade": (lambda node: node.use("1.1", "1.2"), upgrade),
    "remove": (lambda node: node.use("1.0", "1.1"), remove),
}


@pytest.mark.parametrize("case", CASES)
def test_killed_before_every_step(case: str, tmp_path: Path) -> None:
    """The old one or the new one, whole, at every moment; a repeat completes it."""
    before, action = CASES[case]
    done = Node(tmp_path / "done")
    before(done)
    done.bundle("1.1")
    with killed_before(0, STEPS) as steps:
        action(done)
    assert len(steps) > 10
    for step in range(1, len(steps) + 1):
        node = Node(tmp_path / str(step))
        before(node)
        node.bundle("1.1")
        had = node.home.current()
        with killed_before(step, STEPS) as taken:
            action(node)
        assert len(taken) >= step
        node.is_whole()
        assert node.home.current() or not had or action is remove
        action(node)
        assert tree(node.root) == tree(done.root), (step, steps[step - 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": "pdp11"}, f"is for pdp11, and this machine is {MACHINE}"),
        ({"version": "../1"}, r"bundle\.json: version: String should match"),
        ({"version": ""}, "version: String should match"),
        ({"files": []}, "files: Input should be"),
        ({"files": {"../x": {}}}, "'../x' is not a name within the bundle"),
        ({"files": {"/x": {}}}, "'/x' is not a name within"),
        ({"files": {"": {}}}, "'' is not a name within"),
        ({"files": {MANIFEST: {}}}, "'bundle.json' is not a name within"),
        ({"files": {"a/b": {"link": "../../etc"}}}, "is not a name within"),
        ({"files": {"a": {"link": "/etc/passwd"}}}, "'/etc/passwd' is not a name within"),
        ({"files": {"a": {"mode": 0o4755}}}, r"files\.a\.mode: Input should be less"),
        ({"files": {"a": {"size": -1}}}, r"files\.a\.size: Input should be greater"),
    ],
)
def test_a_manifest_that_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_bundle(make_bundle(tmp_path / "b", **change), MACHINE)


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is no bundle: it has no bundle\.json"):
        read_bundle(tmp_path, MACHINE)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(InvalidInput, match=r"bundle\.json: : Invalid JSON"):
        read_bundle(tmp_path, MACHINE)


@pytest.mark.parametrize("odd", ["/dev/zero", "pipe", "longer"])
def test_a_bundles_file_that_is_another_is_read_no_further_than_its_size(
    odd: str, tmp_path: Path
) -> None:
    node = Node(tmp_path)
    bundle = node.bundle("1.0")
    file = bundle.source / "lib" / "module.py"
    if odd == "longer":
        file.write_text(file.read_text() + "x" * 1000)
    else:
        file.unlink()
        if odd == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(odd)
    with pytest.raises((InvalidInput, OSError), match=r"module\.py"):
        node.home.put_in_use(bundle)
    assert node.names() == []


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    file = {"mode": 0o644, "size": 0, "sha256": ""}
    source = make_bundle(tmp_path / "source", files={"lib/a\0b": file})
    with pytest.raises(InvalidInput, match="is not a name within the bundle"):
        read_bundle(source, MACHINE)


def test_making_a_bundle_removes_nothing_that_is_none(tmp_path: Path) -> None:
    somebodys = tmp_path / "home"
    somebodys.mkdir()
    (somebodys / "letter").write_text("dear")
    script = Path(__file__).parents[3] / "scripts" / "bundle.py"
    command = [sys.executable, str(script), str(somebodys), "launcher"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{somebodys} is there and is no bundle" in done.stderr
    assert (somebodys / "letter").read_text() == "dear"
