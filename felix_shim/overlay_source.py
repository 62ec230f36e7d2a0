"""Follows all nodes' blocks, from the moment that a pool is in the overlay.

A block changes with every address that is given or taken anywhere: where nobody needs to know, no
node listens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from felix_shim.cluster import BLOCKS, POOLS
from felix_shim.events import Event, Listed, Stored
from felix_shim.overlay_places import NEVER
from felix_shim.sources import StoreSource
from libtortie.datastore.port import Record
from libtortie.model.resources import IPPool


@dataclass(slots=True)
class BlocksSource:
    """`run` is a thread's body that begins to follow once `notice` saw a pool that wants it."""

    source: StoreSource
    _wanted: threading.Event = field(default_factory=threading.Event)
    _stopped: bool = False

    @property
    def name(self) -> str:
        """What is followed, for people."""
        return f"blocks{'' if self.source.scope == BLOCKS[0] else '-v6'}"

    def notice(self, event: Event) -> None:
        """Take any event of the datastore; pools are looked at."""
        match event:
            case Listed(scope=scope, records=records) if scope == POOLS:
                found: Iterable[Record] = records
            case Stored(scope=scope, record=record) if scope == POOLS:
                found = (record,)
            case _:
                return
        if any(_overlaid(record) for record in found):
            self._wanted.set()

    def run(self) -> None:
        """Wait, then follow until `stop`."""
        self._wanted.wait()
        if not self._stopped:
            self.source.run()

    def stop(self) -> None:
        """End `run` soon, whether it waits or follows."""
        self._stopped = True
        self.source.stop()
        self._wanted.set()


def _overlaid(record: Record) -> bool:
    pool = record.value
    return isinstance(pool, IPPool) and pool.spec.vxlan_mode != NEVER
