"""Streams get through in the order they came.

QEMU before 8.0 tells the first channel of a migration from the others by nothing but their order:
with multifd a later one that overtakes it breaks the migration. So a stream dials further only when
those before it have got through, or have ended. Each party has an order of its own.
"""

from __future__ import annotations

import threading
from collections import defaultdict


class Place:
    """A stream's place in its party's queue; `left` once, however the stream ends."""

    def __init__(self, order: Order, party: str) -> None:
        self._order, self._party = order, party

    def wait(self) -> bool:
        """Until all before have left; False once the order is closed."""
        return self._order.wait(self._party, self)

    def leave(self) -> None:
        """Let the next one go; nothing if it was done before."""
        self._order.leave(self._party, self)


class Order:
    """The queues of a listener; safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, list[Place]] = defaultdict(list)
        self._closed = False

    def join(self, party: str) -> Place:
        """The last place in a party's queue."""
        place = Place(self, party)
        with self._changed:
            self._queues[party].append(place)
        return place

    def wait(self, party: str, place: Place) -> bool:
        """See `Place.wait`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queues[party][0] is place)
            return not self._closed

    def leave(self, party: str, place: Place) -> None:
        """See `Place.leave`."""
        with self._changed:
            queue = self._queues.get(party, [])
            if place in queue:
                queue.remove(place)
            if not queue:
                self._queues.pop(party, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
