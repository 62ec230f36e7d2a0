"""Waiting for the packets under way: aside, once for each change, and never taken for done."""

from __future__ import annotations

import threading

import pytest

from libtortie.errors import KernelError
from libtortie.linux.settled import Settled


def test_nothing_is_waited_for_before_something_has_begun() -> None:
    Settled(wait=lambda: pytest.fail("nobody changed anything")).await_all()


def test_it_is_waited_for_aside_and_once() -> None:
    done, waited = threading.Event(), []

    def wait() -> None:
        done.wait(60)
        waited.append(threading.current_thread())

    settled = Settled(deadline=60, wait=wait)
    settled.begin()
    assert not waited, "who changes something goes on"
    done.set()
    settled.await_all()
    assert len(waited) == 1
    assert waited[0] is not threading.current_thread()
    settled.await_all()
    assert len(waited) == 1


def test_packets_that_are_never_done_are_not_taken_for_done() -> None:
    never = threading.Event()
    settled = Settled(deadline=0.01, wait=lambda: assert_set(never))
    settled.begin()
    for _ in range(2):
        with pytest.raises(KernelError, match=r"more than 0\.01 s"):
            settled.await_all()
    never.set()
    settled.deadline = 60
    settled.await_all()


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


def test_where_it_cannot_be_known_it_is_asked_again() -> None:
    answers = [KernelError("no packet socket"), None]

    def wait() -> None:
        if answer := answers.pop(0):
            raise answer

    settled = Settled(deadline=60, wait=wait)
    settled.begin()
    with pytest.raises(KernelError, match="no packet socket"):
        settled.await_all()
    settled.await_all()
    assert not answers
