"""What a process asks of the kernel about itself: to die with its parent, its name, its threads.

prctl(2) has no place in Python's library, hence ctypes.
"""

from __future__ import annotations

import ctypes
import os
import signal

from libtortie.errors import KernelError

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> bool:
    """Have the kernel kill this process with its parent; False when that is dead already.

    The kernel counts the parent's *thread*, and forgets the promise for our own children. It
    begins when it is asked for: a parent that died before is seen by our having another one. To
    be called by a process that was just forked. Raises `KernelError`.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def call_process(name: str) -> None:
    """The name that `ps -o comm` shows, of at most 15 bytes. Raises `KernelError`."""
    _prctl(_PR_SET_NAME, name.encode())


def threads() -> int:
    """How many threads this process has, of Python's and others'."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # a count, nothing else


def _prctl(what: int, value: int | bytes) -> None:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _libc.prctl(what, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise KernelError(f"prctl {what}: {os.strerror(ctypes.get_errno())}")
