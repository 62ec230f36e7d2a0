"""One etcd with pools and nodes, our IPAM client for some nodes and Calico's for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from ipam.client import AddressRequest, IPAMClient, Retry
from libtortie.datastore.port import Datastore
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import IPNetwork, Kind, ResourceKey, Resources
from libtortie.model.resources import parse_resource
from tests.fakes.calico import Calicoctl
from tests.fakes.ipam_world import World, pool

OURS, THEIRS = "ours", "theirs"
NODES = (OURS, THEIRS)
V4, BOTH = AddressRequest(), AddressRequest(ipv6=True)
PATIENT = Retry(attempts=500, seconds=90.0)


class Shared:
    """The store as both sides see it; `world` looks at it through our datastore."""

    def __init__(self, store: Datastore, calicoctl: Calicoctl, *, size: int = 26) -> None:
        self.world = World(store)
        self.calicoctl = calicoctl
        self.world.pools(
            pool("a", f"10.0.0.0/{size}", blockSize=29), pool("b", "fd00::/112", blockSize=125)
        )
        ready = {"clusterGUID": "5b0e0c8a4f6d4f3e9d2a7c1b8e6f4a21", "datastoreReady": True}
        self.world.resource(Kind.CLUSTER_INFORMATION, "default", ready)
        for name in NODES:
            self.world.resource(Kind.NODE, name, {})

    def client(self, node: str = OURS) -> IPAMClient:
        """Our client, with the clock on the wall."""
        return IPAMClient(self.world.store, node, now=lambda: datetime.now(UTC), retry=PATIENT)

    def endpoints(self) -> None:
        """A WorkloadEndpoint for each allocated address and no other, so that none is leaked."""
        for record in self.world.store.list(Resources(Kind.WORKLOAD_ENDPOINT)).records:
            self.world.store.delete(record.key)
        for address in self.held():
            self._endpoint(address)

    def _endpoint(self, address: IPAddress) -> None:
        found = self.client().owner_of(address)
        node = found.active.get("node", OURS) if found is not None else OURS
        pod = f"p{int(address):x}"
        name = f"{node}-k8s-{pod}-eth0"
        key = ResourceKey(Kind.WORKLOAD_ENDPOINT, name, "shop")
        spec = {
            "orchestrator": "k8s",
            "node": node,
            "pod": pod,
            "endpoint": "eth0",
            "ipNetworks": [f"{address}/{address.max_prefixlen}"],
            "interfaceName": "cali0",
        }
        metadata = {"name": name, "namespace": "shop"}
        wire = {"kind": key.kind.value, "metadata": metadata, "spec": spec}
        self.world.put(key, parse_resource(key.kind, wire))

    def held(self) -> dict[IPAddress, str]:
        """Address → handle, read from the blocks by us."""
        return {
            block.address(ordinal): block.attributes[index].handle_id or ""
            for block in self.world.blocks()
            for ordinal, index in enumerate(block.allocations)
            if index is not None
        }

    def affine(self, node: str) -> set[IPNetwork]:
        """The blocks that are a node's."""
        return {block.cidr for block in self.world.blocks() if block.node == node}

    def audit(self) -> None:
        """Blocks, handles and affinities agree, as we and as Calico's own check read them."""
        held = self.held()
        assert self.calicoctl.allocations() == held
        counted = Counter(
            (attribute.handle_id, block.cidr)
            for block in self.world.blocks()
            for index in block.allocations
            if index is not None and (attribute := block.attributes[index])
        )
        recorded = {
            (handle_id, cidr): count
            for handle_id, handle in self.world.handles().items()
            for cidr, count in handle.blocks.items()
        }
        assert recorded == dict(counted)
        for block in self.world.blocks():
            free = [o for o, index in enumerate(block.allocations) if index is None]
            assert sorted(block.unallocated) == free
        claims = {(one.node, one.cidr) for one in self.world.affinities()}
        assert claims == {(b.node, b.cidr) for b in self.world.blocks() if b.node is not None}
        self.endpoints()
        assert self.calicoctl.problems() == []


def distinct(given: Iterable[Iterable[IPAddress]]) -> set[IPAddress]:
    """All addresses given; fails when one was given twice."""
    every = [address for one in given for address in one]
    assert len(set(every)) == len(every)
    return set(every)
