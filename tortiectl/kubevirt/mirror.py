"""Kinds of the API followed at once: their objects as they are now, whenever one of them changes.

A thread for each kind posts what `follow` yields to one queue; whoever iterates owns the objects.
A lost API never empties them. Closed, every thread has ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from libtortie.errors import TortieError, first_line
from libtortie.kube.follow import follow
from libtortie.kube.migrations import Object
from libtortie.kube.port import Applied, Gone, KubeClient, Synced

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A kind, and which of its objects."""

    model: type[Object]
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The API could not be asked; it is tried again."""

    text: str


_Message = Applied[Any] | Gone[Any] | Synced | Trouble


class Mirror:
    """Objects of several kinds."""

    def __init__(self, client: KubeClient, *wanted: Wanted) -> None:
        self._client, self._wanted = client, wanted
        self._stop = threading.Event()
        self._queue: queue.Queue[tuple[int, _Message]] = queue.Queue()
        self._objects: list[dict[str, Any]] = [{} for _ in wanted]
        self._fresh: list[dict[str, Any]] = [{} for _ in wanted]
        self._synced = [False for _ in wanted]
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(len(wanted))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        wanted = self._wanted[number]

        def trouble(kind: str, error: TortieError, delay: float) -> None:
            text = f"watching {kind}: {first_line(error)}; again in {delay:.0f} s"
            self._queue.put((number, Trouble(text)))

        try:
            for message in follow(
                self._client, wanted.model, wanted.namespace, stop=self._stop,
                label_selector=wanted.label_selector, field_selector=wanted.field_selector,
                trouble=trouble,
            ):  # fmt: skip
                self._queue.put((number, message))
        except TortieError as error:
            self._queue.put((number, Trouble(first_line(error))))

    def of(self, model: type[T]) -> dict[str, T]:
        """A kind's objects by `namespace/name`."""
        for number, wanted in enumerate(self._wanted):
            if wanted.model is model:
                return dict(self._objects[number])
        raise KeyError(model)

    def changes(self, seconds: float | None = None) -> Iterator[Trouble | None]:
        """One item whenever something may have changed, from when all kinds were read once; and
        at the latest every `seconds`. What came together is one change."""
        while True:
            try:
                got = [self._queue.get(timeout=seconds)]
            except queue.Empty:
                got = []
            while not self._queue.empty():
                got.append(self._queue.get())
            for number, message in got:
                if isinstance(message, Trouble):
                    yield message
                else:
                    self._take(number, message)
            if all(self._synced):
                yield None

    def _take(self, number: int, message: Applied[Any] | Gone[Any] | Synced) -> None:
        """A list replaces what was known when it is whole; single changes are at once."""
        match message:
            case Applied(found):
                self._objects[number][found.id] = found
                self._fresh[number][found.id] = found
            case Gone(found):
                self._objects[number].pop(found.id, None)
                self._fresh[number].pop(found.id, None)
            case Synced():
                self._objects[number] = dict(self._fresh[number])
                self._fresh[number] = {}
                self._synced[number] = True
