"""A cluster for garbage collection: IPAM's store, an API with nodes and pods, a clock, passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from ipam.block import new_block, set_owners
from ipam.client import AddressRequest
from ipam.gc import Means, Memory, Outcome, Swept, sweep
from ipam.gc_claims import Claim, Flaw
from libtortie.datastore.port import Datastore
from libtortie.kube.objects import KubeNode, Meta, Pod, PodIP, PodSpec, PodStatus
from libtortie.kube.port import KubeReader
from libtortie.model.ipam import BlockAffinity, IPAddress
from libtortie.model.keys import AffinityKey, BlockKey, IPNetwork, Kind, ResourceKey
from libtortie.model.resources import parse_resource
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool
from tests.fakes.kube import FakeKube

GRACE = 900.0
V4 = AddressRequest()
BOTH = AddressRequest(ipv6=True)
NETWORK = "k8s-pod-network"


@dataclass
class Town:
    """Nodes with pods. What the API has is the truth; `run` is what an ADD leaves behind.

    Without `stores_nodes` the datastore has no Nodes of its own, as on Kubernetes.
    """

    world: World = field(default_factory=World)
    kube: FakeKube = field(default_factory=FakeKube)
    reader: KubeReader | None = None
    stores_nodes: bool = True
    seconds: float = 5000.0
    memory: Memory = field(default_factory=dict)
    last: Swept | None = None
    stopped: bool = False

    def __post_init__(self) -> None:
        self.reader = self.kube
        self.world.pools(pool("v4", "10.65.0.0/24", blockSize=30), pool("v6", "fd65::/116"))
        self.pod("kube-proxy", node="n0", ips=["192.0.2.1"])
        for name in ("n0", "n1", "n2"):
            self.node(name)

    # -- the cluster -----------------------------------------------------------------------------

    def node(self, name: str, *, stored: bool = True, api: bool = True, **spec: Any) -> None:
        if stored and self.stores_nodes:
            self.world.resource(Kind.NODE, name, spec)
        if api:
            self.kube.put(KubeNode(metadata=Meta(name=name)))

    def remove_node(self, name: str) -> None:
        if self.stores_nodes:
            self.world.store.delete(ResourceKey(Kind.NODE, name))
        self.kube.remove(KubeNode, name)

    def pod(
        self,
        name: str,
        *,
        node: str = "n1",
        ips: Sequence[object] = (),
        uid: str = "",
        phase: str = "Running",
        **annotations: str,
    ) -> None:
        notes = {f"cni.projectcalico.org/{key}": value for key, value in annotations.items()}
        meta = Meta(namespace="shop", name=name, uid=uid or f"u-{name}", annotations=notes)
        status = PodStatus(phase=phase, podIPs=tuple(PodIP(ip=str(ip)) for ip in ips))
        self.kube.put(Pod(metadata=meta, spec=PodSpec(node_name=node), status=status))

    def remove_pod(self, name: str) -> None:
        self.kube.remove(Pod, name, "shop")

    def run(
        self, pod: str, node: str = "n1", *, want: AddressRequest = V4, **owner: Any
    ) -> tuple[IPAddress, ...]:
        """An ADD on a node: the pod's addresses."""
        theirs = plain_pod(pod, node=node, **owner)
        handle = f"{NETWORK}.{theirs['container-id']}"
        got = self.world.client(node).assign(handle, theirs, want)
        return tuple(one.address for one in got)

    def start(self, pod: str, node: str = "n1", *, want: AddressRequest = V4) -> tuple[Any, ...]:
        """A pod that runs and says so."""
        addresses = self.run(pod, node, want=want)
        self.pod(pod, node=node, ips=addresses)
        return addresses

    def stop(self, pod: str) -> None:
        """A pod's DEL."""
        self.world.client().release(f"{NETWORK}.c-{pod}")

    def tunnel(self, node: str, kind: str = "ipipTunnelAddress") -> tuple[str, ...]:
        """The addresses of a node's tunnel, of either family."""
        owner = {"node": node, "type": kind}
        got = self.world.client(node).assign(f"tunnel-addr-{node}", owner, BOTH)
        return tuple(str(one.address) for one in got)

    def endpoint(
        self,
        pod: str,
        *addresses: object,
        node: str = "n1",
        container: str = "",
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """What an ADD wrote as the pod's WorkloadEndpoint."""
        spec = {"orchestrator": "k8s", "pod": pod, "node": node, "endpoint": "eth0"}
        nets = [f"{one}/32" if ":" not in str(one) else f"{one}/128" for one in addresses]
        body = {
            "kind": "WorkloadEndpoint",
            "metadata": {
                "name": f"{node}-k8s-{pod}-eth0",
                "namespace": "shop",
                "annotations": dict(notes or {}),
            },
            "spec": {**spec, "containerID": container or f"c-{pod}", "ipNetworks": nets},
        }
        key = ResourceKey(Kind.WORKLOAD_ENDPOINT, f"{node}-k8s-{pod}-eth0", "shop")
        self.world.put(key, parse_resource(Kind.WORKLOAD_ENDPOINT, body))

    # -- passes ----------------------------------------------------------------------------------

    def sweep(
        self, store: Datastore | None = None, *, later: float = GRACE, **options: Any
    ) -> Swept:
        """A pass, a grace after the last one unless `later` says otherwise."""
        self.seconds += later
        means = Means(
            store or self.world.store,
            self.reader,
            self.world.now,
            monotonic=lambda: self.seconds,
            sleep=lambda _: None,
            retry=UNHURRIED,
            stopped=lambda: self.stopped,
        )
        self.last = sweep(means, self.memory, grace=GRACE, **options)
        self.memory = self.last.memory
        return self.last

    def settle(self, passes: int = 3, **options: Any) -> None:
        """So many passes, a grace apart."""
        for _ in range(passes):
            self.sweep(**options)

    def outcomes(self, prefix: str) -> dict[str, tuple[Outcome, str]]:
        """What the last pass made of subjects whose key begins so, and why."""
        assert self.last is not None
        return {
            one.subject.key.removeprefix(prefix): (one.outcome, one.reason)
            for one in self.last.verdicts
            if one.subject.key.startswith(prefix)
        }

    def outcome(self, key: str) -> Outcome:
        return self.outcomes(key)[""][0]

    def reason(self, key: str) -> str:
        return self.outcomes(key)[""][1]

    def of(self, address: object) -> Outcome:
        return self.outcome(f"address {address}")

    def why(self, address: object) -> str:
        return self.reason(f"address {address}")

    @property
    def held(self) -> set[str]:
        """Every address that is held."""
        found = set()
        for block in self.world.blocks():
            for ordinal in range(len(block.allocations)):
                attribute = block.attribute(ordinal)
                if attribute is not None and attribute.released_at is None:
                    found.add(str(block.address(ordinal)))
        return found

    def rewrite(self, address: IPAddress, active: dict[str, str]) -> None:
        """Give one address other owner attributes, as another program would write them."""
        for block in self.world.blocks():
            if address in block.cidr:
                changed = set_owners(block, {block.ordinal(address): (active, {})})
                self.world.put(BlockKey(block.cidr), changed)


def mess(town: Town) -> None:
    """Something of each kind of flaw, and one thing that is in order."""
    town.start("keeps", "n2", want=BOTH)
    for number in range(5):
        town.start(f"n1-{number}")
    for number in (3, 4):
        town.stop(f"n1-{number}")
        town.remove_pod(f"n1-{number}")
    town.run("lost", "n3")
    town.node("n3")
    town.start("lives", "n3")
    town.remove_node("n3")
    _claim(town, ip_network("10.65.0.252/30"))
    _claim(town, _blocks_of(town, "n2")[0])
    nobodys = new_block(ip_network("10.65.0.248/30"), node=None, now=town.world.now())
    town.world.put(BlockKey(nobodys.cidr), nobodys)
    town.world.store.delete(AffinityKey("n2", _blocks_of(town, "n2")[1]))


def flaws(town: Town) -> set[Flaw]:
    assert town.last is not None
    subjects = (one.subject for one in town.last.verdicts if one.outcome is not Outcome.KEEP)
    return {one.flaw for one in subjects if isinstance(one, Claim)}


def _claim(town: Town, cidr: IPNetwork) -> None:
    town.world.put(AffinityKey("n1", cidr), BlockAffinity())


def _blocks_of(town: Town, node: str) -> list[IPNetwork]:
    return [one.cidr for one in town.world.blocks() if one.node == node]
