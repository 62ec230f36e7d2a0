"""Resources out of the datastore, with what belongs to them: a pool's blocks, a node's things.

What is refused is refused before anything is removed. An address that is allocated stays so when
its pool goes, and a VM's when its node goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_network

from ipam.attempts import DEFAULT_RETRY, Attempts
from ipam.client import IPAMClient
from ipam.retire import affinities_in, affinities_of, give_up, handles_on
from libtortie.datastore.default_profile import KEY as DEFAULT_PROFILE
from libtortie.datastore.port import Datastore, Delete, Record
from libtortie.errors import Conflict, InvalidInput, NotFound, TortieError
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import IPPool, Resource
from libtortie.model.written import FIXED_TIERS
from tortiectl.references import users_of_tier
from tortiectl.writing import ATTEMPTS, BATCH, Outcome

SETTLE_SECONDS = 0.5
"""How long a disabled pool rests where an allocation under way does not look at it again."""
_OF_A_NODE = (Kind.WORKLOAD_ENDPOINT, Kind.HOST_ENDPOINT, Kind.BGP_PEER)
_SETTINGS_OF_A_NODE = (Kind.FELIX_CONFIGURATION, Kind.BGP_CONFIGURATION)


def remove_all(
    store: Datastore,
    keys: Sequence[ResourceKey],
    *,
    skip_absent: bool = False,
    revisions: dict[ResourceKey, str] | None = None,
) -> Outcome:
    """Remove resources. `revisions` are those that some must have."""
    outcome = Outcome()
    found = store.snapshot(list(dict.fromkeys(keys)))
    wanted = [(key, found.records.get(key)) for key in dict.fromkeys(keys)]
    for key, record in wanted:
        for why in _refusals(store, key, record, skip_absent, (revisions or {}).get(key, "")):
            outcome.errors.append((_named(key, record), why))
    if outcome.errors:
        return outcome
    there = [(key, record) for key, record in wanted if record is not None]
    special = [one for one in there if one[0].kind in (Kind.IP_POOL, Kind.NODE)]
    for batch in _batches([one for one in there if one not in special], store.atomic):
        _note(outcome, batch, partial(_remove, store, batch, revisions or {}))
    for key, record in special:
        retire = _retire_pool if key.kind is Kind.IP_POOL else _retire_node
        _note(outcome, [(key, record)], partial(retire, store, key))
    return outcome


Pair = tuple[ResourceKey, Record]


def _batches(pairs: Sequence[Pair], atomic: bool) -> Iterator[Sequence[Pair]]:
    size = BATCH if atomic else 1
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size]


def _note(outcome: Outcome, batch: Sequence[Pair], act: Callable[[], None]) -> None:
    """Do it, unless something failed before."""
    if outcome.errors:
        return
    try:
        act()
    except TortieError as error:
        outcome.errors.append((_named(*batch[0]), str(error)))
    else:
        outcome.done += [_named(key, record) for key, record in batch]


def _remove(store: Datastore, batch: Sequence[Pair], revisions: dict[ResourceKey, str]) -> None:
    """One batch, at the revisions that were read; who changed meanwhile goes all the same, unless
    a revision was insisted on."""
    pairs = list(batch)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if len(pairs) == 1:
                key, record = pairs[0]
                store.delete(key, record.revision)
            elif pairs:
                store.commit([Delete(key, record.revision) for key, record in pairs])
            return
        except (Conflict, NotFound):
            if attempt == ATTEMPTS:
                raise
            found = store.snapshot([key for key, _ in pairs]).records
            for key, record in pairs:
                if key in revisions and key in found and found[key].revision != record.revision:
                    raise
            pairs = [(key, found[key]) for key, _ in pairs if key in found]


def _refusals(
    store: Datastore, key: ResourceKey, record: Record | None, skip_absent: bool, revision: str
) -> Iterator[str]:
    if record is None:
        if not skip_absent:
            full = f"{key.namespace}/{key.name}" if key.namespace else key.name
            yield f"resource does not exist: {key.kind}({full}) with error: <nil>"
        return
    if revision and revision != record.revision:
        yield f"update conflict: {key.kind}({key.name}): it was changed since it was read"
    if key == DEFAULT_PROFILE:
        yield f"operation delete is not supported on {key.kind}({key.name}): it is always there"
    if key.kind is Kind.TIER:
        if key.name in FIXED_TIERS:
            yield f"operation delete is not supported on Tier({key.name}): it is always there"
        users = list(users_of_tier(store, key.name))
        if users:
            more = f" and {len(users) - 3} more" if len(users) > 3 else ""
            yield f"Tier({key.name}) is named by {', '.join(users[:3])}{more}: delete them first"


def _retire_pool(store: Datastore, key: ResourceKey) -> None:
    """Disable a pool, make its blocks nobody's, remove it."""
    attempts = _attempts(store)
    record = store.get(key)
    pool = record.value
    if not isinstance(pool, IPPool):
        raise InvalidInput(f"IPPool({key.name}) holds a {pool.__class__.__name__}")
    if not pool.spec.disabled:
        spec = pool.spec.model_copy(update={"disabled": True})
        store.update(key, pool.model_copy(update={"spec": spec}), record.revision)
        if not store.atomic:
            time.sleep(SETTLE_SECONDS)
    give_up(attempts, affinities_in(store, ip_network(pool.spec.cidr)), _now)
    _remove(store, [(key, store.get(key))], {})


def _retire_node(store: Datastore, key: ResourceKey) -> None:
    """Free what a node's pods and tunnels hold, remove its endpoints and settings, then itself."""
    client = IPAMClient(store, key.name, now=_now)
    for handle in handles_on(store, key.name):
        client.release(handle)
    give_up(_attempts(store), affinities_of(store, key.name), _now)
    pairs = [
        (record.key, record)
        for kind in _OF_A_NODE
        for record in store.list(Resources(kind)).records
        if isinstance(record.key, ResourceKey) and _node_of(record) == key.name
    ]
    settings: list[ResourceKey] = [
        ResourceKey(kind, f"node.{key.name}") for kind in _SETTINGS_OF_A_NODE
    ]
    found = store.snapshot([*settings, key]).records
    pairs += [(one, found[one]) for one in (*settings, key) if one in found]
    for batch in _batches(pairs, store.atomic):
        _remove(store, batch, {})


def _node_of(record: Record) -> str:
    value = record.value
    return str(value.to_wire()["spec"].get("node", "")) if isinstance(value, Resource) else ""


def _named(key: ResourceKey, record: Record | None) -> Resource:
    """The resource, for the report; one that is not there has a name only."""
    if record is not None and isinstance(record.value, Resource):
        return record.value
    meta = {"name": key.name} | ({"namespace": key.namespace} if key.namespace else {})
    return Resource.model_validate({"kind": key.kind.value, "metadata": meta})


def _attempts(store: Datastore) -> Attempts:
    return Attempts(store, DEFAULT_RETRY, time.monotonic, time.sleep)


def _now() -> datetime:
    return datetime.now(UTC)
