"""A log file that is full is set aside, once, whoever finds it full; no line is lost."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from libtortie.rotating import Limits, RotatingFile

LINE = "x" * 9 + "\n"


class Clock:
    def __init__(self) -> None:
        self.seconds = time.time()  # files have the kernel's times

    def __call__(self) -> float:
        self.seconds += 0.001
        return self.seconds


def files(directory: Path) -> dict[str, int]:
    return {path.name: len(path.read_text()) for path in sorted(directory.iterdir())}


def test_a_full_file_is_set_aside_and_the_oldest_go(tmp_path: Path) -> None:
    log = RotatingFile(tmp_path / "cni.log", Limits(size=30, count=2), now=Clock())
    (tmp_path / "cni.log.notes").write_text("mine")
    for _ in range(13):
        log.write(LINE)
    log.close()
    sizes = files(tmp_path)
    assert sizes.pop("cni.log") == 10
    assert sizes.pop("cni.log.notes") == 4, "what is no log of ours stays"
    assert list(sizes.values()) == [30, 30]
    assert all(name.startswith("cni.log.2") for name in sizes)


def test_a_line_longer_than_a_file_is_written_whole(tmp_path: Path) -> None:
    log = RotatingFile(tmp_path / "log", Limits(size=5), now=Clock())
    log.write(LINE)
    log.write(LINE)
    log.close()
    assert list(files(tmp_path).values()) == [10, 10]


def test_old_files_go_by_age(tmp_path: Path) -> None:
    clock = Clock()
    log = RotatingFile(tmp_path / "log", Limits(size=10, age=60.0), now=clock)
    log.write(LINE)
    log.write(LINE)
    (old,) = (path for path in tmp_path.iterdir() if path.name != "log")
    os.utime(old, (clock.seconds - 61, clock.seconds - 61))
    log.write(LINE)
    log.close()
    assert not old.exists()


@pytest.mark.parametrize("how", ["renamed", "deleted"])
def test_who_has_another_file_open_writes_to_the_path(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log"
    log = RotatingFile(path)
    log.write("1\n")
    path.rename(tmp_path / "log.1") if how == "renamed" else path.unlink()
    log.write("2\n")
    log.close()
    assert path.read_text() == "2\n"


@pytest.mark.parametrize("there", ["before", "meanwhile"])
def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path, there: str) -> None:
    path = tmp_path / "log"
    if there == "before":
        path.write_text("1\n2 of a wri")
    log = RotatingFile(path)
    if there == "meanwhile":
        path.write_text("1\n2 of a wri")
    log.write("3\n")
    log.write("4\n")
    log.close()
    assert path.read_text().splitlines() == ["1", "2 of a wri", "3", "4"]


def test_two_that_find_it_full_set_it_aside_once(tmp_path: Path) -> None:
    path, limits = tmp_path / "log", Limits(size=20)
    one, two = RotatingFile(path, limits), RotatingFile(path, limits)
    one.write(LINE)
    one.write(LINE)
    real = two._set_aside

    def late(more: int) -> None:
        one.write(LINE)  # the other one is quicker: it sets the file aside
        real(more)

    two._set_aside = late  # type: ignore[method-assign]  # a race, on purpose
    two.write(LINE)
    one.close()
    two.close()
    assert sorted(files(tmp_path).values()) == [20, 20]


def test_nothing_is_lost_among_many(tmp_path: Path) -> None:
    path, limits = tmp_path / "log", Limits(size=200, count=1000)

    def write(who: int) -> None:
        log = RotatingFile(path, limits)
        for number in range(100):
            log.write(f"{who}-{number:03}\n")
        log.close()

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [line for each in tmp_path.iterdir() for line in each.read_text().splitlines()]
    assert sorted(lines) == sorted(
        f"{who}-{number:03}" for who in range(4) for number in range(100)
    )
    longest = 200 + 3 * len("0-000\n")  # the others' line that was on its way each
    assert all(size <= longest for size in files(tmp_path).values())


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        RotatingFile(tmp_path / "file" / "log")
    with pytest.raises(OSError, match="Is a directory"):
        RotatingFile(tmp_path)


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    path = tmp_path / "tortie" / "cni" / "log"
    with closing(RotatingFile(path)) as file:
        file.write(LINE)
        shutil.rmtree(tmp_path / "tortie")
        file.write(LINE)
    assert path.read_text() == LINE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_is_full_at_the_start_is_tried_again(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(OSError(code, os.strerror(code))))
        file = RotatingFile(path)
        with pytest.raises(OSError, match=os.strerror(code)):
            file.write(LINE)
        file.close()
    file.write(LINE)
    file.close()
    assert path.read_text() == LINE


def failing(error: OSError) -> Callable[..., int]:
    def call(*_: object, **__: object) -> int:
        raise error

    return call


def test_a_pipe_that_nobody_reads_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with closing(RotatingFile(path)) as file, pytest.raises(BlockingIOError):
        for _ in range(1000):
            file.write(1000 * LINE)
