"""Several endpoints as one: deadlines, fail-over, tokens, and what may be sent twice.

A read is repeated, elsewhere if need be, until its deadline. A write is repeated only when it
certainly was not carried out: nothing was sent, or the server refused before doing anything.
Otherwise its outcome is unknown and it is `Unavailable`: the caller reads again and decides.
Every request says that the member must know a leader, so that one cut off from the others
refuses instead of answering from its past.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from libtortie.datastore import etcd_messages as messages
from libtortie.datastore.etcd_answers import header_of, range_of
from libtortie.datastore.etcd_config import EtcdConfig, Timing, read_tls, targets_of
from libtortie.datastore.etcd_rpc import (
    Channel,
    Connection,
    Failure,
    Message,
    Metadata,
    Stream,
    means_no_authentication,
)
from libtortie.datastore.etcd_timeline import Timeline
from libtortie.deadline import Deadline
from libtortie.errors import Closed, InvalidInput, Unauthorized, Unavailable

PAUSE = 0.05
LONGEST_PAUSE = 0.5
TOKENS = 2
"""New tokens within one call: a second covers a server that restarts in between."""

_LEADER = ("hasleader", "true")


class EtcdCluster:
    """Thread-safe; connects when first asked."""

    def __init__(
        self,
        config: EtcdConfig,
        timing: Timing,
        *,
        on_call: Callable[[str], None] | None = None,
        choose: Callable[[int], int],
    ) -> None:
        """`choose(n)` picks the endpoint to begin with. Raises `InvalidInput`."""
        self.timing = timing
        self.timeline = Timeline()
        self._config = config
        self._on_call = on_call
        targets = targets_of(config)
        self._tls = read_tls(config) if targets.tls else None
        self._lock = threading.Lock()
        self._token_lock = threading.Lock()
        self._token: str | None = None
        self._closing = threading.Event()
        self._channels = [self._open(target) for target in targets.addresses]
        self._at = choose(len(self._channels))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def read(self, method: str, request: bytes) -> bytes:
        """One answer, from whichever endpoint gives it within the deadline."""
        return self._asked(method, request, repeatable=True)

    def write(self, request: bytes) -> bytes:
        """The answer of a transaction. `Unavailable` may mean that it was carried out."""
        return self._asked("txn", request, repeatable=False)

    def watch(self, requests: Iterator[Message]) -> tuple[Stream, Callable[[Failure], None]]:
        """A stream, and whom to tell why it failed. Raises `Failure`."""
        channel, token = self._current(), None
        try:
            token = self._require_token(channel, self._deadline())
            stream = channel.watch(requests, _metadata(token))
        except Failure as problem:
            self._learn(problem, channel, token)
            raise
        return stream, lambda problem: self._learn(problem, channel, token)

    def revision(self, path: str) -> int:
        """The cluster's revision now, by way of a path one may read."""
        return range_of(self.read("range", messages.where_are_we(path))).revision

    def close(self) -> None:
        """End everything that is under way."""
        self._closing.set()
        with self._lock:
            for channel in self._channels:
                channel.close()

    def require_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self.closed:
            raise Closed("the datastore is closed")

    def _asked(self, method: str, request: bytes, *, repeatable: bool) -> bytes:
        sent = self.timeline.moment()
        answer, connection = self._call(method, request, repeatable=repeatable)
        self.timeline.learn(header_of(answer, transaction=not repeatable), sent, connection)
        return answer

    def _call(self, method: str, request: bytes, *, repeatable: bool) -> tuple[bytes, Connection]:
        deadline = self._deadline()
        tokens, pause, tried = 0, PAUSE, 0
        while True:
            self.require_open()
            channel, token = self._current(), None
            try:
                token = self._require_token(channel, deadline)
                seconds = self._share(deadline, divided=repeatable)
                connection = channel.connection()
                answer: bytes = channel.call(method, request, seconds, _metadata(token))
                channel.served(connection)
                return answer, connection
            except Failure as problem:
                self.require_open()
                self._learn(problem, channel, token)
                tried += 1
                if tokens < TOKENS and self._is_stale(problem, token):
                    tokens += 1
                    continue
                if not problem.untouched and not repeatable and problem.again:
                    raise Unavailable(f"outcome unknown, read again: {problem}") from problem
                if not problem.again or deadline.step(pause) < pause:
                    raise problem.error from problem
            if tried % len(self._channels) == 0:
                self._closing.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _deadline(self) -> Deadline:
        return Deadline(self.timing.call)

    def _share(self, deadline: Deadline, *, divided: bool) -> float:
        """Seconds for one endpoint: what is left, or part of it where there are others to ask."""
        parted = divided and len(self._channels) > 1
        return max(deadline.step(self.timing.attempt if parted else self.timing.call), 0.01)

    def _require_token(self, channel: Channel, deadline: Deadline) -> str:
        """The token in force, asked for if there is none; empty where none is needed."""
        if not self._config.username:
            return ""
        with self._token_lock:
            if self._token is None:
                self._token = self._authenticate(channel, deadline)
            return self._token

    def _authenticate(self, channel: Channel, deadline: Deadline) -> str:
        request = messages.authentication(self._config.username, self._config.password)
        try:
            seconds = self._share(deadline, divided=True)
            answer = channel.call("authenticate", request, seconds, (_LEADER,))
        except Failure as problem:
            if means_no_authentication(problem):
                return ""
            raise problem.before_the_request() from problem
        return str(answer.token)

    def _is_stale(self, problem: Failure, token: str | None) -> bool:
        """Whether a new token may help: also where none was needed when we last asked."""
        if token is None or not self._config.username:
            return False
        return problem.stale_token or (not token and isinstance(problem.error, Unauthorized))

    def _learn(self, problem: Failure, channel: Channel, token: str | None) -> None:
        """Forget a refused token; turn away from an endpoint that failed."""
        if self._is_stale(problem, token):
            with self._token_lock:
                if self._token == token:
                    self._token = None
        if not problem.again:
            return
        with self._lock:
            if not self.closed and self._channels[self._at] is channel:
                self._renew(self._at)
                self._at = (self._at + 1) % len(self._channels)

    def _renew(self, place: int) -> None:
        """A new channel if the certificates on disk are others than those that failed."""
        channel = self._channels[place]
        if channel.tls is None:
            return
        try:
            current = read_tls(self._config)
        except InvalidInput:
            return  # in the middle of being replaced, or gone: the old ones may still do
        if current != channel.tls:
            self._tls = current
            self._channels[place] = self._open(channel.target)
            channel.close()

    def _current(self) -> Channel:
        with self._lock:
            return self._channels[self._at]

    def _open(self, target: str) -> Channel:
        return Channel(target, self._tls, self.timing, self._on_call)


def _metadata(token: str) -> Metadata:
    return (_LEADER, ("token", token)) if token else (_LEADER,)
