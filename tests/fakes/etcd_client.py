"""What tests of the etcd datastore share: impatient stores, followed watches."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network
from typing import Any, TypeVar

from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig, Timing
from libtortie.datastore.port import Put, Removed, Watch
from libtortie.errors import AlreadyExists, TortieError, Unavailable
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey, Handles
from tests.fakes.patience import CALM

DEADLINE = 90.0
BRISK = Timing(call=3.0, attempt=0.7, progress=0.4, silence=0.8, patience=DEADLINE)
"""Short silences, for those who try again: the machine may be as silent for a while."""

T = TypeVar("T")

CIDR = ip_network("10.250.0.4/30")
KEY = HandleKey("h1")


def handle(count: int = 1) -> Handle:
    return Handle({CIDR: count})


def store_at(*urls: str, timing: Timing = CALM, **more: str) -> EtcdDatastore:
    """A store that begins with the first endpoint."""
    config = EtcdConfig(",".join(urls), **more)
    return EtcdDatastore(config, timing=timing, choose=lambda count: 0)


def retime(store: EtcdDatastore, **changed: Any) -> None:
    """Give its next calls other deadlines, and a watch that gets into trouble another patience."""
    store._cluster.timing = replace(store._cluster.timing, **changed)


def eventually(work: Callable[[], T]) -> T:
    """Repeat what may be unavailable for a while."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return work()
        except Unavailable:
            assert time.monotonic() < end


class Following:
    """A watch read on a thread; `expect` waits for handles by name."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.seen: list[str] = []
        self.error: TortieError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self.watch:
                key = event.record.key if isinstance(event, Put) else event.key
                assert isinstance(key, HandleKey)
                with self._changed:
                    self.seen.append(key.handle_id + ("-" if isinstance(event, Removed) else ""))
                    self._changed.notify_all()
        except TortieError as error:
            self.error = error
        with self._changed:
            self._changed.notify_all()

    def expect(self, *names: str) -> None:
        """All events so far, exactly."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.seen) >= len(names) or not self._thread.is_alive(), DEADLINE
            )
        assert self.seen == list(names), self.error

    def end(self) -> TortieError | None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the watch did not end"
        return self.error

    def until(self, name: str) -> None:
        """Wait for an event, whatever comes before it."""
        with self._changed:
            self._changed.wait_for(
                lambda: name in self.seen or not self._thread.is_alive(), DEADLINE
            )
        assert name in self.seen, self.error


@contextmanager
def following(store: EtcdDatastore, revision: str = "") -> Iterator[Following]:
    """A watch from a revision, or from now."""
    watch = store.watch(Handles(), revision or store.list(Handles()).revision)
    follow = Following(watch)
    try:
        yield follow
    finally:
        watch.close()
        follow.end()


def add(store: EtcdDatastore, name: str) -> None:
    """Create a handle, whatever happens in between: an unknown outcome is read again."""

    def work() -> None:
        with contextlib.suppress(AlreadyExists):  # an earlier attempt's, whose answer was lost
            store.create(HandleKey(name), handle())

    eventually(work)
