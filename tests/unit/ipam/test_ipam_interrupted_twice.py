"""Whoever leaves a batch is interrupted there, at each line, and again: nobody waits for ever."""

from __future__ import annotations

import linecache
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from types import CodeType, FrameType
from typing import Any

import pytest

from ipam import batch
from ipam.batch import Alone, Batches, _Ticket
from ipam.client import AddressRequest, IPAMClient
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_batches import captured
from tests.fakes.ipam_world import World, plain_pod, pool

V4 = AddressRequest()
TIMEOUT = 60.0
LEAVING = (Batches._leave.__code__, batch._line_up.__code__, batch._wake.__code__)
BREAKING_UP = (Batches._break_up.__code__, batch._settle.__code__, batch._call.__code__)
FEWEST = 6
"""Lines there must be at least, or nothing was interrupted."""


class Interrupted(BaseException):
    """What a signal's handler raises."""


@dataclass
class Interrupts:
    """Interrupts its thread at a line (from 1) of each of some pieces of code, once for each.

    Not at the end of a `with`: no signal is handled between the last call in it and its exit.
    """

    at: list[tuple[tuple[CodeType, ...], int]]
    done: int = 0
    _lines: int = 0
    _entered: set[tuple[FrameType, int]] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        due = self.done < len(self.at) and frame.f_code in self.at[self.done][0]
        if due and event == "line" and not self._is_exit(frame):
            self._lines += 1
            if self._lines == self.at[self.done][1]:
                self.done, self._lines = self.done + 1, 0
                raise Interrupted
        return self

    def _is_exit(self, frame: FrameType) -> bool:
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        place = (frame, frame.f_lineno)
        if not text.lstrip().startswith("with ") or place not in self._entered:
            self._entered.add(place)
            return False
        return True


@dataclass
class Crowd:
    """A leader that is interrupted, two whom it leads, and two who wait behind."""

    interrupts: Interrupts
    world: World = field(
        default_factory=lambda: World().pools(pool("a", "10.0.0.0/26", blockSize=26))
    )
    got: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = FaultyStore(self.world.store)
        self.client = self.world.client(store=self.store)
        assert self.client._batches is not None
        self.batches: Batches = self.client._batches
        self.threads: list[threading.Thread] = []
        break_up = self.batches._break_up

        def traced(ticket: _Ticket) -> None:
            if sys.gettrace() is None and threading.current_thread() is self.threads[0]:
                sys.settrace(self.interrupts)  # an interrupt ended it
            break_up(ticket)

        self.batches._break_up = traced  # type: ignore[method-assign]  # this crowd's alone

    def come(self, handle: str, waiting: int, trace: Interrupts | None = None) -> None:
        """One more caller; returns when so many wait."""

        def work() -> None:
            sys.settrace(trace)
            try:
                self.got[handle] = add(self.client, handle)
            except Interrupted as error:
                self.got[handle] = error
            finally:
                sys.settrace(None)

        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()
        tick = threading.Event()
        for _ in range(int(TIMEOUT / 0.001)):
            if len(self.batches._waiting) >= waiting:
                return
            tick.wait(0.001)
        raise AssertionError("it did not come")

    def play(self) -> bool:
        """Whether all interrupts came; nobody may be left waiting, or have lost anything."""
        behind = iter(("o3", "o4"))

        def more(_: object) -> None:
            for number, handle in enumerate(behind, start=1):
                self.come(handle, number)

        self.store.before_commit = more
        with self.client._lock:
            self.come("leader", 1, self.interrupts)
            self.come("o1", 2)
            self.come("o2", 3)
        for thread in self.threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"one waits for who is gone: {self.interrupts}"
        self.come("afterwards", 0)
        self.threads[-1].join(TIMEOUT)
        assert not self.threads[-1].is_alive(), "who comes later waits for who is gone"
        others = {"o1", "o2", "o3", "o4", "afterwards"}
        assert all(isinstance(self.got[one], tuple) for one in others), self.got
        assert isinstance(self.got["leader"], Interrupted) is bool(self.interrupts.done)
        assert others <= set(self.world.allocated())
        self.world.audit()
        return self.interrupts.done == len(self.interrupts.at)


def add(client: IPAMClient, handle: str) -> object:
    return client.assign(handle, plain_pod(handle), V4)


def lines(*before: tuple[tuple[CodeType, ...], int], of: tuple[CodeType, ...]) -> int:
    """Interrupt each line of some code, after other interrupts; how many there were."""
    for at in count(1):
        if not Crowd(Interrupts([*before, (of, at)])).play():
            return at - 1
    raise AssertionError


def test_interrupted_while_leaving() -> None:
    assert lines(of=LEAVING) >= FEWEST


@pytest.mark.parametrize("first", [1, FEWEST])
def test_interrupted_again_while_leaving_for_it(first: int) -> None:
    assert lines((LEAVING, first), of=BREAKING_UP) >= FEWEST


def test_interrupted_a_third_time() -> None:
    assert lines((LEAVING, 1), (BREAKING_UP, FEWEST), of=BREAKING_UP) >= FEWEST


def test_who_leads_while_another_serves_it_wakes_all_that_either_led() -> None:
    """Called by one that broke up, it leads a batch, and a second, before its own is served; then
    it belongs to the row of who served it."""
    world = World().pools(pool("a", "10.0.0.0/26", blockSize=26))
    client = world.client()
    batches = client._batches
    assert batches is not None
    served, *others = (waiting(client, f"h{number}") for number in range(9))
    led, behind = others[:2], others[2:]
    for one in led:
        batches._waiting = [one]
        batches._lead(served)
    served.verdict, served.row = Alone(), deque(behind)
    batches._leave(served)
    for _ in others:
        for one in [one for one in others if not one.called.locked() and not one.gone]:
            batches._leave(one)
    assert [one for one in others if one.called.locked()] == []


def waiting(client: IPAMClient, handle: str) -> _Ticket:
    """One who waits to be called."""
    ticket = _Ticket(captured(client, lambda one: add(one, handle)), threading.Lock())
    ticket.called.acquire()
    return ticket
