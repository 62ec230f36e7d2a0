"""Tells of what in the network limits the moves of a VM that runs here, before anybody moves it.

Each fact (`libtortie.model.move_limits`) is told once of each VM's pod, as a line of the log, of
which an Event is made; again when it was over in between. Nobody is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_network

from felix_shim.model import Endpoint, EndpointId
from felix_shim.roster import Local
from libtortie.jsonlog import Log
from libtortie.model.keys import IPNetwork
from libtortie.model.move_limits import Limit, felix_limits, pool_limits
from libtortie.model.resources import FelixConfiguration, IPPool

EVENT = "migration_limited"


@dataclass(slots=True)
class MoveLimits:
    """`look` after anything that may bring a VM, or change pools or settings."""

    log: Log
    _made_of: tuple[tuple[IPPool, ...], tuple[FelixConfiguration, ...]] = ((), ())
    _of_pools: tuple[tuple[IPNetwork, frozenset[Limit]], ...] = ()
    _of_all: frozenset[Limit] = frozenset()
    _judged: dict[EndpointId, Endpoint] = field(default_factory=dict)
    _told: dict[EndpointId, frozenset[Limit]] = field(default_factory=dict)

    def look(
        self,
        locals_: Iterable[Local],
        pools: tuple[IPPool, ...],
        felixes: tuple[FelixConfiguration, ...],
    ) -> None:
        """Tell what is new of each VM; work only for what changed since the last look."""
        if self._made_of != (pools, felixes):
            self._made_of = pools, felixes
            self._of_pools = tuple(
                (ip_network(pool.spec.cidr), frozenset(pool_limits(pool, [felixes])))
                for pool in pools
            )
            self._of_all = frozenset(felix_limits(felixes))
            self._judged.clear()
        here = {local.id: local.endpoint for local in locals_ if local.endpoint.vm is not None}
        self._told = {one: limits for one, limits in self._told.items() if one in here}
        judged, self._judged = self._judged, here
        for one, endpoint in here.items():
            if judged.get(one) is not endpoint:
                self._judge(endpoint)

    def _judge(self, endpoint: Endpoint) -> None:
        found = self._of_all.union(
            *(
                limits
                for net, limits in self._of_pools
                if any(one.version == net.version and one in net for one in endpoint.addresses)
            )
        )
        for limit in sorted(found - self._told.get(endpoint.id, frozenset()), key=_worst_first):
            self.log.warning(
                EVENT, endpoint=endpoint.id, limit=limit.code, severity=limit.severity, text=limit
            )
        self._told[endpoint.id] = found


def _worst_first(limit: Limit) -> tuple[int, str]:
    return limit.severity.rank, str(limit)
