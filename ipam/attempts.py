"""The compare-and-swap loop: decide on fresh reads, commit, and again after a conflict.

It is bounded twice, by attempts and by a clock of its own, which starts when the operation's
lock is held: waiting for other attachments of the node is not part of it. Who waited while the
store gave another no answer has had that answer, too: a silent store is asked once for all that
wait, not by one after another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from libtortie.datastore.port import Datastore
from libtortie.errors import Closed, Conflict, NotFound, PartialCommit, TortieError, Unavailable

from .annals import Annals
from .cache import Cache
from .settings import NotReady
from .transaction import Transaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How long an operation tries: commits, seconds, and the pauses between (seconds)."""

    attempts: int = 100
    seconds: float = 30.0
    pause: float = 0.002
    longest_pause: float = 0.25


DEFAULT_RETRY = Retry()

PREPARATIONS = 32
"""Most commits that only prepare (a healed handle, a claimed block) within one operation."""


class Again:
    """A decision that staged a preparation: commit it, then decide anew."""


AGAIN = Again()


@dataclass(slots=True)
class Progress:
    """What is known of an operation across its attempts."""

    uncertain: bool = False
    """A commit stopped in the middle or its answer was lost: some of it may be stored."""


def is_transient(error: Exception) -> bool:
    """Whether another attempt may do better."""
    again = isinstance(error, Conflict | NotFound | PartialCommit | Unavailable)
    return again and not isinstance(error, NotReady | Closed)


@dataclass(slots=True)
class Trouble:
    """How and when (monotonic seconds) the store last gave no answer."""

    at: float = 0.0
    error: Unavailable | None = None

    def during(self, began: float) -> Unavailable | None:
        """What somebody met since then."""
        if self.error is None or self.at <= began:
            return None
        return Unavailable(str(self.error))


@dataclass(frozen=True, slots=True)
class Attempts:
    """Runs decisions against a store. `cache` learns what they read and wrote."""

    store: Datastore
    retry: Retry
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    cache: Cache | None = None
    annals: Annals | None = None
    trouble: Trouble = field(default_factory=Trouble)

    def run(
        self,
        what: str,
        decide: Callable[[Transaction], T | Again],
        *,
        progress: Progress | None = None,
        lock: AbstractContextManager[object] | None = None,
        failed: TortieError | None = None,
    ) -> T:
        """The result of the first decision that was committed.

        `lock` (re-enterable one after another) is held during each attempt. `failed` is how an
        attempt made elsewhere ended: it counts. Raises what `decide` raises, and after the last
        attempt `Conflict` or `Unavailable`.
        """
        progress = progress or Progress()
        deadline: float | None = None
        failures = preparations = 0
        while True:
            error, failed = failed, None
            if error is None:
                began = self.monotonic()
                try:
                    with lock or nullcontext():
                        if deadline is None:
                            deadline = self.monotonic() + self.retry.seconds
                        if met := self.trouble.during(began):
                            raise met
                        result = self._attempt(decide, progress)
                except TortieError as problem:
                    if not is_transient(problem):
                        raise
                    error = problem
            if error is not None:
                failures += 1
                late = deadline is not None and self.monotonic() >= deadline
                if failures >= self.retry.attempts or late:
                    raise _final(what, error) from error
                self.sleep(self._pause(failures))
            elif not isinstance(result, Again):
                return result
            else:
                preparations += 1
                if preparations >= PREPARATIONS:
                    raise Conflict(f"{what}: gave up after {preparations} preparations")

    def _attempt(self, decide: Callable[[Transaction], T | Again], progress: Progress) -> T | Again:
        tx = Transaction(self.store, self.cache, annals=self.annals)
        try:
            result = decide(tx)
            try:
                tx.commit()
            except (PartialCommit, Unavailable):
                progress.uncertain = True
                raise
        except Unavailable as error:
            if is_transient(error):
                self.trouble.at, self.trouble.error = self.monotonic(), error
            raise
        return result

    def _pause(self, failures: int) -> float:
        longest = min(self.retry.pause * 2.0 ** min(failures, 16), self.retry.longest_pause)
        return longest * random.uniform(0.5, 1.0)


def _final(what: str, error: TortieError) -> TortieError:
    kind = Unavailable if isinstance(error, Unavailable) else Conflict
    return kind(f"{what}: gave up: {error}")
