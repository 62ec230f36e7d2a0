"""A large cluster's IPAM records, as its nodes would have left them, stored in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Network
from itertools import islice

from ipam.block import assign_ordinal, new_block
from ipam.ownership import pod_owner
from libtortie.datastore.port import Create, Datastore
from libtortie.model.ipam import AffinityState, BlockAffinity, Handle
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, Kind
from libtortie.model.names import ANNOTATION_POD_UID, ORCHESTRATOR_K8S, host_ifname, wep_name
from libtortie.model.resources import (
    ClusterInformation,
    ClusterInformationSpec,
    Node,
    ObjectMeta,
    WorkloadEndpoint,
    WorkloadEndpointSpec,
    parse_resource,
)
from libtortie.model.times import rfc3339

POOL = "10.0.0.0/11"
NODES = 5000
PER_NODE = 50
COMMIT = 128
"""Operations of one transaction."""


def prepare(store: Datastore, *nodes: str) -> None:
    """A pool, the nodes that will allocate, and what calicoctl wants of any cluster."""
    about = ClusterInformation(
        metadata=ObjectMeta(name="default"), spec=ClusterInformationSpec(datastore_ready=True)
    )
    store.create(about.key, about)
    wire = {"kind": "IPPool", "metadata": {"name": "default-ipv4"}, "spec": {"cidr": POOL}}
    pool = parse_resource(Kind.IP_POOL, wire)
    store.create(pool.key, pool)
    for name in nodes:
        node = Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))
        store.create(node.key, node)


def fill(
    store: Datastore, nodes: int = NODES, per_node: int = PER_NODE, *, endpoints: bool = False
) -> None:
    """Nodes with one block each, in which so many addresses are held; with the pods' endpoints."""
    records = (one for number in range(nodes) for one in _node(number, per_node, endpoints))
    while ops := list(islice(records, COMMIT)):
        store.commit(ops)


def node_name(node: int) -> str:
    """What a node is called."""
    return f"worker-{node:05}"


def pod_name(node: int, ordinal: int) -> str:
    """What a pod is called."""
    return f"app-{node}-{ordinal}"


def pod_uid(node: int, ordinal: int) -> str:
    """A pod's UID."""
    return f"00000000-0000-0000-{ordinal:04x}-{node:012x}"


def address_of(node: int, ordinal: int) -> str:
    """What a pod has."""
    return str(_block_of(node).network_address + ordinal)


def _block_of(node: int) -> IPv4Network:
    return IPv4Network((int(IPv4Network(POOL).network_address) + node * 64, 26))


def _node(number: int, held: int, endpoints: bool) -> Iterator[Create]:
    name, now = node_name(number), datetime.now(UTC)
    cidr = _block_of(number)
    block = new_block(cidr, node=name, now=now)
    for ordinal in range(held):
        container = f"{number:08x}{ordinal:056x}"
        handle_id = f"k8s-pod-network.{container}"
        owner = pod_owner(
            namespace="default",
            pod=pod_name(number, ordinal),
            node=name,
            timestamp=now,
            container_id=container,
            pod_uid=pod_uid(number, ordinal),
        )
        block = assign_ordinal(block, ordinal, handle_id=handle_id, owner=owner)
        yield Create(HandleKey(handle_id), Handle(blocks={cidr: 1}))
        if endpoints:
            endpoint = _endpoint(number, ordinal, container, rfc3339(now))
            yield Create(endpoint.key, endpoint)
    yield Create(BlockKey(cidr), block)
    yield Create(AffinityKey(name, cidr), BlockAffinity(AffinityState.CONFIRMED))
    node = Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}))
    yield Create(node.key, node)


def _endpoint(node: int, ordinal: int, container: str, created: str) -> WorkloadEndpoint:
    """What a pod's ADD leaves behind beside its address."""
    pod, uid = pod_name(node, ordinal), pod_uid(node, ordinal)
    return WorkloadEndpoint(
        metadata=ObjectMeta(
            name=wep_name(node_name(node), ORCHESTRATOR_K8S, pod, "eth0"),
            namespace="default",
            uid=uid,
            creation_timestamp=created,
            labels={
                "app": f"app-{node}",
                "projectcalico.org/namespace": "default",
                "projectcalico.org/orchestrator": ORCHESTRATOR_K8S,
            },
            annotations={ANNOTATION_POD_UID: uid},
        ),
        spec=WorkloadEndpointSpec(
            orchestrator=ORCHESTRATOR_K8S,
            node=node_name(node),
            containerID=container,
            pod=pod,
            endpoint="eth0",
            ip_networks=(f"{address_of(node, ordinal)}/32",),
            profiles=("kns.default", "ksa.default.default"),
            interface_name=host_ifname("default", pod),
            mac="ee:ee:ee:ee:ee:ee",
        ),
    )
