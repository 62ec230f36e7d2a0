"""Waiting in tests: for as long as it takes, and then for one look more."""

from __future__ import annotations

import pytest

from libtortie.errors import InvalidInput, Unavailable
from tests.fakes import node_process
from tests.fakes.by_hand import Clock
from tests.fakes.node_process import until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that passes only by sleeping."""
    made = Clock()

    class Time:
        monotonic = made

        @staticmethod
        def sleep(seconds: float) -> None:
            made.now += seconds

    monkeypatch.setattr(node_process, "time", Time)
    return made


def test_it_looks_again_until_it_is_true(clock: Clock) -> None:
    answers = iter([0, "", None, 7])
    assert until("seven", lambda: next(answers)) == 7


def test_it_names_what_did_not_come_and_who_was_silent(clock: Clock) -> None:
    def silent() -> bool:
        raise Unavailable("nobody there")

    began = clock.now
    with pytest.raises(AssertionError, match=r"not within 3 s: rain \(nobody there\)"):
        until("rain", silent, seconds=3)
    assert clock.now - began < 4
    with pytest.raises(AssertionError, match=r"not within 3 s: rain\n"):
        until("rain", lambda: False, seconds=3)


def test_what_came_while_the_test_itself_stood_still_has_come(clock: Clock) -> None:
    def look() -> bool:
        late = clock.now > 1000
        clock.now += 500  # the first look sees nothing, and then the machine stops
        return late

    assert until("it", look, seconds=3)


def test_any_other_error_is_the_tests(clock: Clock) -> None:
    def wrong() -> bool:
        raise InvalidInput("no such pod")

    with pytest.raises(InvalidInput):
        until("it", wrong)
