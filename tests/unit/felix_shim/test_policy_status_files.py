"""Endpoint-status files: whole or absent, and what they say."""

from __future__ import annotations

import errno
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from felix_shim.cluster import ENDPOINTS
from felix_shim.drivers import status_files
from felix_shim.drivers.status_files import StatusFiles
from felix_shim.events import Stored
from libtortie.datastore.port import Record
from libtortie.errors import KernelError
from tests.fakes.agent_world import ADDRESS, MAC, NAMESPACE, Bench, endpoint_record

NAME = "k8s default%2Fweb-0 eth0"


def test_written_once_and_rewritten_when_different(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path / "endpoint-status")
    files.apply({NAME: "one"}, in_sync=False)
    path = tmp_path / "endpoint-status" / NAME
    assert path.read_text() == "one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.stat().st_ino
    files.apply({NAME: "one"}, in_sync=True)
    assert path.stat().st_ino == before, "unchanged content is not touched"
    files.apply({NAME: "two"}, in_sync=True)
    assert path.read_text() == "two"
    assert path.stat().st_ino != before, "replaced whole, never overwritten in place"
    assert [entry.name for entry in path.parent.iterdir()] == [NAME]


def test_strays_go_only_in_sync(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    for name in ("k8s gone eth0", ".new-77"):
        (tmp_path / name).write_text("old")
    files.apply({NAME: "x"}, in_sync=False)
    assert (tmp_path / "k8s gone eth0").exists()
    files.apply({NAME: "x"}, in_sync=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]


def test_removal_of_nothing_is_success(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    files.apply({NAME: "x"}, in_sync=False)
    files.remove(NAME)
    files.remove(NAME)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b"])
def test_a_name_that_is_none_is_refused_and_the_others_are_written(
    tmp_path: Path, name: str
) -> None:
    files = StatusFiles(tmp_path)
    with pytest.raises(KernelError, match="1 failed"):
        files.apply({name: "x", NAME: "y"}, in_sync=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]


def test_a_directory_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelError):
        StatusFiles(tmp_path / "file" / "x").apply({NAME: "y"}, in_sync=True)


def test_a_file_that_is_still_the_same_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StatusFiles(tmp_path)
    files.apply({"a": "1", "b": "2"}, in_sync=True)
    read: list[str] = []

    def noted(path: Path) -> bytes:
        read.append(path.name)
        return path.read_bytes()

    monkeypatch.setattr(status_files, "read_bytes", noted)
    files.apply({"a": "1", "b": "2"}, in_sync=True)
    assert read == []
    (tmp_path / "a").write_text("somebody else's")
    (tmp_path / "b").unlink()
    files.apply({"a": "1", "b": "2"}, in_sync=True)
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("1", "2")
    assert "a" in read


def test_only_what_is_new_is_looked_at_until_the_resync(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    (tmp_path / "stray").write_text("old")
    files.write({"a": "1", "b": "2"}, 0)
    assert not (tmp_path / "stray").exists()
    (tmp_path / "a").write_text("somebody else's")
    (tmp_path / "stray").write_text("new")
    files.write({"a": "1", "c": "3"}, 0)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"a": "somebody else's", "c": "3", "stray": "new"}
    files.write({"a": "1", "c": "3"}, 1)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"a": "1", "c": "3"}


def test_a_directory_that_went_is_made_again_with_all_of_its_files(tmp_path: Path) -> None:
    directory = tmp_path / "endpoint-status"
    files = StatusFiles(directory)
    files.write({"a": "1"}, 0)
    (directory / "a").unlink()
    directory.rmdir()
    files.write({"a": "1", "b": "2"}, 0)
    assert {path.name for path in directory.iterdir()} == {"a", "b"}


def test_after_a_failure_everything_is_looked_at(tmp_path: Path) -> None:
    files = StatusFiles(tmp_path)
    files.write({"a": "1"}, 0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "in the way").touch()
    with pytest.raises(KernelError, match="b: "):
        files.write({"a": "1", "b": "2"}, 0)
    (tmp_path / "a").unlink()
    (tmp_path / "b" / "in the way").unlink()
    (tmp_path / "b").rmdir()
    files.write({"a": "1", "b": "2"}, 0)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1", "b": "2"}


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["open", "chmod", "replace"])
def test_a_full_disk_leaves_the_old_file_or_none_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    files = StatusFiles(tmp_path)
    files.apply({NAME: "old"}, in_sync=True)
    with monkeypatch.context() as broken:
        broken.setattr(Path, step, _full)
        with pytest.raises(KernelError, match=r"No space left.*2 failed"):
            files.apply({NAME: "new", "k8s other eth0": "x"}, in_sync=True)
    assert (tmp_path / NAME).read_text() == "old"
    assert not (tmp_path / "k8s other eth0").exists()
    files.apply({NAME: "new", "k8s other eth0": "x"}, in_sync=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        NAME: "new",
        "k8s other eth0": "x",
    }


class Killed(BaseException):
    """Nobody handles this."""


def _die(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", ["open", "chmod", "replace", "lstat"])
def test_a_kill_at_any_step_leaves_a_whole_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The plugin reads it at any moment, and the next run of the agent takes what is no file."""
    StatusFiles(tmp_path).apply({NAME: "old" * 4096}, in_sync=True)
    with monkeypatch.context() as deadly:
        deadly.setattr(Path, step, _die)
        with pytest.raises(Killed):
            StatusFiles(tmp_path).apply({NAME: "new" * 4096}, in_sync=True)
    after = "new" if step == "lstat" else "old"
    assert (tmp_path / NAME).read_text() == after * 4096
    StatusFiles(tmp_path).apply({NAME: "new" * 4096}, in_sync=True)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


# -- what they say ---------------------------------------------------------------------------


def body(bench: Bench, pod: str = "web") -> dict[str, object]:
    found: dict[str, object] = json.loads(bench.status[f"k8s {NAMESPACE}%2F{pod} eth0"])
    return found


def generation(bench: Bench, pod: str = "web") -> int:
    found = body(bench, pod)["generation"]
    assert isinstance(found, int)
    return found


def test_a_file_tells_the_sandbox_and_since_which_rules_it_is_served() -> None:
    bench = Bench()
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    first = body(bench)
    assert {**first, "generation": 0} == {
        "ifaceName": bench.rules[-1].endpoints[0].interface,
        "mac": MAC,
        "ipv4Nets": [f"{ADDRESS}/32"],
        "containerID": "ctr-web",
        "generation": 0,
    }
    bench.attach(endpoint_record("other", vm=False, address="10.65.0.9"))
    assert body(bench) == first, "later rules have it, too"
    assert generation(bench, "other") > generation(bench)


@pytest.mark.parametrize(
    "again",
    [
        lambda: endpoint_record("web", vm=False, container="another"),
        lambda: endpoint_record("web", vm=False, address="10.65.0.9"),
    ],
    ids=["sandbox", "address"],
)
def test_another_sandbox_or_address_is_served_by_later_rules_or_not_at_all(
    again: Callable[[], Record],
) -> None:
    bench = Bench()
    bench.start()
    bench.attach(endpoint_record("web", vm=False))
    first = generation(bench)
    bench.nft_broken = True
    bench.tell(Stored(ENDPOINTS, again()))
    assert bench.status == {}, "its rules are not in the kernel"
    bench.nft_broken = False
    bench.advance(1.0)
    assert generation(bench) > first


def test_a_pod_that_goes_takes_its_file_along_though_rules_cannot_change() -> None:
    bench = Bench()
    bench.start()
    record = endpoint_record("web", vm=False)
    bench.attach(record)
    bench.nft_broken = True
    bench.detach(record)
    assert bench.status == {}
