"""Endpoint-status files: the sign for the CNI plugin (and Calico's) that policy is in force.

A file is complete or absent: it is written beside its place and renamed. It is not synced: what
a power failure could take of it is the sign of a pod that went with it. Strays are left alone
until the caller is in sync, because before that it cannot know what is one. A file that is still
the one that was seen last (inode, size, time of its last write) is not read again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from libtortie.errors import KernelError
from libtortie.files import NotRegular, Stamp, read_bytes, stamped

_TEMPORARY = ".new-"  # no endpoint's file starts with a dot: its name starts with an orchestrator


class StatusFiles:
    """The files of one directory, by name. Bodies are compared as text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, tuple[str, Stamp]] = {}
        self._applied: dict[str, str] | None = None
        """What the directory held when we were in sync with it last; None since a failure."""
        self._resyncs = 0

    def write(self, desired: Mapping[str, str], resyncs: int) -> None:
        """As `apply` in sync; while `resyncs` is the same, only what is new in `desired` is looked
        at, and what others did to the directory stays. Raises `KernelError`."""
        before, self._applied = self._applied, None
        if before is None or resyncs != self._resyncs:
            self.apply(desired, in_sync=True)
            self._resyncs = resyncs
            return
        try:
            for name, body in desired.items():
                if before.get(name) != body:
                    self._ensure(name, body, None)
            for name in before.keys() - desired.keys():
                (self._directory / name).unlink(missing_ok=True)
        except OSError:
            self.apply(desired, in_sync=True)  # which tries all, and says what failed
        self._applied = dict(desired)

    def apply(self, desired: Mapping[str, str], *, in_sync: bool) -> None:
        """Write what is missing or different; with `in_sync`, remove everything else.

        Raises `KernelError` naming the first file that failed, after trying all of them.
        """
        errors: list[str] = []
        self._applied = None
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            present = self._present()
        except OSError as error:
            raise KernelError(f"endpoint status directory: {error}") from error
        for name in sorted(desired):
            try:
                self._ensure(name, desired[name], present.get(name))
            except OSError as error:
                errors.append(f"{name}: {error}")
        for name in sorted(present.keys() - desired.keys()) if in_sync else ():
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError as error:
                errors.append(f"{name}: {error}")
        if errors:
            raise KernelError(f"endpoint status file {errors[0]} ({len(errors)} failed)")
        self._applied = dict(desired) if in_sync else None

    def body(self, name: str) -> str:
        """What a file says; empty where there is none. Raises `KernelError`."""
        try:
            return read_bytes(self._directory / name).decode(errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise KernelError(f"endpoint status file {name}: {error}") from error

    def remove(self, name: str) -> None:
        """Remove one file; absence is success. Raises `KernelError`."""
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise KernelError(f"endpoint status file {name}: {error}") from error

    def _present(self) -> dict[str, Stamp]:
        """What is in the directory; what was seen and is no more is forgotten."""
        with os.scandir(self._directory) as entries:
            present = {
                entry.name: stamped(entry.stat(follow_symlinks=False))
                for entry in entries
                if not entry.is_dir()
            }
        self._seen = {name: seen for name, seen in self._seen.items() if name in present}
        return present

    def _ensure(self, name: str, body: str, mark: Stamp | None) -> None:
        if not name or "/" in name or name.startswith("."):
            raise OSError("not a file name of an endpoint")
        if mark is not None and self._seen.get(name) == (body, mark):
            return
        path, wanted = self._directory / name, body.encode()
        try:
            if read_bytes(path) == wanted:
                if mark is not None:
                    self._seen[name] = body, mark
                return
        except (FileNotFoundError, NotRegular):
            pass
        temporary = self._directory / f"{_TEMPORARY}{os.getpid()}"
        temporary.write_bytes(wanted)
        temporary.chmod(0o644)
        temporary.replace(path)
        self._seen[name] = body, stamped(path.lstat())
