"""What the store says about allocation as a whole: configuration, readiness, pools.

The IPAM configuration has two places: the record allocation reads (`IPAMConfigKey`), and the
IPAMConfiguration resource `default` that a user edits. Where both exist the record holds, except
that `kubeVirtVMAddressPersistence` is Disabled when either says so: calicoctl writes only the
record, an edit only the resource, and a node's first start names Enabled in the resource. Where
only the resource exists it is the configuration. Where neither exists Calico's defaults hold. What
can't be read is an error, never a default. (Over both, a Kubernetes API can decide that one
setting: `persistence`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from libtortie.datastore.port import Listing
from libtortie.errors import Unavailable
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import IPAMConfigKey, Kind, ResourceKey, Resources
from libtortie.model.resources import (
    ClusterInformation,
    IPAMConfiguration,
    IPPool,
    IPReservation,
    Node,
)

from .affinity import Reservations, parse_reservations
from .pools import Pool, parse_pool, settled
from .transaction import Transaction

POOLS = Resources(Kind.IP_POOL)
RESERVATIONS = Resources(Kind.IP_RESERVATION)
CONFIGURATION = ResourceKey(Kind.IPAM_CONFIGURATION, "default")
CLUSTER = ResourceKey(Kind.CLUSTER_INFORMATION, "default")

NOT_READY = "Tortie is currently not ready to process requests"


class NotReady(Unavailable):
    """The datastore is locked (`datastoreReady: false`): later, but not by retrying at once."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Whether VMs' addresses persist, and which place says so, in words."""

    value: Persistence
    place: str


def read_config(tx: Transaction) -> IPAMConfig:
    """The datastore's configuration; the commit requires that it still is."""
    return tx.noted("configuration", lambda: _configuration(tx))


def _configuration(tx: Transaction) -> IPAMConfig:
    tx.prefetch([IPAMConfigKey(), CONFIGURATION])  # where they are one object, one request
    for key in (IPAMConfigKey(), CONFIGURATION):
        tx.guard(key)
    stored = tx.value(IPAMConfigKey(), IPAMConfig)
    resource = tx.value(CONFIGURATION, IPAMConfiguration)
    if stored is None and resource is not None:
        spec = resource.spec
        stored = IPAMConfig(
            strict_affinity=spec.strict_affinity,
            auto_allocate_blocks=spec.auto_allocate_blocks,
            max_blocks_per_host=spec.max_blocks_per_host,
            cooldown_seconds=spec.ip_cooldown_seconds,
        )
    return replace(stored or IPAMConfig(), kubevirt_persistence=stored_persistence(tx).value)


def stored_persistence(tx: Transaction) -> Setting:
    """What the datastore says about VMs' addresses; Calico's default where it says nothing."""
    said: list[Setting] = []
    resource = tx.value(CONFIGURATION, IPAMConfiguration)
    if resource is not None and resource.spec.kubevirt_persistence is not None:
        value = Persistence(resource.spec.kubevirt_persistence)
        said.append(Setting(value, "IPAMConfiguration default in the datastore"))
    stored = tx.value(IPAMConfigKey(), IPAMConfig)
    if stored is not None:
        place = "IPAM's configuration record in the datastore"
        said.append(Setting(stored.kubevirt_persistence, place))
    if not said:
        return Setting(Persistence.ENABLED, "the default, nothing sets it")
    return next((one for one in said if one.value is Persistence.DISABLED), said[0])


def require_ready(tx: Transaction) -> None:
    """Refuse to work on a locked datastore. Raises `NotReady`, an `Unavailable`."""
    tx.noted("ready", lambda: _require_ready(tx))


def _require_ready(tx: Transaction) -> None:
    tx.guard(CLUSTER)
    cluster = tx.value(CLUSTER, ClusterInformation)
    if cluster is not None and cluster.spec.datastore_ready is False:
        raise NotReady(NOT_READY)


def read_pools(tx: Transaction) -> tuple[tuple[Pool, ...], tuple[str, ...]]:
    """Every pool that can be read, and what is wrong with each of the others, by name."""
    malformed = tx.listing(POOLS).malformed
    tx.guard_recalled_listing(POOLS)
    return tx.made_of(POOLS, _pools_in), malformed


def _pools_in(listing: Listing) -> tuple[Pool, ...]:
    found = [one.value for one in listing.records if isinstance(one.value, IPPool)]
    return settled(map(parse_pool, found))


def guard_pool(tx: Transaction, pool: Pool) -> None:
    """Require at commit that a pool is as it was read."""
    tx.noted(("pool", pool.name), lambda: tx.guard(pool.key))


def read_reservations(tx: Transaction) -> Reservations:
    """Addresses kept out of automatic assignment; the commit requires that none was added.

    Raises `Malformed` for any that cannot be read: what it reserves must not be given away.
    """
    tx.records(RESERVATIONS)
    tx.guard_listing(RESERVATIONS)
    return tx.made_of(RESERVATIONS, _reservations_in)


def _reservations_in(listing: Listing) -> Reservations:
    found = [one.value for one in listing.records if isinstance(one.value, IPReservation)]
    return parse_reservations(found)


def read_node_labels(tx: Transaction, node: str, known: Mapping[str, str]) -> dict[str, str]:
    """Labels of the Node resource, overlaid by those the caller knows."""
    resource = tx.value(ResourceKey(Kind.NODE, node), Node)
    return (resource.metadata.labels if resource else {}) | dict(known)
