"""What the commands print: results to standard output, the rest to standard error, where it moves
no terminal's cursor. Either may be closed or full."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable

from libtortie.wording import visible


def say(line: Iterable[str]) -> None:
    """A line of the result, in pieces; what the output's encoding does not have is escaped.

    Raises OSError.
    """
    if sys.stdout is None:  # the caller closed it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    encoding = sys.stdout.encoding or "utf-8"
    for piece in line:
        sys.stdout.write(piece.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.write("\n")
    sys.stdout.flush()


def say_if_possible(line: Iterable[str]) -> None:
    """The same for a daemon: a full disk must not stop it, a reader that went away may."""
    try:
        say(line)
    except BrokenPipeError:
        raise
    except OSError:
        return


def note(line: str) -> None:
    """A line to standard error, if there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{visible(line)}\n")
            sys.stderr.flush()


def complain(line: str) -> None:
    """What went wrong."""
    note(f"Error: {line}")


class Once:
    """Complains of what lasts once, until it is over or something else is wrong."""

    def __init__(self, what: str, tell: Callable[[str], None] = complain) -> None:
        self._what, self._tell, self.last = what, tell, ""

    def about(self, reason: str) -> None:
        """What is wrong now; empty if nothing is."""
        if reason and reason != self.last:
            self._tell(f"{self._what}: {reason}")
        self.last = reason


def drop_output() -> None:
    """Leave nothing for the interpreter to write, and complain about, as it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
