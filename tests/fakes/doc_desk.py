"""A desk at which a page's commands are typed: a shell whose /etc, /opt, /run and /var/lib are its
own, so that an installation touches nothing of the machine's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from libtortie.linux.netns import Netns
from tests.fakes.doc_pages import Command, unsaid
from tests.fakes.fresh_names import fresh_name

T = TypeVar("T")

SECONDS = 300.0
"""How long a command may take, on a busy machine."""
_HANDLES_TERM = 1 << (signal.SIGTERM - 1)


class Desk:
    """Commands run in `where`, with `environ` besides a user's."""

    def __init__(self, root: Path) -> None:
        self.root = self.where = root / "home"
        self.environ: dict[str, str] = {}
        self.alone = False
        """Whether each command has a network of its own."""
        self.network = ""
        """The namespace that is the desk's network, if not the machine's: its ports are free."""
        self._places = {place: root / place.strip("/").replace("/", "-") for place in _OWN}
        for place, mine in self._places.items():
            mine.mkdir()
            if place == "/etc":
                shutil.copytree(place, mine, symlinks=True, dirs_exist_ok=True)
        for one in (self.where, self._places["/etc"] / "tortie"):
            one.mkdir(exist_ok=True)

    def file(self, path: str, text: str) -> None:
        """A file; an absolute path is the desk's own."""
        self.place(path).write_text(text)

    def place(self, path: str) -> Path:
        """Where one of the desk's files is for others; its directory is made."""
        made = self.where / path
        for own, mine in self._places.items():
            if path.startswith(f"{own}/"):
                made = mine / path.removeprefix(f"{own}/")
        made.parent.mkdir(parents=True, exist_ok=True)
        return made

    def take_network(self, stack: ExitStack) -> None:
        """Have a network of its own from now on, with nothing but itself in it."""
        self.network = fresh_name("desk")
        subprocess.run(["ip", "netns", "add", self.network], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "del", self.network], check=True)
        subprocess.run(["ip", "-n", self.network, "link", "set", "lo", "up"], check=True)

    def inside(self, work: Callable[[], T]) -> T:
        """Do something in the desk's network; who listens there does so from then on."""
        if not self.network:
            return work()
        return Netns(deadline=SECONDS).call(f"/run/netns/{self.network}", work)

    def type(self, command: Command) -> str:
        """Run a command as a page has it; what it printed."""
        if command.endless:
            return self._until_told(command.line)
        done = self.run(command.line)
        text = done.stdout + done.stderr
        assert done.returncode == command.status, f"{command.line}\n{done.returncode}: {text}"
        missing = unsaid(command.says, text)
        assert not missing, f"{command.line}\nshown, but not printed: {missing}\n{text}"
        return text

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """A script, to its end."""
        return subprocess.run(
            self._argv(script),
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def start(self, script: str) -> subprocess.Popen[str]:
        """A script that goes on; whoever starts it ends it."""
        return subprocess.Popen(
            self._argv(script),
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _until_told(self, line: str) -> str:
        """Start it, tell it to end once it listens for that, and insist that it ends well."""
        process = self.start(f"exec {line}")
        try:
            child = self._handling(process)
            os.kill(child, signal.SIGTERM)
            text, _ = process.communicate(timeout=SECONDS)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert process.returncode == 0, f"{line}\n{process.returncode}: {text}"
        return text

    def _handling(self, process: subprocess.Popen[str]) -> int:
        """The process inside, once it handles SIGTERM."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if process.poll() is not None:
                raise AssertionError(f"it ended: {process.communicate()[0]}")
            for child in _children(process.pid):
                if _caught(child) & _HANDLES_TERM:
                    return child
            time.sleep(0.05)
        raise AssertionError("it does not listen for SIGTERM")

    def _argv(self, script: str) -> list[str]:
        binds = [f"mount --bind {mine} {place}" for place, mine in self._places.items()]
        network = ["--net"] if self.alone else []
        up = ["ip link set lo up"] if self.alone else []
        whole = "\n".join([*binds, *up, f"cd {self.where}", script])
        spaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *network]
        there = ["nsenter", f"--net=/run/netns/{self.network}"] if self.network else []
        return [*there, "unshare", *spaces, "bash", "-euo", "pipefail", "-c", whole]

    def _environ(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
        return {**kept, "PATH": path, "HOME": str(self.root), **self.environ}


_OWN = ("/etc", "/opt", "/run", "/var/lib")


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(one) for one in text.split()]


def _caught(pid: int) -> int:
    """The signals that a process has handlers for, as bits."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(one.split()[1], 16) for one in lines if one.startswith("SigCgt:")), 0)
