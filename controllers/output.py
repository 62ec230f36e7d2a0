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


class Plain:
    """A log for who reads standard error: what is wrong, in a line, and nothing else."""

    def __init__(self, tell: Callable[[str], None] = complain) -> None:
        self._tell = tell

    def debug(self, event: str, **fields: object) -> None:
        """Not told."""

    def info(self, event: str, **fields: object) -> None:
        """Not told."""

    def warning(self, event: str, **fields: object) -> None:
        """What is wrong with what."""
        self._tell(f"{event}: {fields.get('reason', '')}")

    def error(self, event: str, **fields: object) -> None:
        """The same."""
        self.warning(event, **fields)


def drop_output() -> None:
    """Leave nothing for the interpreter to write, and complain about, as it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
