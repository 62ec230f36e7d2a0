"""A silent store is waited for once in all; one that answers may take its time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.patient import PatientDatastore
from libtortie.datastore.port import Check, Datastore
from libtortie.errors import NotFound, Unavailable
from libtortie.model.ipam import IPAMConfig
from libtortie.model.keys import Blocks, HandleKey, Handles, IPAMConfigKey

KEY = IPAMConfigKey()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Silent:
    """Each call takes some seconds, and fails while there is silence."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.store = MemoryDatastore()
        self.clock, self.seconds = clock, seconds
        self.silent, self.calls = True, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.store, name)
        if not callable(real) or name == "close":
            return real

        def call(*args: Any) -> Any:
            self.calls += 1
            self.clock.now += self.seconds
            if self.silent:
                raise Unavailable(f"no answer to {self.calls}")
            return real(*args)

        return call


CALLS: dict[str, Callable[[Datastore], object]] = {
    "get": lambda store: store.get(KEY),
    "list": lambda store: store.list(Handles()),
    "parts": lambda store: list(store.parts(Blocks(4))),
    "names": lambda store: store.names(Handles()),
    "snapshot": lambda store: store.snapshot([KEY]),
    "create": lambda store: store.create(KEY, IPAMConfig()),
    "update": lambda store: store.update(KEY, IPAMConfig(), "1"),
    "delete": lambda store: store.delete(HandleKey("h")),
    "commit": lambda store: store.commit([Check(KEY, None)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_silence_is_waited_for_once_in_all(name: str) -> None:
    clock = Clock()
    silent = Silent(clock, 3.0)
    store = PatientDatastore(silent, 5.0, clock)
    for _ in range(9):
        with pytest.raises(Unavailable):
            CALLS[name](store)
    assert silent.calls == 2
    with pytest.raises(Unavailable, match="no answer to 2"):
        store.get(KEY)


def test_answers_may_take_their_time() -> None:
    clock = Clock()
    slow = Silent(clock, 60.0)
    slow.silent = False
    store = PatientDatastore(slow, 5.0, clock)
    for _ in range(3):
        with pytest.raises(NotFound):
            store.get(KEY)
        assert list(store.parts(Handles()))
    slow.silent = True
    with pytest.raises(Unavailable, match="no answer to 7"):
        store.get(KEY)


def test_every_call_of_the_port_is_there() -> None:
    wanted = {name for name, _ in inspect.getmembers(Datastore) if not name.startswith("_")}
    assert wanted <= set(dir(PatientDatastore))
    assert wanted - set(CALLS) == {"atomic", "rewinds", "watch", "close"}
