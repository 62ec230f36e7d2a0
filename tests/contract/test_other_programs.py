"""Programs that are run for one call, real ones: what they may cost us whatever they do."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from cni_plugin.child import LONGEST, run_program
from libtortie.errors import Unavailable
from tests.fakes.node_process import until

ENDLESS = 3600.0


def script(directory: Path, text: str) -> Path:
    program = directory / "program"
    program.write_text("#!/bin/sh\n" + text)
    program.chmod(0o755)
    return program


def lives(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("how", ["exec yes", "(exec yes) | cat"])
def test_one_that_writes_without_end_is_killed_with_its_children(tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    done = run_program(script(tmp_path, f"echo $$ >{pids}\n{how}\n"), {}, b"{}", seconds=ENDLESS)
    assert done.stdout == b""
    assert done.stderr == b"it was killed: it wrote without end"
    group = pids.read_text().strip()
    until("its session is empty", lambda: not _in_session(group))


def _in_session(leader: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if session == leader and state != "Z":
            found.append(path.parent.name)
    return found


def test_the_longest_answer_and_much_that_nobody_asked_for(tmp_path: Path) -> None:
    text = f"head -c {LONGEST} /dev/zero\nhead -c {LONGEST * 2} /dev/zero >&2\nexit 3\n"
    done = run_program(script(tmp_path, text), {}, b"")
    assert (done.status, len(done.stdout), len(done.stderr)) == (3, LONGEST, LONGEST)


def test_what_it_leaves_running_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A daemon of its own, with standard output and error open."""
    pid = tmp_path / "pid"
    program = script(tmp_path, f"sleep 3600 &\necho $! >{pid}\necho '{{}}'\n")
    done = run_program(program, {}, b"{}", seconds=ENDLESS)
    try:
        assert (done.status, done.stdout) == (0, b"{}\n")
        assert lives(pid.read_text().strip()), "that one is its, not ours to end"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_what_writes_on_after_it_is_not_listened_to_for_long(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    done = run_program(script(tmp_path, f"echo $$ >{pids}\nyes &\n"), {}, b"", seconds=ENDLESS)
    assert set(done.stdout) <= set(b"y\n")
    group = pids.read_text().strip()
    until("its session is empty", lambda: not _in_session(group))


def test_one_that_closes_its_output_is_waited_for_all_the_same(tmp_path: Path) -> None:
    text = "echo '{}'\nexec >&- 2>&-\nread line <go\nexit 4\n"
    os.mkfifo(tmp_path / "go")
    program = script(tmp_path, f"cd {tmp_path}\n{text}")
    go_on = threading.Thread(target=(tmp_path / "go").write_text, args=("on\n",))
    go_on.start()
    done = run_program(program, {}, b"{}", seconds=ENDLESS)
    go_on.join()
    assert (done.status, done.stdout) == (4, b"{}\n")


def test_input_and_answer_at_once_and_larger_than_a_pipe(tmp_path: Path) -> None:
    sent = b"0123456789abcdef" * 65536
    done = run_program(script(tmp_path, "exec cat\n"), {}, sent)
    assert (done.status, done.stdout) == (0, sent)


def test_many_calls_leave_no_descriptor_open(tmp_path: Path) -> None:
    quick, slow = script(tmp_path, "exit 1\n"), tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 3600\n")
    slow.chmod(0o755)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert run_program(quick, {}, b"x" * 100_000).status == 1
        with pytest.raises(Unavailable, match=r"slow takes longer than 0\.05 s"):
            run_program(slow, {}, b"x" * 100_000, seconds=0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
