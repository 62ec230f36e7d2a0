"""A node's facts on their way to the history: a file that any of its processes appends to.

Appending costs one write(2) and no round trip, so it may stand in the path of an ADD; what was
appended survives a kill -9 of every process of ours (not a loss of power). The agent alone
empties it: it seals the file by a rename and stores what is in it, again after a kill, which makes
the same records once more and changes nothing.

Bounded: a spool that is full, because the datastore is away for long, takes nothing more; that
is told, and what it cost is counted. A line that cannot be read is passed over. A fact that the
datastore refuses for what it is goes to a spool of its own, which nobody empties.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from libtortie.complaint import Complaint
from libtortie.datastore.port import Datastore
from libtortie.errors import Malformed, first_line
from libtortie.files import read_bytes
from libtortie.history import Refusal, keep
from libtortie.json_lines import objects
from libtortie.jsonlog import Log, NullLog
from libtortie.model.history import Fact, from_wire, to_wire

SPOOL_BYTES = 4 << 20
SEALED = ".sealed"
REFUSED = ".refused"
HISTORY_SPOOL = "history.spool"
"""The file's name in a node's state directory."""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
"""Not to wait where a pipe stands in its place."""


@dataclass(slots=True)
class Spool:
    """The file at `path`; safe from any thread and process. `lost` counts facts it did not take."""

    path: Path
    most: int = SPOOL_BYTES
    log: Log = field(default_factory=NullLog)
    lost: int = 0
    _sealed: Path = field(init=False)
    _complaint: Complaint = field(init=False)

    def __post_init__(self) -> None:
        self._sealed = self._beside(SEALED)
        self._complaint = Complaint(self.log, "history_lost")

    def _beside(self, end: str) -> Path:
        return self.path.with_name(self.path.name + end)

    def append(self, facts: Sequence[Fact]) -> None:
        """Keep facts. Never raises: a full disk loses them, and the log says so once."""
        lines = [json.dumps(to_wire(one), ensure_ascii=False) for one in facts]
        data = "\n".join(["", *lines, ""]).encode(errors="replace")
        reason = self._write(data)
        if reason:
            self.lost += len(facts)
        self._complaint.about(reason, file=str(self.path), facts=self.lost)

    def _write(self, data: bytes) -> str:
        """Append bytes, or say why not."""
        try:
            with self._locked() as file:
                if os.fstat(file).st_size + len(data) > self.most:
                    return f"the file holds {self.most} bytes: the datastore took none for long"
                if os.write(file, data) < len(data):
                    return "the disk is full"
        except OSError as error:
            return first_line(error)
        return ""

    def drain(self, store: Datastore) -> int:
        """Store what is here; how many facts that were. Raises what the datastore raises, and
        OSError: then all of it stays here.

        What the datastore refuses is set aside, again after a kill, and holds up nothing.
        """
        stored = 0
        while self._sealed.exists() or self._seal():
            data = read_bytes(self._sealed)
            facts = read_facts(data)
            refused = keep(store, facts, hashlib.sha256(data).hexdigest())
            if refused:
                self._set_aside(refused)
            self._sealed.unlink()
            stored += len(facts) - len(refused)
        return stored

    def _set_aside(self, refused: Sequence[Refusal]) -> None:
        aside = Spool(self._beside(REFUSED), self.most, self.log)
        aside.append([one.fact for one in refused])
        reason = refused[0].reason
        self.log.error("history_refused", facts=len(refused), reason=reason, file=str(aside.path))

    def _seal(self) -> bool:
        """Set the file aside, if there is anything in it."""
        if not self.path.exists():
            return False
        with self._locked() as file:
            if not os.fstat(file).st_size:
                return False
            self.path.rename(self._sealed)
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, which nobody else writes to or renames meanwhile."""
        while True:
            file = os.open(self.path, _FLAGS, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if self._is_at_path(file):
                    yield file
                    return
            finally:
                os.close(file)

    def _is_at_path(self, file: int) -> bool:
        """Whether an open file was not renamed before it was locked."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def read_facts(data: bytes) -> tuple[Fact, ...]:
    """The facts of a spool's lines; what a kill or a full disk has cut short is passed over."""
    found: list[Fact] = []
    for one in objects(data.decode(errors="replace")):
        with suppress(Malformed):
            found.append(from_wire("a line", one))
    return tuple(found)
