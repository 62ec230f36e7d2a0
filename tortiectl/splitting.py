"""A pool in several: the same settings, a part of the range each. Pure but for the writing."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from libtortie.datastore.port import Create, Datastore, Delete, Op, Record
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind, Resources
from libtortie.model.resources import IPPool, ObjectMeta

MOST = 64
"""Parts that one transaction can hold."""


def find(store: Datastore, cidr: str, name: str) -> Record:
    """The pool with this range or name. Raises `InvalidInput` naming those there are."""
    pools = [
        record
        for record in store.list(Resources(Kind.IP_POOL)).records
        if isinstance(record.value, IPPool)
    ]
    for record in pools:
        assert isinstance(record.value, IPPool)
        if name in ("", record.value.metadata.name) and cidr in ("", record.value.spec.cidr):
            return record
    known = ", ".join(
        f"{one.value.metadata.name} ({one.value.spec.cidr})"
        for one in pools
        if isinstance(one.value, IPPool)
    )
    raise InvalidInput(f"there is no IP pool {name or cidr}; there are: {known or 'none'}")


def parts_of(pool: IPPool, count: int) -> tuple[IPPool, ...]:
    """The parts, in order. Raises `InvalidInput` for a number that cannot be."""
    if count < 2 or count & (count - 1):
        raise InvalidInput(f"{count}: the number of parts is a power of two, 2 or more")
    if count > MOST:
        raise InvalidInput(f"{count}: {MOST} parts are the most; split the parts again")
    network = ip_network(pool.spec.cidr)
    size = network.prefixlen + count.bit_length() - 1
    if size > pool.spec.block_size:
        raise InvalidInput(
            f"IPPool({pool.metadata.name}): {pool.spec.cidr} in {count} parts would be smaller "
            f"than its blocks of /{pool.spec.block_size}"
        )
    return tuple(
        pool.model_copy(
            update={
                "metadata": ObjectMeta(
                    name=f"split-{pool.metadata.name}-{number}",
                    labels=pool.metadata.labels,
                    annotations=pool.metadata.annotations,
                ),
                "spec": pool.spec.model_copy(update={"cidr": str(part)}),
            }
        )
        for number, part in enumerate(network.subnets(new_prefix=size))
    )


def split(store: Datastore, record: Record, parts: Sequence[IPPool]) -> None:
    """Replace a pool by its parts: at once where the store can.

    Elsewhere the parts come first, those that an interrupted command left included, and the pool
    goes last: nobody allocates meanwhile.
    """
    there = store.snapshot([part.key for part in parts]).records
    for part in parts:
        known = there.get(part.key)
        if known is not None and not _same(known, part):
            raise InvalidInput(f"IPPool({part.metadata.name}) is there already, and another")
    ops: list[Op] = [Create(part.key, part) for part in parts if part.key not in there]
    store.commit([*ops, Delete(record.key, record.revision)])


def _same(known: Record, part: IPPool) -> bool:
    return isinstance(known.value, IPPool) and known.value.spec == part.spec
