"""A QEMU that is dying: its connection is gone before the kernel says that the process is."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from lab.guest_store import Outcome
from lab.qemu_process import PID, running
from lab.qemu_settle import settle

GREETING = b'{"QMP": {"version": {}, "capabilities": []}}\n'


class Dying:
    """A process with a QEMU's files, of whose connections each ends; it dies after some."""

    def __init__(self, directory: Path, stack: ExitStack, greeting: bytes, looks: int) -> None:
        self._greeting, self._looks = greeting, looks
        self._process = subprocess.Popen(["sleep", "infinity"])
        stack.callback(self._process.wait)
        stack.callback(self._process.kill)
        directory.mkdir()
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        (directory / PID).write_text(stat)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(directory / "qmp"))
        self._listener.listen()
        thread = threading.Thread(target=self._serve)
        thread.start()
        stack.callback(self._listener.close)
        stack.callback(thread.join)
        stack.callback(self._listener.shutdown, socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            for _ in range(self._looks):
                connection, _ = self._listener.accept()
                with connection, suppress(BrokenPipeError):
                    connection.sendall(self._greeting)
            self._process.kill()
            self._process.wait()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("greeting", [b"", GREETING], ids=["at the greeting", "at a command"])
def test_a_dying_source_is_looked_at_until_it_is_dead(
    tmp_path: Path, stack: ExitStack, greeting: bytes
) -> None:
    source = tmp_path / "a"
    Dying(source, stack, greeting, looks=3)
    assert settle(source, tmp_path / "b") is Outcome.DEAD
    assert running(source) is None
