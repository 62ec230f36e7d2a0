"""BIRD is asked until it has a route, or too long."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from felix_shim import export_watch
from felix_shim.export_watch import ExportWatch
from libtortie.errors import Unavailable
from libtortie.model.ipam import IPAddress

NET = ip_network("10.65.0.9/32")


class Bird:
    """Gives its answers one by one, then the watch's end."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[IPAddress] = []
        self.told: list[tuple[object, ...]] = []
        self.now = 0.0
        self.watch = ExportWatch(self.has, self.hear, self.clock)

    def has(self, address: IPAddress) -> bool:
        self.asked.append(address)
        self.now += 2.0
        answer = self.answers.pop(0)
        if not self.answers:
            self.watch.stop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def hear(self, *args: object) -> None:
        self.told.append(args)

    def clock(self) -> float:
        return self.now


def test_it_is_asked_again_until_it_has_the_route() -> None:
    bird = Bird(False, Unavailable("busy"), True)
    bird.watch.expect("vm", NET, 70.0, 71.0)
    bird.watch.run()
    assert bird.asked == [ip_address("10.65.0.9")] * 3
    assert bird.told == [("vm", 70.0, 71.0, 77.0)], "by no clock that can be set"


def test_what_takes_too_long_is_passed_over() -> None:
    bird = Bird(True)
    times = iter((0.0, 0.0, 0.0, export_watch.GIVE_UP_SECONDS, 0.0, 0.0, 5.0))
    bird.watch.monotonic = lambda: next(times)
    bird.watch.expect("first", NET, 70.0, 71.0)
    bird.watch.expect("second", NET, 70.0, 72.0)
    bird.watch.run()
    assert bird.told == [("second", 70.0, 72.0, 77.0)]


def test_what_is_no_network_is_not_asked_for_and_raises_without_end_are_dropped() -> None:
    bird = Bird(*[True] * export_watch.MOST_WAITING)
    bird.watch.expect("nothing", None, 0.0, 0.0)
    for number in range(export_watch.MOST_WAITING + 5):
        bird.watch.expect(number, NET, 0.0, 0.0)
    bird.watch.run()
    assert [one[0] for one in bird.told] == list(range(5, export_watch.MOST_WAITING + 5))
