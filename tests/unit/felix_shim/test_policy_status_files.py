"""Endpoint-status files: whole or absent."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from felix_shim.drivers.status_files import StatusFiles
from libtortie.errors import KernelError

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
    real = Path.read_bytes

    def noted(path: Path) -> bytes:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
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
