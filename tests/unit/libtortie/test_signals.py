"""A signal sets its event, also while the main thread has the event's lock."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from libtortie.signals import set_on

DEADLINE = 60.0


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever was there before is there again."""
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_while_the_main_thread_is_about_to_wait() -> None:
    event = threading.Event()
    set_on(event, signal.SIGUSR1)
    with event._cond:  # type: ignore[attr-defined]  # as at the beginning of `wait`
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not event.is_set()
    assert event.wait(DEADLINE)


def test_other_signals_do_not_and_a_second_one_does_no_harm() -> None:
    event = threading.Event()
    set_on(event, signal.SIGUSR1)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert not event.is_set()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
        assert event.wait(DEADLINE)


def test_the_second_one_has_an_event_of_its_own() -> None:
    event, again = threading.Event(), threading.Event()
    set_on(event, signal.SIGUSR1, again=again)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert event.wait(DEADLINE)
    assert not again.is_set()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert again.wait(DEADLINE)
