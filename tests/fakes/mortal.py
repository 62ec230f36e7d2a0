"""Dying at a chosen step: what a real process does to the world, and SIGKILL before it does it.

`Steps` hooks the lowest layer that still has names: netlink changes, sysctl writes, SQLite's
transactions, lock files, renames of the agent's state file, IPAM's promotions. The program above
runs unmodified. A step is announced *before* it is done, so dying there is dying right after the
step before.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cni_plugin import wiring
from cni_plugin.locks import FileLocks
from felix_shim.owners import OwnerKeeper
from felix_shim.state import StateFile
from libtortie.datastore.sqlite_file import SqliteFile
from libtortie.linux import sysctl
from libtortie.linux.channel import Channel

Tell = Callable[[str], None]
TRANSACTION = ("BEGIN IMMEDIATE", "COMMIT")


def die() -> None:
    """kill -9, by ourselves: nothing of this process runs on."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal may take other threads first


class Steps:
    """Tells every step to `tell`, by name, on the thread that is about to take it."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._around(Channel, "request", lambda args: f"netlink {args[4]}", after=False)
        self._around(Channel, "together", _changes, after=False)
        self._around(sysctl, "write_sysctl", lambda args: f"sysctl {args[0]}", after=False)
        self._around(FileLocks, "_lock", lambda _: "lock")
        self._around(Path, "unlink", lambda args: f"unlink {args[0].suffix}", after=False)
        self._around(wiring, "dispatch", lambda _: "dispatch")
        self._around(StateFile, "save", lambda _: "save")
        self._around(OwnerKeeper, "attempt", lambda _: "promote")
        trace_transactions(tell)

    def _around(
        self, owner: Any, name: str, describe: Callable[[tuple[Any, ...]], str], after: bool = True
    ) -> None:
        original = getattr(owner, name)

        def told(*args: Any, **options: Any) -> Any:
            what = describe(args)
            self._tell(what)
            result = original(*args, **options)
            if after:
                self._tell(f"{what} done")
            return result

        setattr(owner, name, told)


def _changes(args: tuple[Any, ...]) -> str:
    return f"netlink {'; '.join(change.what for change in args[1])}"


def trace_transactions(tell: Tell) -> None:
    """Tell when a transaction of SQLite is about to begin and to be committed."""
    original = SqliteFile.open

    def traced(self: SqliteFile) -> sqlite3.Connection:
        connection = original(self)

        def statement(text: str) -> None:
            if text in TRANSACTION:
                tell(f"sqlite {text}")

        connection.set_trace_callback(statement)
        return connection

    SqliteFile.open = traced  # type: ignore[method-assign]  # what this module is for
