"""A watch that outlives its connection: resumed where it stopped, on whichever endpoint answers.

A stream that says nothing may be idle or dead. An idle one is asked for progress now and then;
whoever does not answer that is left. Progress itself moves nothing: etcd up to 3.4.24 and 3.5.7
may report a revision whose events it has not sent yet. So a quiet watch resumes from the last
event it saw, and is `Compacted` when that is too long ago.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Self

from libtortie.datastore import etcd_messages as messages
from libtortie.datastore.etcd_answers import changes_of
from libtortie.datastore.etcd_cluster import EtcdCluster
from libtortie.datastore.etcd_rpc import Failure, Message, Stream, cancelled
from libtortie.datastore.port import Event
from libtortie.datastore.records import Change, counted, event_of
from libtortie.errors import Compacted, TortieError, Unauthorized, Unavailable
from libtortie.model.keys import Scope, scope_bounds

PAUSE = 0.05
LONGEST_PAUSE = 1.0


class EtcdWatch:
    """The `Watch` of the port."""

    def __init__(self, cluster: EtcdCluster, scope: Scope, revision: str) -> None:
        self._cluster = cluster
        self._low, self._high = scope_bounds(scope)
        self._position = counted(revision)
        self._pending: deque[Change] = deque()
        self._cluster_id = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._line: _Line | None = None

    def __iter__(self) -> Iterator[Event]:
        if self._position < 0:
            raise Compacted("not a revision of this store: list again")
        while not self._ended():
            if self._pending:
                yield event_of(self._pending.popleft())
                continue
            response = self._next()
            if response is None:
                return
            self._pending.extend(changes_of(response))
            if self._pending:
                self._position = self._pending[-1].revision

    def close(self) -> None:
        """End the watch, from any thread; nothing more is yielded."""
        with self._lock:
            self._closed.set()
            if self._line is not None:
                self._line.close()

    def _ended(self) -> bool:
        return self._closed.is_set() or self._cluster.closed

    def _next(self) -> Message | None:
        """The next response of a stream that works; None at the end.

        Raises `Compacted`, `Unauthorized`, or `Unavailable` when patience is over.
        """
        until, pause, refused = None, 0.0, 0
        while not self._ended():
            try:
                line = self._line
                if line is None:
                    line, until = self._connect(), None
                response = line.receive()
                _require_history(response, line.target)
                return response
            except Failure as problem:
                self._hang_up(problem)
                refused += isinstance(problem.error, Unauthorized)
                if self._ended():
                    break
                now = time.monotonic()
                until = until or now + self._cluster.timing.patience
                lasting = not problem.again and not problem.stale_token
                if lasting or refused > 1 or now > until:
                    raise problem.error from problem
            except TortieError:
                self._hang_up()
                if self._ended():
                    break  # closed beneath our feet
                raise
            self._closed.wait(pause)
            pause = min(max(2 * pause, PAUSE), LONGEST_PAUSE)
        return None

    def _connect(self) -> _Line:
        """A stream that the server has confirmed, from the position on."""
        start = messages.watching(self._low, self._high, self._position + 1)
        line = _Line(self._cluster, start)
        with self._lock:
            self._line = line
            if self._closed.is_set():
                line.close()
        created = line.receive()
        _require_history(created, line.target)
        self._require_same_store(created.header)
        return line

    def _require_same_store(self, header: Message) -> None:
        """Raise `Compacted` where the position is another store's (wiped, restored).

        A member that lags behind is none: it is asked again with the others.
        """
        same = self._cluster_id in (0, header.cluster_id)
        self._cluster_id = header.cluster_id
        if same and header.revision < self._position:
            same = self._cluster.revision(self._low) >= self._position
        if not same:
            raise Compacted(f"revision {self._position} is not of this store: list again")

    def _hang_up(self, problem: Failure | None = None) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close(problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Line:
    """One stream with its heartbeat, which runs on the thread that feeds the stream.

    The clock stands still while nobody waits in `receive`: a slow reader is no dead server.
    """

    def __init__(self, cluster: EtcdCluster, create: Message) -> None:
        self._timing = cluster.timing
        self._create = create
        self._over = threading.Event()
        self._waiting_since: float | None = None
        self._asked = False
        self._confirmed = False
        self._silent = False
        self._stream: Stream | None = None
        self._stream, self._tell = cluster.watch(self._requests())
        self.target = self._stream.target

    def receive(self) -> Message:
        """The next response. Raises `Failure`."""
        if self._stream is None:
            raise AssertionError("a line has a stream")
        self._asked, self._waiting_since = False, time.monotonic()
        try:
            response = self._stream.receive()
        except Failure as problem:
            self._over.set()
            if self._silent:
                silent = Unavailable(f"etcd at {self.target}: the watch fell silent")
                raise Failure(silent, untouched=True, again=True) from problem
            raise
        finally:
            self._waiting_since = None
        self._confirmed = True
        return response

    def close(self, problem: Failure | None = None) -> None:
        """Let `receive` fail, from any thread; the cluster learns from a problem."""
        self._over.set()
        if self._stream is not None:
            self._stream.cancel()
        if problem is not None:
            self._tell(problem)

    def _requests(self) -> Iterator[Message]:
        yield self._create
        tick = min(self._timing.progress, self._timing.silence) / 4
        while not self._over.wait(tick):
            since = self._waiting_since
            if since is None:
                continue
            quiet = time.monotonic() - since
            idle = self._timing.progress if self._confirmed else 0.0
            if quiet > idle + self._timing.silence:
                self._silent = True
                self.close()
                return
            if self._confirmed and quiet > idle and not self._asked:
                self._asked = True
                yield messages.progress()


def _require_history(response: Message, target: str) -> None:
    """Raise what a response says that ends a watch."""
    if response.compact_revision:
        raise Compacted(f"history begins at {response.compact_revision}: list again")
    if response.canceled:
        raise cancelled(response.cancel_reason, target)
