"""Who may go next among the streams of a listener."""

from __future__ import annotations

import threading

from migration_proxy.order import Order, Place


def waiting(place: Place) -> tuple[threading.Thread, list[bool]]:
    """A thread that waits for its turn, and what it was told."""
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(place.wait()), daemon=True)
    thread.start()
    return thread, told


def test_the_first_may_go_and_each_lets_the_next() -> None:
    order = Order()
    first, second, third = (order.join("a") for _ in range(3))
    assert first.wait()
    first.leave()
    assert second.wait()
    second.leave()
    assert third.wait()


def test_one_that_leaves_early_lets_nobody_pass_those_before_it() -> None:
    order = Order()
    first, second, third = (order.join("a") for _ in range(3))
    second.leave()
    thread, told = waiting(third)
    assert first.wait()
    assert told == []
    first.leave()
    thread.join(120)
    assert told == [True]


def test_parties_do_not_wait_for_each_other() -> None:
    order = Order()
    order.join("a")
    assert order.join("b").wait()


def test_leaving_twice_is_leaving_once() -> None:
    order = Order()
    first, second = order.join("a"), order.join("a")
    first.leave()
    first.leave()
    assert second.wait()
    second.leave()
    assert order.join("a").wait()


def test_the_end_of_the_listener_is_told_to_who_waits() -> None:
    order = Order()
    order.join("a")
    thread, told = waiting(order.join("a"))
    order.close()
    thread.join(120)
    assert told == [False]
    assert not order.join("a").wait()
