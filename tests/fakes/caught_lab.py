"""`lab …` commands that a test catches in the act: stopped at a moment, then ended by a signal.

A test that only waits for the moment and then sends its signal hits a command that is over, when
the machine stood still in between. A stopped command stays where it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from lab.state import StateDir
from tests.fakes.running_lab import BUSY_DEADLINE_S, start, start_when_free, when_free

Command = subprocess.Popen[str]


def caught(
    state: StateDir, *arguments: str, said: Path, moment: Callable[[], bool], over: str
) -> Command:
    """A command that starts a lab, stopped at a moment; begun anew while that was slept through.

    `over` is what it says when nothing can interrupt it any more.
    """
    end = time.monotonic() + BUSY_DEADLINE_S
    while True:
        child = start_when_free(state, *arguments, output=said)
        if stopped(child, moment) and over not in said.read_text():
            return child
        let_end(child, said, over)
        when_free(state, "down")
        assert time.monotonic() < end, "the moment never came"


def caught_again(state: StateDir, *arguments: str, said: Path, word: str, over: str) -> Command:
    """A command of a lab that is up, stopped when it has said a word; begun anew if it was over."""
    end = time.monotonic() + BUSY_DEADLINE_S
    while True:
        child = start(state, *arguments, output=said)
        if stopped(child, lambda: word in said.read_text()) and over not in said.read_text():
            return child
        let_end(child, said, over)
        assert time.monotonic() < end, "the moment never came"


def stopped(child: Command, moment: Callable[[], bool]) -> bool:
    """Stop a command's process group at a moment; False when the command had ended before."""
    while not moment() and child.poll() is None:
        time.sleep(0.001)
    if child.poll() is not None:
        return False
    while True:
        os.killpg(child.pid, signal.SIGSTOP)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            flags = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
            if seen := os.waitid(os.P_PID, child.pid, flags):
                return seen.si_code == os.CLD_STOPPED
            time.sleep(0.001)
        # In vfork a parent stops only when its child, stopped before it, has begun its program.
        os.killpg(child.pid, signal.SIGCONT)
        time.sleep(0.01)


def let_end(child: Command, said: Path, over: str) -> None:
    """Let a command go on to its own end: it was too quick, and not broken."""
    words = last_words(child)
    assert over in said.read_text(), words


def ctrl_c(child: Command) -> None:
    """Press it for a stopped command, and wait until that has ended with 1."""
    os.killpg(child.pid, signal.SIGINT)
    words = last_words(child)
    assert child.returncode == 1, words


def last_words(child: Command) -> str:
    """What a command, let go, says on standard error to its end. One that hangs is killed."""
    try:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGCONT)
        return child.communicate(timeout=600)[1]
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
