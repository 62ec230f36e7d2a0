"""A small program with the agent's keeper: `KeptProgram` runs a script of which every agent begins
with `past = keep()`, and sees what its agents say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes.node_process import DEADLINE, until

CHECKOUT = Path(__file__).parents[2]
HEAD = """
import os, signal, sys, threading, time
from pathlib import Path
from felix_shim import keeper
HERE = Path(__file__).parent
def say(*words):
    with (HERE / "said").open("a") as file:
        print(os.getpid(), *words, file=file)
"""
HEEDING = ("env", "--default-signal=HUP,INT,TERM")
"""Signals that the tests themselves were told to ignore would be inherited."""
WAITS = "past = keeper.keep(); say('agent', past.agents, past.last); signal.pause()"


class KeptProgram:
    """One such program; `close` leaves nothing of it."""

    def __init__(self, root: Path, script: str = WAITS, *, before: Sequence[str] = ()) -> None:
        self.root = root
        self.write(script)
        errors = self.root / "stderr"
        with errors.open("ab") as file:
            self.process = subprocess.Popen(
                [*HEEDING, *before, sys.executable, str(root / "script.py")],
                stdin=subprocess.DEVNULL,
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )

    def write(self, script: str) -> None:
        """Put a script in the place of what there is."""
        draft = self.root / "script.new"
        draft.write_text(HEAD + script)
        draft.rename(self.root / "script.py")

    def said(self, word: str) -> list[tuple[int, str]]:
        """Who said that, and what else."""
        try:
            lines = (self.root / "said").read_text().splitlines()
        except FileNotFoundError:
            return []
        parts = [[*line.split(" ", 2), ""] for line in lines]
        return [(int(pid), rest.strip()) for pid, what, rest, *_ in parts if what == word]

    def told(self, event: str) -> list[dict[str, Any]]:
        """The keeper's own lines of one event."""
        lines = [json.loads(one) for one in (self.root / "stderr").read_text().splitlines()]
        return [one for one in lines if one["event"] == event]

    def agent(self, number: int = 0) -> int:
        """The pid of this agent, from 0, once it is there."""
        until(f"agent {number} is there", lambda: len(self.said("agent")) > number)
        return self.said("agent")[number][0]

    def ends(self) -> int:
        """The keeper's exit status."""
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        """End the keeper; the kernel ends its agent."""
        self.process.kill()
        self.process.wait()
        until("no agent is left", lambda: not any(map(alive, self.pids())))

    def pids(self) -> set[int]:
        """Of all agents there were."""
        return {pid for pid, _ in self.said("agent")}


def alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
