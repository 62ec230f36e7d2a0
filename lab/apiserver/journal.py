"""The store on disk: a snapshot, renamed into place, and a log of the writes after it.

A killed server loses nothing it answered: each write is in the log (in the kernel's hands) before
the answer leaves. A line torn by the kill was never answered and is dropped. It does not promise
to survive a power cut between snapshots.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO

from lab.apiserver.store import FIRST_VERSION, Event, Json, Store

SNAPSHOT_EVERY = 2000  # writes


class Journal:
    """Keeps a store's writes in `path` (snapshot) and `path.log`. Used under the store's lock."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._log_path = path.with_name(f"{path.name}.log")
        self._store = store
        self._log: IO[str] | None = None
        self._written = 0

    def open(self) -> None:
        """Restore what is on disk, then record from here on. Raises `ValueError` if unreadable."""
        empty: Json = {"version": FIRST_VERSION, "objects": {}}
        snapshot = json.loads(self._path.read_text()) if self._path.exists() else empty
        self._store.restore(snapshot, _read_log(self._log_path))
        self._save()
        self._store.listener = self._record

    def close(self) -> None:
        """Write a last snapshot and stop recording."""
        self._store.listener = None
        self._save()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _record(self, event: Event) -> None:
        if self._log is None:
            raise RuntimeError("the journal is closed")
        if self._written >= SNAPSHOT_EVERY:
            self._save()  # the store as it was before this event
        line = {
            "version": event.version,
            "type": event.type,
            "resource": event.resource,
            "key": list(event.key),
            "body": event.body,
        }
        self._log.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._log.flush()
        self._written += 1

    def _save(self) -> None:
        """Snapshot first, then an empty log: a crash between the two replays old writes, which
        the versions in both tell apart."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        with temporary.open("w") as file:
            json.dump(self._store.snapshot(), file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        if self._log is not None:
            self._log.close()
        self._log = self._log_path.open("w")
        self._written = 0


def _read_log(path: Path) -> list[Event]:
    """The whole lines of a log; a torn last one is dropped, any other raises `ValueError`."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    events = []
    for line in lines[:-1]:  # what follows the last newline was never answered
        found = json.loads(line)
        namespace, name = found["key"]
        events.append(
            Event(
                found["version"],
                found["type"],
                found["resource"],
                (namespace, name),
                found["body"],
                None,
            )
        )
    return events
