"""Another program, run for one call: bounded in time and in what it may say.

It gets a session of its own, and is killed with all that it started there when it takes too long
or says too much. One that ends has ended: what it left running keeps nobody waiting, even with its
standard output open.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from libtortie.errors import Unavailable

SECONDS = 60.0
"""For one call; a DHCP client may wait long for its server."""

LONGEST = 4 << 20
"""Bytes of standard output; of standard error no more are kept."""

_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program did: its exit status, standard output and error."""

    status: int
    stdout: bytes
    stderr: bytes = b""


def run_program(
    program: Path, env: Mapping[str, str], stdin: bytes, *, seconds: float = SECONDS
) -> Finished:
    """Run a program; `Unavailable` when it hangs or cannot start. One that says too much is killed,
    as its status says, and its standard error why."""
    try:
        process = subprocess.Popen(
            [str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath), **env},
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise Unavailable(f"{program} cannot be started: {error.strerror}") from error
    with process:
        try:
            with _Talk(process, memoryview(stdin)) as talk:
                in_time = talk.until_it_ends(time.monotonic() + seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if talk.too_much or not in_time:
            os.killpg(process.pid, signal.SIGKILL)  # not yet waited for: the group is still its
    if talk.too_much:
        return Finished(process.returncode, b"", b"it was killed: it wrote without end")
    if not in_time:
        raise Unavailable(f"{program} takes longer than {seconds:g} s")
    return Finished(process.returncode, bytes(talk.stdout), bytes(talk.stderr))


@dataclass(slots=True)
class _Talk:
    """What passes between a program and us; open while it is entered."""

    process: subprocess.Popen[bytes]
    rest: memoryview
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    too_much: bool = False
    _ended: bool = False
    _waiting: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> _Talk:
        self._stack.enter_context(self._waiting)
        its_end = os.pidfd_open(self.process.pid)
        self._stack.callback(os.close, its_end)
        self._waiting.register(its_end, selectors.EVENT_READ, self._has_ended)
        child = self.process
        for pipe, event, move in (
            (child.stdin, selectors.EVENT_WRITE, self._send),
            (child.stdout, selectors.EVENT_READ, self._hear),
            (child.stderr, selectors.EVENT_READ, self._note),
        ):
            assert pipe is not None  # all three are pipes
            os.set_blocking(pipe.fileno(), False)
            self._waiting.register(pipe, event, move)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def until_it_ends(self, end: float) -> bool:
        """Talk until the program has ended and all that it said was heard; False if the clock
        reads `end` before."""
        while not self.too_much:
            left = end - time.monotonic()
            ready = self._waiting.select(0 if self._ended else max(left, 0))
            for key, _ in ready:
                key.data(key.fileobj)
            if self._ended and not any(key.data != self._send for key, _ in ready):
                return True
            if not ready and left <= 0:
                return False
        return True

    def _has_ended(self, its_end: int) -> None:
        self._waiting.unregister(its_end)
        self._ended = True

    def _send(self, pipe: IO[bytes]) -> None:
        try:
            self.rest = self.rest[os.write(pipe.fileno(), self.rest[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read: its answer is what counts
            self.rest = self.rest[:0]
        if not self.rest:
            self._done_with(pipe)

    def _hear(self, pipe: IO[bytes]) -> None:
        self.stdout += self._read(pipe)
        self.too_much = len(self.stdout) > LONGEST

    def _note(self, pipe: IO[bytes]) -> None:
        self.stderr += self._read(pipe)
        del self.stderr[LONGEST:]

    def _read(self, pipe: IO[bytes]) -> bytes:
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            self._done_with(pipe)
        return data

    def _done_with(self, pipe: IO[bytes]) -> None:
        self._waiting.unregister(pipe)
        pipe.close()
