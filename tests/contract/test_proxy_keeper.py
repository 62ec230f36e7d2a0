"""The keeper of the migration proxy beside what answers oddly, and short of descriptors."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from felix_shim import proxy_keeper
from felix_shim.proxy_keeper import ProxyKeeper
from libtortie.jsonlog import JsonLog
from tests.fakes.migration_proxies import short_directory, until

FOR_EVER = [sys.executable, "-c", "import signal; signal.pause()"]


STUBBORN = "import signal; signal.signal(15, lambda *_: print('told', flush=True)); print('up')"


def kept(
    control: Path,
    said: io.StringIO,
    command: Sequence[str] = FOR_EVER,
    hurry: Callable[[], bool] = bool,
) -> tuple[ProxyKeeper, threading.Thread]:
    keeper = ProxyKeeper(command, control, JsonLog(said), lambda: False, hurry)
    thread = threading.Thread(target=keeper.run, daemon=True)
    thread.start()
    return keeper, thread


@pytest.mark.parametrize(
    "answer", ['{"ok": true}', '{"ok": true, "pid": "x"}', '{"ok": true, "pid": 1e300}']
)
def test_what_is_no_proxys_answer_ends_nothing(answer: str) -> None:
    """Whoever is at the control socket: an own one is started, which then says what is there."""
    said = io.StringIO()
    with short_directory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "ctl"))
        listener.listen(8)

        def serve() -> None:
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    client.recv(1000)
                    client.sendall(answer.encode() + b"\n")

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        keeper, thread = kept(place / "ctl", said)
        until(lambda: "migration_proxy_started" in said.getvalue())
        keeper.stop()
        thread.join(120)
        serving.join(120)
    assert "migration_proxy_ended" in said.getvalue()


def test_a_proxy_that_could_not_be_watched_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the agent ended; it is tried again."""
    real, failing = os.pidfd_open, [1]

    def pidfd_open(pid: int) -> int:
        if failing:
            failing.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(pid)

    monkeypatch.setattr(proxy_keeper, "SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    monkeypatch.setattr(proxy_keeper, "CLOSING_SECONDS", 0.0)
    said = io.StringIO()
    with short_directory() as place:
        keeper, thread = kept(place / "ctl", said)
        until(lambda: "migration_proxy_started" in said.getvalue())
        keeper.stop()
        thread.join(120)
    assert "Too many open files" in said.getvalue()


def test_a_second_signal_leaves_the_proxy_to_drain_by_itself(tmp_path: Path) -> None:
    """It was told to, its streams go on, and the next agent finds it."""
    out, said, second = tmp_path / "out", io.StringIO(), threading.Event()
    drains = f'exec > {out}; exec {sys.executable} -uc "{STUBBORN}; import time; time.sleep(600)"'
    with short_directory() as place:
        keeper, thread = kept(place / "ctl", said, ["sh", "-c", drains], second.is_set)
        until(lambda: out.exists() and out.read_text() == "up\n")
        stopping = threading.Thread(target=keeper.stop, daemon=True)
        stopping.start()
        until(lambda: out.read_text() == "up\ntold\n")
        assert stopping.is_alive(), "its drain is waited for"
        second.set()
        stopping.join(120)
        thread.join(120)
        (left,) = [
            line["pid"]
            for line in map(json.loads, said.getvalue().splitlines())
            if line["event"] == "migration_proxy_left"
        ]
        assert out.read_text() == "up\ntold\n", "and it was not told again"
        os.kill(left, signal.SIGKILL)  # fails if it is not there
        os.waitpid(left, 0)
    assert "migration_proxy_killed" not in said.getvalue()


@pytest.mark.root
def test_the_proxy_does_not_go_before_the_guests_with_its_agent() -> None:
    said = io.StringIO()
    with short_directory() as place:
        keeper = ProxyKeeper(FOR_EVER, place / "ctl", JsonLog(said), lambda: False)

        def urgently() -> None:
            os.setpriority(os.PRIO_PROCESS, 0, -5)  # of this thread, and of whom it starts
            keeper.run()

        thread = threading.Thread(target=urgently, daemon=True)
        thread.start()
        until(lambda: "migration_proxy_started" in said.getvalue())
        pid = json.loads(said.getvalue().splitlines()[0])["pid"]
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 0)
        keeper.stop()
        thread.join(120)
