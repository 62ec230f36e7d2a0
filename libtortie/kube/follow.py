"""List, then watch, for ever: the one loop every watcher of the API runs.

Promises: a lost API, a closed stream or an unreadable answer never yields `Gone`; history that is
gone means a new list; a kind that is not served (its CRD comes later) is silence, asked for again
within ten seconds. Streams resume from the list's own version, an event's, or a bookmark's, never
from the version of a listed item. Attempts back off with jitter, and further when the server says
or shows that it is overloaded. Setting `stop` ends it soon, wherever it waits.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from libtortie.errors import (
    InvalidInput,
    NotFound,
    TortieError,
    Unauthorized,
    Unavailable,
    first_line,
)
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import Applied, Bookmark, Gone, KubeClient, Overloaded, Synced

T = TypeVar("T", bound=KubeObject)
LOG = logging.getLogger(__name__)
STREAM_IS_FINE = 5.0  # seconds after which a stream that ends quietly, without events, was fine
RESUMES = 3  # failed resumes in a row after which we list again


@dataclass(slots=True)
class Backoff:
    """Delays in seconds: growing threefold from `first`, jittered down to a half.

    `cap` bounds them when the server is away, `quiet_cap` when it ends streams at once and without
    a reason, `overload_cap` when it is there but too slow. A server that is away pays nothing for
    attempts, and 8 s let every watch be well 15 s after its return.
    """

    first: float = 0.5
    cap: float = 8.0
    quiet_cap: float = 20.0
    overload_cap: float = 300.0
    absent: float = 8.0
    rng: Callable[[], float] = random.random
    _failures: int = field(default=0, init=False)

    def reset(self) -> None:
        """Something worked."""
        self._failures = 0

    def delay(self, error: BaseException | None) -> float:
        """How long to wait before the next attempt after `error`."""
        jitter = 0.5 + 0.5 * self.rng()
        if isinstance(error, NotFound):
            return self.absent * jitter
        cap = self.quiet_cap if error is None else self.cap
        cap = self.overload_cap if isinstance(error, Overloaded) else cap
        grown = min(cap, self.first * 3.0 ** min(self._failures, 20))
        self._failures += 1
        asked = error.retry_after if isinstance(error, Overloaded) else 0.0
        return max(grown * jitter, asked)


def follow(
    client: KubeClient,
    model: type[T],
    namespace: str = "",
    *,
    stop: threading.Event,
    label_selector: str = "",
    field_selector: str = "",
    backoff: Backoff | None = None,
    trouble: Callable[[str, TortieError, float], None] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    resumes: int = RESUMES,
) -> Iterator[Applied[T] | Gone[T] | Synced]:
    """Every object as `Applied`, then `Synced`, then changes; again so after lost history.

    `trouble(kind, error, delay)` is told of each failed attempt (default: a log line). After
    `resumes` failed attempts to go on it lists again; 0: after every failure. Raises
    `InvalidInput` when the server calls the list itself wrong (a bad selector), nothing else.
    """
    source = _Source(
        client,
        model,
        namespace,
        label_selector=label_selector,
        field_selector=field_selector,
        stop=stop,
    )
    pause = _Pause(backoff or Backoff(), stop, model.api.plural, trouble or _log, monotonic)
    while not stop.is_set():
        try:
            objects, version = source.list()
        except InvalidInput:
            raise
        except TortieError as error:
            pause.after(error)
            continue
        for found in objects:
            yield Applied(found)
        yield Synced()
        yield from _changes(source, version, pause, resumes)


class _Pause:
    """Back-off, its report, and the wait that a stop cuts short."""

    def __init__(
        self,
        backoff: Backoff,
        stop: threading.Event,
        kind: str,
        trouble: Callable[[str, TortieError, float], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._backoff, self._stop, self._kind = backoff, stop, kind
        self._trouble, self.monotonic = trouble, monotonic

    def after(self, error: TortieError | None) -> None:
        """Wait before the next attempt; None: a stream that ended at once without an error."""
        delay = self._backoff.delay(error)
        if error is not None and not self._stop.is_set():
            self._trouble(self._kind, error, delay)
        self._stop.wait(delay)

    def fine(self) -> None:
        """An attempt succeeded."""
        self._backoff.reset()


class _Source(Generic[T]):
    """What is followed, bound together."""

    def __init__(
        self,
        client: KubeClient,
        model: type[T],
        namespace: str,
        *,
        label_selector: str,
        field_selector: str,
        stop: threading.Event,
    ) -> None:
        self._client, self._model, self._namespace = client, model, namespace
        self._label_selector, self._field_selector = label_selector, field_selector
        self.stop = stop

    def list(self) -> tuple[tuple[T, ...], str]:
        """The objects as they are, and where to watch from."""
        return self._client.list(
            self._model,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )

    def watch(self, version: str) -> Iterator[Applied[T] | Gone[T] | Bookmark]:
        """One stream of changes."""
        return self._client.watch(
            self._model,
            self._namespace,
            resource_version=version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            stop=self.stop,
        )


def _changes(
    source: _Source[T], version: str, pause: _Pause, resumes: int
) -> Iterator[Applied[T] | Gone[T]]:
    """Streams from `version` on, one after the other, until only a new list helps."""
    failed = 0
    while not source.stop.is_set():
        began = pause.monotonic()
        lived = False
        failure: TortieError | None = None
        try:
            for event in source.watch(version):
                lived = True
                if isinstance(event, Bookmark):
                    version = event.resource_version or version
                    continue
                version = event.object.metadata.resource_version or version
                yield event
        except TortieError as error:
            failure = error
        if lived or (failure is None and pause.monotonic() - began >= STREAM_IS_FINE):
            pause.fine()
            failed = 0
        elif failure is None:
            pause.after(None)  # closed at once, without a reason: do not spin
        if failure is None:
            continue
        failed += 1
        pause.after(failure)
        if failed >= resumes or not isinstance(failure, Unavailable | Unauthorized):
            return


def _log(kind: str, error: TortieError, delay: float) -> None:
    LOG.warning("watching %s: %s; again in %.1f s", kind, first_line(error), delay)
