"""`qps` and `burst`: how fast a fallback may ask the Kubernetes API. The agent is not throttled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from libtortie.kube.objects import KubeObject
from libtortie.kube.port import KubeReader, at_once

T = TypeVar("T", bound=KubeObject)

DEFAULT_BURST = 10
"""Calls that may be made at once where only `qps` is set; client-go's."""


class Throttled:
    """A `KubeReader` of at most `qps` calls a second, after the first `burst`."""

    def __init__(
        self,
        inner: KubeReader,
        qps: float,
        burst: int = DEFAULT_BURST,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner = inner
        self._each = 1 / qps
        self._slack = self._each * (max(burst, 1) - 1)
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = monotonic()

    def get(self, model: type[T], name: str, namespace: str = "") -> T:
        """One object, when it is its turn."""
        self._wait()
        return self._inner.get(model, name, namespace)

    def list(
        self,
        model: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[tuple[T, ...], str]:
        """Objects, when it is their turn."""
        self._wait()
        return self._inner.list(
            model, namespace, label_selector=label_selector, field_selector=field_selector
        )

    def pages(
        self, model: type[T], namespace: str = "", *, before: Callable[[], None] = at_once
    ) -> Iterator[tuple[tuple[T, ...], str]]:
        """Objects a page at a time, each when it is its turn."""

        def turn() -> None:
            before()
            self._wait()

        return self._inner.pages(model, namespace, before=turn)

    def _wait(self) -> None:
        with self._lock:
            now = self._monotonic()
            turn = max(self._next, now)
            self._next = turn + self._each
        if turn - self._slack > now:
            self._sleep(turn - self._slack - now)
