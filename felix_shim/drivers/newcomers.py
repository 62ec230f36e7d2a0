"""An address that is given to another begins without the connections of who had it before.

Otherwise an old flow, accepted once, would pass by the rules of the new one: what is established
is accepted first. An endpoint is new here unless this process has seen its sandbox with the address
before, or its status file says that an earlier one had. A migration's target is not: its VM has
the address all along, and brings its connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from felix_shim.drivers.conntrack import Table, forget
from felix_shim.model import Endpoint, EndpointId
from libtortie.jsonlog import Log
from libtortie.model.ipam import IPAddress

Held = tuple[EndpointId, str, IPAddress]


@dataclass(slots=True)
class Newcomers:
    """`is_known` tells whether an earlier run has served this endpoint, as it is."""

    table: Table
    is_known: Callable[[Endpoint], bool]
    log: Log
    _seen: set[Held] = field(default_factory=set)

    def welcome(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Forget the connections of new holders' addresses; to be done before their rules.

        Raises `KernelError`: what is not forgotten yet is tried again the next time.
        """
        held = {
            (endpoint.id, endpoint.container_id, address): endpoint
            for endpoint in endpoints
            for address in endpoint.addresses
        }
        self._seen &= held.keys()
        new = held.keys() - self._seen
        strangers = {
            key[2]: held[key].id
            for key in new
            if not held[key].migration_uid and not self.is_known(held[key])
        }
        for address, count in forget(self.table, strangers).items():
            self.log.info(
                "connections_forgotten", endpoint=strangers[address], address=address, count=count
            )
        self._seen |= new
