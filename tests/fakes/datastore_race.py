"""Writers that count one block up by compare-and-swap, and a reader that follows what they do.

Each step is one commit: the block's sequence number and a handle that only this step makes. So
afterwards the number of handles is how often the block was raised, whatever was answered.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from libtortie.datastore.port import Create, Datastore, Put, Record, Update
from libtortie.errors import AlreadyExists, Compacted, Conflict, NotFound, Unavailable
from libtortie.model.ipam import Block
from libtortie.model.keys import BlockKey, HandleKey, Handles, Key
from tests.fakes.datastore_values import CIDR, block, handle

DEADLINE = 90.0
BLOCK = BlockKey(CIDR)
END = HandleKey("zz-end")
WRITER = "writer-"
FOLLOWER = "follower"
"""The name of the thread on which the reader opens its store."""

Open = Callable[[], Datastore]


@dataclass
class Race:
    """What the writers were told, and what the reader holds."""

    acknowledged: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    """Steps with an attempt whose outcome is not known."""
    denied: list[str] = field(default_factory=list)
    """Steps that were answered with a conflict and yet carried out: none, ever."""
    listings: int = 0
    """How often the reader had to list."""
    held: dict[Key, Record] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._steps = threading.Semaphore(0)
        self._refused = threading.Event()
        self._listed = threading.Condition()

    def progress(self, steps: int) -> None:
        """Wait until so many more steps were acknowledged."""
        while self._steps.acquire(blocking=False):
            pass
        for _ in range(steps):
            assert self._steps.acquire(timeout=DEADLINE), f"no progress: {self.errors}"

    def refused(self) -> None:
        """Wait until somebody is told that the store cannot be used."""
        self._refused.clear()
        assert self._refused.wait(DEADLINE), self.errors

    def relisted(self, before: int) -> None:
        """Wait until the reader has listed more often than that."""
        with self._listed:
            assert self._listed.wait_for(lambda: self.listings > before, DEADLINE), self.errors

    def write(self, open_store: Open, name: str) -> None:
        """Make step after step until the race is over."""
        with closing(open_store()) as store:
            number = 0
            while not self._over.is_set():
                self._step(store, f"{name}-{number:04}")
                number += 1

    def follow(self, open_store: Open) -> None:
        """List and watch, and list again when told to, until the end is seen."""
        with closing(open_store()) as store:
            while END not in self.held:
                try:
                    listing = store.list(Handles())
                    self.held = {record.key: record for record in listing.records}
                    with self._listed:
                        self.listings += 1
                        self._listed.notify_all()
                    self._watch(store, listing.revision)
                except (Compacted, Unavailable):
                    continue

    def stop(self) -> None:
        self._over.set()

    def judge(self, store: Datastore) -> None:
        """What was acknowledged is there, each step happened once, and the reader knows it all."""
        stored, raised = _settled(store)
        handles = {key.handle_id for key in stored if isinstance(key, HandleKey)}
        steps = {name for name in handles if name.startswith(WRITER)}
        assert set(self.acknowledged) <= steps
        assert steps <= {*self.acknowledged, *self.doubtful}
        assert len(set(self.acknowledged)) == len(self.acknowledged)
        assert raised.sequence_number == len(steps)
        assert self.denied == []
        end = int(stored[END].revision)  # what is carried out later, the reader did not stay for
        assert self.held == {
            key: record for key, record in stored.items() if int(record.revision) <= end
        }

    def _step(self, store: Datastore, name: str) -> None:
        key = HandleKey(name)
        while not self._over.is_set():
            with contextlib.suppress(Unavailable):
                if self._attempt(store, key):
                    return

    def _attempt(self, store: Datastore, key: HandleKey) -> bool:
        """Whether the step is done. Raises `Unavailable` from what only reads."""
        record, name = store.get(BLOCK), key.handle_id
        if name in self.doubtful and self._there(store, key):
            return self._done(name)
        assert isinstance(record.value, Block)
        raised = replace(record.value, sequence_number=record.value.sequence_number + 1)
        try:
            store.commit([Update(BLOCK, raised, record.revision), Create(key, handle())])
        except Unavailable:
            self.doubtful.append(name)
            self._refused.set()
            return False
        except Conflict:
            if name not in self.doubtful and self._there(store, key):
                self.denied.append(name)
                return True
            return False
        return self._done(name)

    def _done(self, name: str) -> bool:
        self.acknowledged.append(name)
        self._steps.release()
        return True

    def _there(self, store: Datastore, key: Key) -> bool:
        try:
            store.get(key)
        except NotFound:
            return False
        return True

    def _watch(self, store: Datastore, revision: str) -> None:
        """Until the end is seen, which the listing may already have shown."""
        if END in self.held:
            return
        with store.watch(Handles(), revision) as watch:
            for event in watch:
                if isinstance(event, Put):
                    self.held[event.record.key] = event.record
                else:
                    self.held.pop(event.key, None)
                if END in self.held:
                    return


@contextmanager
def race(open_store: Open, judge: Datastore, writers: int = 4) -> Iterator[Race]:
    """A race that is on; afterwards it is judged."""
    judge.create(BLOCK, block(0))
    running = Race()

    def run(work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except BaseException as error:
            running.errors.append(error)

    threads = [
        threading.Thread(
            target=run, args=(running.write, open_store, f"{WRITER}{number}"), daemon=True
        )
        for number in range(writers)
    ]
    following = (running.follow, open_store)
    follower = threading.Thread(target=run, name=FOLLOWER, args=following, daemon=True)
    for thread in [*threads, follower]:
        thread.start()
    try:
        yield running
    finally:
        running.stop()
        for thread in threads:
            thread.join(DEADLINE)
    _create(judge, END)
    follower.join(DEADLINE)
    assert running.errors == []
    assert not any(thread.is_alive() for thread in [*threads, follower])
    running.judge(judge)


def _settled(store: Datastore) -> tuple[dict[Key, Record], Block]:
    """All handles and the block, of one moment: an attempt that was given up may be carried out."""
    while True:
        listing = store.list(Handles())
        raised = store.get(BLOCK).value
        assert isinstance(raised, Block)
        if store.list(Handles()).records == listing.records:
            return {record.key: record for record in listing.records}, raised


def _create(store: Datastore, key: HandleKey) -> None:
    """Create it, whatever becomes of the answers."""
    while True:
        try:
            store.create(key, handle())
            return
        except AlreadyExists:
            return
        except Unavailable:
            continue
