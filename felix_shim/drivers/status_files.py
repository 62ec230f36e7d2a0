"""Endpoint-status files: the sign for the CNI plugin (and Calico's) that policy is in force.

A file is complete or absent: it is written beside its place, synced and renamed. Strays are left
alone until the caller is in sync, because before that it cannot know what is one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from libtortie.errors import KernelError

_TEMPORARY = ".new-"  # no endpoint's file starts with a dot: its name starts with an orchestrator


class StatusFiles:
    """The files of one directory, by name. Bodies are compared as text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def apply(self, desired: Mapping[str, str], *, in_sync: bool) -> None:
        """Write what is missing or different; with `in_sync`, remove everything else.

        Raises `KernelError` naming the first file that failed, after trying all of them.
        """
        errors: list[str] = []
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            present = {entry.name for entry in self._directory.iterdir() if not entry.is_dir()}
        except OSError as error:
            raise KernelError(f"endpoint status directory: {error}") from error
        for name in sorted(desired):
            try:
                self._ensure(name, desired[name])
            except OSError as error:
                errors.append(f"{name}: {error}")
        for name in sorted(present - desired.keys()) if in_sync else ():
            try:
                (self._directory / name).unlink(missing_ok=True)
            except OSError as error:
                errors.append(f"{name}: {error}")
        if errors:
            raise KernelError(f"endpoint status file {errors[0]} ({len(errors)} failed)")

    def remove(self, name: str) -> None:
        """Remove one file; absence is success. Raises `KernelError`."""
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            raise KernelError(f"endpoint status file {name}: {error}") from error

    def _ensure(self, name: str, body: str) -> None:
        if not name or "/" in name or name.startswith("."):
            raise OSError("not a file name of an endpoint")
        path, wanted = self._directory / name, body.encode()
        try:
            if path.read_bytes() == wanted:
                return
        except FileNotFoundError:
            pass
        temporary = self._directory / f"{_TEMPORARY}{os.getpid()}"
        with temporary.open("wb") as file:
            file.write(wanted)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
