"""Tells of migrations that cost a VM its connections out of the cluster, because of `natOutgoing`.

A connection that leaves the cluster from such a pool goes out with the address of the node that
it was opened on. After the move it would go out with another one's, which its far end does not
know: it breaks, whatever the routes do. Nobody is stopped; whoever migrates shall know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_network

from felix_shim.migration import RAISED, State
from felix_shim.model import Endpoint, EndpointId
from felix_shim.roster import Local
from libtortie.jsonlog import Log
from libtortie.metrics import Counter, Metric
from libtortie.model.ipam import IPAddress
from libtortie.model.resources import IPPool

METRIC = "tortie_migrations_with_nat_outgoing_total"


@dataclass(slots=True)
class NatMoves:
    """`look` after anything that may bring a VM here; each migration is told of once."""

    log: Log
    warn: Callable[[Endpoint, str], None]
    _told: dict[EndpointId, str] = field(default_factory=dict)
    _count: Counter = field(
        default_factory=lambda: Counter(
            METRIC, "VMs that moved to this node from a pool with natOutgoing.", ("pool",)
        )
    )

    def metrics(self) -> tuple[Metric, ...]:
        """For the scraper."""
        return (self._count,)

    def look(self, locals_: Iterable[Local], pools: Iterable[IPPool]) -> None:
        """See which VMs are on their way to here, or have just come."""
        leaving = [pool for pool in pools if pool.spec.nat_outgoing]
        coming = {
            local.id: local
            for local in locals_
            if local.machine.migration_uid and local.machine.state in RAISED | {State.TARGET}
        }
        self._told = {one: uid for one, uid in self._told.items() if one in coming}
        for one, local in coming.items():
            uid = local.machine.migration_uid
            found = pools_of(local.endpoint.addresses, leaving)
            if not found or self._told.get(one) == uid:
                continue
            self._told[one] = uid
            for pool in found:
                self._count.add(pool)
            names = ", ".join(found)
            self.log.warning("nat_outgoing_migration", endpoint=one, migration_uid=uid, pools=names)
            self.warn(
                local.endpoint,
                f"IP pool {names} has natOutgoing: this VM's connections to outside of the cluster "
                "go out with its node's address and will not outlive the migration; "
                "switch natOutgoing off and route the pool, or have them reconnect",
            )


def pools_of(addresses: Iterable[IPAddress], pools: Iterable[IPPool]) -> tuple[str, ...]:
    """The names of the pools that addresses are from."""
    nets = [(ip_network(pool.spec.cidr), pool.metadata.name) for pool in pools]
    return tuple(
        dict.fromkeys(
            name
            for address in addresses
            for net, name in nets
            if net.version == address.version and address in net
        )
    )
