"""When the collector is alive and when it is ready."""

from __future__ import annotations

from controllers.health import LATE_SECONDS, PASS_SECONDS, Course


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_before_the_first_pass_it_lives_and_is_not_ready() -> None:
    course = Course(Clock())
    assert (course.stalled(), course.wrong) == ("", "no pass was made yet")


def test_a_pass_may_take_long_but_not_for_ever() -> None:
    clock = Clock()
    course = Course(clock)
    course.begin()
    clock.now += PASS_SECONDS
    assert course.stalled() == ""
    clock.now += 1
    assert course.stalled() == f"a pass has been under way for {PASS_SECONDS + 1:.0f} s"
    course.end("", 10.0)
    assert (course.stalled(), course.wrong) == ("", "")


def test_a_pass_that_does_not_come_is_a_loop_that_stalls() -> None:
    clock = Clock()
    course = Course(clock)
    course.begin()
    course.end("etcd is away", 10.0)
    clock.now += 10.0 + LATE_SECONDS
    assert (course.stalled(), course.wrong) == ("", "etcd is away")
    clock.now += 1
    assert course.stalled() == f"a pass was due {LATE_SECONDS + 1:.0f} s ago"
    course.begin()
    assert course.stalled() == ""


def test_an_instance_that_no_longer_leads_has_no_pass_to_be_late_with() -> None:
    clock = Clock()
    course = Course(clock)
    course.begin()
    course.leave()
    clock.now += PASS_SECONDS + 1
    assert (course.stalled(), course.wrong) == ("", "no pass was made yet")
