"""What is kept for a while: read once for many who ask, shown with its age when it cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from controllers.page.shelf import SHARE, Shelf
from libtortie.errors import Unavailable
from tests.fakes.node_process import until
from tests.fakes.page_site import WAIT, running

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Reader:
    """Reads a number that grows. It waits at the gate, and takes `costs` seconds of the clock."""

    seconds: float = 100.0
    costs: float = 0.0
    count: int = 0
    fails: Exception | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    complaints: list[str] = field(default_factory=list)

    def __call__(self) -> int:
        self.count += 1
        self.entered.release()
        assert self.gate.wait(WAIT)
        self.seconds += self.costs
        if self.fails is not None:
            raise self.fails
        return self.count


@pytest.fixture
def reader() -> Reader:
    made = Reader()
    made.gate.set()
    return made


@contextmanager
def shelf_of(reader: Reader, wait: float = WAIT) -> Iterator[Shelf[int]]:
    shelf = Shelf(
        "numbers",
        reader,
        fresh=5.0,
        complain=reader.complaints.append,
        monotonic=lambda: reader.seconds,
        now=lambda: NOON,
        wait=wait,
    )
    with running(shelf.run):
        try:
            yield shelf
        finally:
            reader.gate.set()
            shelf.stop()


def asked(shelf: Shelf[int]) -> int | None:
    shelf.ask()
    return shelf.look().value


def test_nothing_is_read_before_somebody_asks(reader: Reader) -> None:
    with shelf_of(reader) as shelf:
        look = shelf.look()
        assert (look.value, look.at) == (None, None)
        assert "first time" in look.trouble
    assert reader.count == 0


def test_a_reading_serves_for_some_seconds(reader: Reader) -> None:
    with shelf_of(reader) as shelf:
        assert asked(shelf) == 1
        reader.seconds += 4.9
        assert asked(shelf) == 1
        reader.seconds += 0.2
        assert asked(shelf) == 2
        assert shelf.look().at == NOON


def test_what_costs_much_is_read_a_fifth_of_the_time(reader: Reader) -> None:
    reader.costs = 10.0
    with shelf_of(reader) as shelf:
        assert asked(shelf) == 1
        reader.seconds += SHARE * 10.0 - 1.0
        assert asked(shelf) == 1
        reader.seconds += 2.0
        assert asked(shelf) == 2


def test_many_who_ask_at_once_share_one_reading(reader: Reader) -> None:
    reader.gate.clear()
    seen: list[int | None] = []
    with shelf_of(reader) as shelf:
        ask: Callable[[], None] = lambda: seen.append(asked(shelf))  # noqa: E731
        with running(*[ask] * 20):
            assert reader.entered.acquire(timeout=WAIT)
            reader.gate.set()
    assert seen == [1] * 20
    assert reader.count == 1


def test_a_failure_leaves_the_last_value_with_its_age_and_is_told_once(reader: Reader) -> None:
    with shelf_of(reader) as shelf:
        assert asked(shelf) == 1
        reader.fails = Unavailable("the store is away\nand more")
        for _ in range(3):
            reader.seconds += 6.0
            shelf.ask()
            look = shelf.look()
            assert (look.value, look.at, look.trouble) == (1, NOON, "the store is away")
        assert reader.complaints == ["numbers: the store is away"]
        reader.fails = None
        reader.seconds += 6.0
        shelf.ask()
        assert shelf.look().trouble == ""


def test_a_fault_of_the_program_is_told_and_ends_nothing(reader: Reader) -> None:
    reader.fails = ZeroDivisionError("no")
    with shelf_of(reader) as shelf:
        shelf.ask()
        assert "a fault of this program: ZeroDivisionError" in shelf.look().trouble
        reader.fails = None
        reader.seconds += 6.0
        assert asked(shelf) == 2


def test_who_asks_does_not_wait_for_a_reading_that_hangs(reader: Reader) -> None:
    def read() -> bool:
        shelf.ask()
        return shelf.look().value == 1

    with shelf_of(reader, wait=0.0) as shelf:
        until("the first reading has ended", read)
        assert reader.entered.acquire(timeout=WAIT)
        reader.gate.clear()
        reader.seconds += 6.0
        for _ in range(5):
            shelf.ask()
            look = shelf.look()
            assert (look.value, look.trouble) == (1, "a newer reading has not ended yet")
        assert reader.entered.acquire(timeout=WAIT)
        assert reader.count == 2


def test_a_glance_waits_for_nothing(reader: Reader) -> None:
    reader.gate.clear()
    with shelf_of(reader) as shelf:
        shelf.ask()
        assert shelf.look(wait=False).value is None
        reader.gate.set()
        assert shelf.look().value == 1


def test_who_waits_is_let_go_when_it_stops(reader: Reader) -> None:
    reader.gate.clear()
    seen: list[object] = []
    with shelf_of(reader) as shelf:
        shelf.ask()
        assert reader.entered.acquire(timeout=WAIT)
        with running(lambda: seen.append(shelf.look().value)):
            shelf.stop()
    assert seen == [None]
