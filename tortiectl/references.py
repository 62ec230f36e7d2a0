"""What has to be there, or must not, before resources are written or deleted.

Each problem names the resource and the field. Reads the store, writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network

from libtortie.client_config import KUBERNETES
from libtortie.datastore.port import Datastore
from libtortie.model.ipam import Block
from libtortie.model.keys import Blocks, IPNetwork, Kind, ResourceKey, Resources
from libtortie.model.policy import V1ALPHA1_ADMIN_TIER, V1ALPHA1_BASELINE_TIER
from libtortie.model.resources import IPPool, Resource
from libtortie.model.written import FIXED_TIERS, POLICIES
from tortiectl.manifests import Wanted, called

ALWAYS_THERE = {*FIXED_TIERS, V1ALPHA1_ADMIN_TIER, V1ALPHA1_BASELINE_TIER}
_OTHERS: dict[Kind, str] = {
    Kind.PROFILE: "in the Kubernetes datastore profiles are namespaces and service accounts: "
    "change their labels",
    Kind.WORKLOAD_ENDPOINT: "in the Kubernetes datastore endpoints are pods, and the CNI "
    "plugin's to change",
}


def refusal(kind: Kind, verb: str, datastore: str) -> str:
    """Why a verb is never done to a kind in a datastore; empty: it is."""
    if kind is Kind.CLUSTER_INFORMATION:
        return f"operation {verb} is not supported on {kind}: nodes keep it"
    if datastore != KUBERNETES:
        return ""
    if kind in _OTHERS:
        return f"operation {verb} is not supported on {kind}: {_OTHERS[kind]}"
    if kind is Kind.NODE and verb in ("create", "delete"):
        return (
            f"operation {verb} is not supported on {kind}: in the Kubernetes datastore a Node is "
            f"Kubernetes' own: use kubectl"
        )
    return ""


def missing(store: Datastore, resources: Sequence[Resource]) -> Iterator[str]:
    """References to what is neither stored nor among the resources; pools that overlap."""
    yield from _missing(store, resources, Kind.TIER, _tiers_of)
    yield from _missing(store, resources, Kind.BGP_FILTER, _filters_of)
    pools = [one for one in resources if isinstance(one, IPPool)]
    if pools:
        yield from _crowded(store, pools)


def users_of_tier(store: Datastore, tier: str) -> Iterator[str]:
    """Policies that name a tier, which must not be deleted while they do."""
    for kind in POLICIES:
        for record in store.list(Resources(kind)).records:
            if isinstance(record.value, Resource) and tier in _tiers_of(record.value).values():
                yield called(record.value)


def _missing(
    store: Datastore,
    resources: Sequence[Resource],
    kind: Kind,
    named_by: Callable[[Resource], Mapping[str, str]],
) -> Iterator[str]:
    own = {one.metadata.name for one in resources if one.kind == kind}
    wanted = [
        (one, field, name)
        for one in resources
        for field, name in named_by(one).items()
        if name not in own
    ]
    keys = {name: ResourceKey(kind, name) for _, _, name in wanted}
    there = store.snapshot([*keys.values()]).records if keys else {}
    what = "tier" if kind is Kind.TIER else "BGPFilter"
    for one, field, name in wanted:
        if keys[name] not in there:
            yield f"{called(one)}: {field}: there is no {what} {name!r}"


def _tiers_of(resource: Resource) -> dict[str, str]:
    """Field → tier."""
    if Kind(resource.kind) not in POLICIES:
        return {}
    tier = str(resource.to_wire()["spec"].get("tier") or "default")
    return {} if tier in ALWAYS_THERE else {"spec.tier": tier}


def _filters_of(resource: Resource) -> dict[str, str]:
    """Field → filter."""
    if resource.kind != Kind.BGP_PEER:
        return {}
    named = resource.to_wire()["spec"].get("filters") or ()
    return {f"spec.filters.{place}": str(name) for place, name in enumerate(named)}


def _crowded(store: Datastore, pools: Sequence[IPPool]) -> Iterator[str]:
    """New pools that overlap others, or blocks of another size. Those that are there stay."""
    stored = store.list(Resources(Kind.IP_POOL)).records
    known = {one.value.metadata.name for one in stored if isinstance(one.value, IPPool)}
    taken = [
        (one.value.metadata.name, ip_network(one.value.spec.cidr))
        for one in stored
        if isinstance(one.value, IPPool)
    ]
    fresh = [pool for pool in pools if pool.metadata.name not in known]
    blocks = list(_blocks(store)) if fresh else []
    for pool in fresh:
        cidr = ip_network(pool.spec.cidr)
        for name, other in taken:
            if _overlap(cidr, other):
                yield f"{called(pool)}: spec.cidr: {cidr} overlaps {other} of IPPool({name})"
        taken.append((pool.metadata.name, cidr))
        odd = [b for b in blocks if _overlap(b, cidr) and b.prefixlen != pool.spec.block_size]
        if odd:
            yield (
                f"{called(pool)}: spec.blockSize: {pool.spec.block_size}, and {len(odd)} blocks "
                f"in {cidr} have another, as {odd[0]} has"
            )


def _blocks(store: Datastore) -> Iterator[IPNetwork]:
    for version in (4, 6):
        for record in store.list(Blocks(version)).records:
            if isinstance(record.value, Block):
                yield record.value.cidr


def _overlap(one: IPNetwork, other: IPNetwork) -> bool:
    return one.version == other.version and one.overlaps(other)


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Resources with those first that others name."""
    first = {Kind.TIER: 0, Kind.BGP_FILTER: 0}
    return sorted(wanted, key=lambda one: first.get(Kind(one.resource.kind), 1))
