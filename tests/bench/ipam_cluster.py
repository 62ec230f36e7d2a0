"""A large cluster's IPAM records, as its nodes would have left them, stored in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Network, ip_network
from itertools import islice

from ipam.block import assign_ordinal, new_block
from ipam.ownership import pod_owner
from libtortie.datastore.port import Create, Datastore
from libtortie.model.ipam import AffinityState, BlockAffinity, Handle
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, Kind
from libtortie.model.resources import Node, ObjectMeta, parse_resource

POOL = "10.0.0.0/11"
NODES = 5000
PER_NODE = 50
COMMIT = 128
"""Operations of one transaction."""


def prepare(store: Datastore, *nodes: str) -> None:
    """A pool, and the nodes that will allocate."""
    wire = {"kind": "IPPool", "metadata": {"name": "default-ipv4"}, "spec": {"cidr": POOL}}
    pool = parse_resource(Kind.IP_POOL, wire)
    store.create(pool.key, pool)
    for name in nodes:
        node = Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))
        store.create(node.key, node)


def fill(store: Datastore, nodes: int = NODES, per_node: int = PER_NODE) -> None:
    """Nodes with one block each, in which so many addresses are held."""
    records = (one for number in range(nodes) for one in _node(number, per_node))
    while ops := list(islice(records, COMMIT)):
        store.commit(ops)


def _node(number: int, held: int) -> Iterator[Create]:
    name, now = f"worker-{number:05}", datetime.now(UTC)
    cidr = ip_network((int(IPv4Network(POOL).network_address) + number * 64, 26))
    block = new_block(cidr, node=name, now=now)
    for ordinal in range(held):
        container = f"{number:08x}{ordinal:056x}"
        handle_id = f"k8s-pod-network.{container}"
        owner = pod_owner(
            namespace="default",
            pod=f"app-{number}-{ordinal}",
            node=name,
            timestamp=now,
            container_id=container,
            pod_uid=f"00000000-0000-0000-{ordinal:04x}-{number:012x}",
        )
        block = assign_ordinal(block, ordinal, handle_id=handle_id, owner=owner)
        yield Create(HandleKey(handle_id), Handle(blocks={cidr: 1}))
    yield Create(BlockKey(cidr), block)
    yield Create(AffinityKey(name, cidr), BlockAffinity(AffinityState.CONFIRMED))
    node = Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))
    yield Create(node.key, node)
