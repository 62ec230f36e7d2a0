"""Processes that do not outlive the thread that starts them, not even when it is killed."""

from __future__ import annotations

import os
from collections.abc import Sequence


def mortal(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` so that the kernel kills it with its parent.

    The kernel's promise begins once it was asked for (prctl(2), PR_SET_PDEATHSIG), and the parent
    may have been killed before: the shell looks for that. The promise is kept across exec, and
    counts the parent's *thread*: start such a process from one that lasts.
    """
    check = f'[ "$PPID" = {os.getpid()} ] && exec "$@"'
    return ["setpriv", "--pdeathsig", "KILL", "sh", "-c", check, "sh", *command]
