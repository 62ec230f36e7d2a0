"""Notice commits of any process to a SQLite file: one thread, one connection, one feed.

A commit in WAL mode is written to the `-wal` file (inotify wakes us) and then published in
shared memory, which no event announces. So after the first of a commit's events the thread lets
0.2 ms pass and looks, and then again after 0.5, 2, 8… ms, until it is back at its idle pace of
100 ms, which alone would do where inotify is not to be had. What this process commits the feed
has by then: it is told where the log ends, and wakes nobody.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

from libtortie.datastore.feed import Feed
from libtortie.datastore.inotify import FileWatch
from libtortie.datastore.sqlite_file import NEWEST, SqliteFile
from libtortie.errors import TortieError

IDLE = 0.1
IDLE_WITHOUT_INOTIFY = 0.02
COMMIT = 0.0002
"""A commit is several writes, and there is nothing to see before the last."""
BRISK = 0.0005
SLOWER = 4
"""By how much each look that found nothing lets the next one wait longer."""

_log = logging.getLogger(__name__)


class Follower:
    """Tells `feed` of every commit that is made after the constructor returned."""

    def __init__(self, file: SqliteFile, feed: Feed) -> None:
        """Raises `Unavailable` or `Malformed` when the file cannot be read."""
        self.feed = feed
        self._file = file
        self._stopping = threading.Event()
        with file.translated():
            self._connection = file.open()
            try:
                self._version = self._data_version()
            except sqlite3.Error:
                self._connection.close()
                raise
        self._watch = _file_watch(file.path.with_name(file.path.name + "-wal"))
        self._thread = threading.Thread(target=self._run, name="sqlite-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every watch and the thread, and release everything."""
        self.feed.close()
        self._stopping.set()
        if self._watch is not None:
            self._watch.interrupt()
        self._thread.join()
        self._connection.close()
        if self._watch is not None:
            self._watch.close()

    def _run(self) -> None:
        try:
            with self._file.translated():
                self._follow()
        except TortieError as error:
            self.feed.fail(str(error))
        except BaseException as error:
            self.feed.fail(f"{self._file.path}: nobody follows it any more: {error!r}")
            raise

    def _follow(self) -> None:
        idle = IDLE if self._watch is not None else IDLE_WITHOUT_INOTIFY
        delay = idle
        while not self._stopping.is_set():
            touched = self._wait(delay)
            self._file.check_identity()
            version = self._data_version()
            if version != self._version:
                self._version = version
                self.feed.reached(self._newest())
                touched = True
            delay = BRISK if touched else min(SLOWER * delay, idle)

    def _wait(self, seconds: float) -> bool:
        if self._watch is not None:
            touched = self._watch.wait(seconds)
            if touched:
                self._stopping.wait(COMMIT)
                self._watch.wait(0.0)  # of the same commit: looked at together
            return touched
        self._stopping.wait(seconds)
        return False

    def _data_version(self) -> int:
        """A number that differs after a commit of any other connection."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _newest(self) -> int:
        """The revision at which the log ends."""
        (revision,) = self._connection.execute(NEWEST).fetchone()
        return int(revision)


def _file_watch(wal: Path) -> FileWatch | None:
    try:
        return FileWatch(wal)
    except OSError as error:
        _log.warning("no inotify for %s (%s): changes are polled for", wal, error)
        return None
