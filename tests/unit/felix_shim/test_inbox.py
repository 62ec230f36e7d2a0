"""How long events waited, and whether the reader still comes."""

from __future__ import annotations

from typing import Any, cast

from felix_shim.events import Event, Sign
from felix_shim.inbox import Inbox
from felix_shim.model import EndpointId, SignKind

SIGN = Sign(EndpointId("a", "b"), "cali1", 1, SignKind.RARP, 0, 0)
OTHER = cast(Event, object())


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_each_event_tells_how_long_it_waited_and_a_sign_goes_first() -> None:
    told: list[Any] = []
    clock = Clock()
    inbox = Inbox(lambda urgent, seconds: told.append((urgent, seconds)), clock)
    inbox.post(OTHER)
    clock.now += 1
    inbox.post(SIGN)
    inbox.post(SIGN)
    assert len(inbox) == 3
    clock.now += 2
    assert [inbox.take(0.0), inbox.take_urgent(), inbox.take_urgent()] == [SIGN, SIGN, None]
    assert inbox.take(0.0) is OTHER
    assert told == [(True, 2.0), (True, 2.0), (False, 3.0)]


def test_a_reader_that_does_not_come_when_called_is_told_by_the_time() -> None:
    clock = Clock()
    inbox = Inbox(monotonic=clock)
    assert inbox.call() == 0.0
    clock.now += 5
    assert inbox.call() == 5.0
    assert inbox.take(0.0) is None
    clock.now += 5
    assert inbox.call() == 0.0
