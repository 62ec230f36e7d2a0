"""Every IPAM operation with a cluster to do it in: what tests of death and loss sweep over.

An operation is prepared on a healthy store, then done by one node over a store that may fail.
`stored` and `outcome` read the result from the blocks; times and sequence numbers are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from ipam.attempts import Attempts
from ipam.block import new_block
from ipam.client import AddressRequest, IPAMClient
from ipam.gc import Means, sweep
from ipam.tunnels import VXLAN, ensure_tunnel_addresses, stated_in
from libtortie.datastore.port import Datastore
from libtortie.kube.objects import KubeNode, Meta
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import BlockKey, Kind, ResourceKey, Resources
from libtortie.model.resources import Node
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool, vm_pod
from tests.fakes.kube import FakeKube

V4 = AddressRequest()
BOTH = AddressRequest(ipv6=True)
ORDINARY = "k8s-pod-network.c-pod"
VM = "k8s-pod-network.vmi.shop.db"
SOURCE = vm_pod("src")
TARGET = vm_pod("dst", node="n2", vmim_uid="m-1")
FIXED = ip_address("10.0.0.5")

Work = Callable[[IPAMClient], object]


@dataclass(frozen=True)
class Operation:
    """`act` does it over a store and is what the runtime repeats; `handle` is what it is about.

    `gives`: its success means that the handle holds addresses, otherwise that it holds none.
    `keeps`: what the handle had before is part of that. `later`: a handle whose DEL follows.
    `settles`: a repeat after success changes nothing more. `collected`: without transactions a
    death may leave a record that only the collector mends.
    """

    name: str
    handle: str
    prepare: Callable[[World], object]
    work: Work
    node: str = "n1"
    gives: bool = True
    keeps: bool = False
    later: str = ""
    settles: bool = True
    collected: bool = False

    def act(self, world: World, store: Datastore) -> None:
        """Do it as a program that has just started."""
        self.work(world.client(self.node, store))


def cluster(world: World) -> World:
    """Four blocks of four addresses in either family."""
    return world.pools(
        pool("a", "10.0.0.0/28", blockSize=30), pool("b", "fd00::/124", blockSize=126)
    )


def _own_block(world: World) -> None:
    cluster(world).client("n1").assign("warm", plain_pod("warm"), BOTH)


def _reclaimable(world: World) -> None:
    """The only block of each family was another node's and is empty."""
    world.pools(pool("a", "10.0.0.0/30", blockSize=30), pool("b", "fd00::/126", blockSize=126))
    world.client("n2").assign("gone", plain_pod("gone", node="n2"), BOTH)
    world.client("n2").release("gone")
    world.later(120)


def _lendable(world: World) -> None:
    """The only blocks are another node's, which uses them."""
    world.pools(pool("a", "10.0.0.0/30", blockSize=30), pool("b", "fd00::/126", blockSize=126))
    world.client("n2").assign("theirs", plain_pod("theirs", node="n2"), BOTH)


def _earlier_sandbox(world: World) -> None:
    """The address asked for is held by a sandbox of the same pod that is gone."""
    want = AddressRequest(addresses=(FIXED,))
    cluster(world).client("n1").assign("earlier", plain_pod("pod", uid="u-0"), want)


def _held(world: World) -> None:
    _own_block(world)
    world.client("n1").assign(ORDINARY, plain_pod("pod"), BOTH)


def _held_with_cooldown(world: World) -> None:
    _held(world.config(cooldown_seconds=60))


def _held_in_nobodys_block(world: World) -> None:
    """The block has no node any more: it goes with its last address."""
    cluster(world)
    for cidr in ("10.0.0.0/30", "fd00::/126"):
        block = new_block(ip_network(cidr), node=None, now=world.now())
        world.put(BlockKey(block.cidr), block)
    wanted = (ip_address("10.0.0.1"), ip_address("fd00::1"))
    world.client("n1").assign(ORDINARY, plain_pod("pod"), AddressRequest(addresses=wanted))


def _running(world: World) -> None:
    _own_block(world)
    world.client("n1").claim_vm(VM, SOURCE, BOTH)


def _one_family(world: World) -> None:
    _own_block(world)
    world.client("n1").claim_vm(VM, SOURCE, V4)


def _migrating(world: World) -> None:
    _running(world)
    world.client("n2").claim_vm_target(VM, TARGET)


def _stopped(world: World) -> None:
    _running(world)
    world.client("n1").disown_vm(VM, SOURCE, vm_deleting=False)


def _assign(want: AddressRequest) -> Work:
    return lambda client: client.assign(ORDINARY, plain_pod("pod"), want)


def _take_over(client: IPAMClient) -> object:
    want = AddressRequest(addresses=(FIXED,))
    return client.assign(ORDINARY, plain_pod("pod"), want, previous_owner_gone=lambda _: True)


@functools.cache
def _deserted_api() -> FakeKube:
    """A cluster with two nodes and neither pods nor VMs; nobody changes it."""
    return FakeKube(*(KubeNode(metadata=Meta(name=name)) for name in ("n1", "n2")))


def collect_all(world: World, store: Datastore) -> None:
    """Two passes, a grace apart, where the API has nothing but nodes."""
    seconds = iter(range(0, 1_000_000, 1000))
    means = Means(
        store,
        _deserted_api(),
        world.now,
        monotonic=lambda: float(next(seconds)),
        sleep=lambda _: None,
        retry=UNHURRIED,
    )
    first = sweep(means, {}, trust_empty=True)
    sweep(means, first.memory, trust_empty=True)


@dataclass(frozen=True)
class Collector(Operation):
    """Passes of the collector, which is no client."""

    def act(self, world: World, store: Datastore) -> None:
        """As a daemon that has just started."""
        collect_all(world, store)


@dataclass(frozen=True)
class Tunnels(Operation):
    """A node's own addresses for its tunnels: IPAM's records and the Node's are two commits."""

    def act(self, world: World, store: Datastore) -> None:
        """As an agent that has just started."""
        client = world.client(self.node, store)
        attempts = Attempts(store, UNHURRIED, monotonic=lambda: 0.0, sleep=lambda _: None)
        done = ensure_tunnel_addresses(store, client, self.node, attempts)
        assert [one.error for one in done if one.error] == []
        node = world.store.get(ResourceKey(Kind.NODE, self.node)).value
        assert isinstance(node, Node)
        stated = {stated_in(node, VXLAN)} - {""}
        assert stated == {str(address) for address in stored(world, self.handle)}


def _needs_tunnels(world: World) -> None:
    """A pool is encapsulated, and the node has no address of its own in it yet."""
    cluster(world).pools(pool("a", "10.0.0.0/28", blockSize=30, vxlanMode="Always"))
    world.resource(Kind.NODE, "n1", {})


def _needs_no_tunnels(world: World) -> None:
    """It is not any more, and it has."""
    _needs_tunnels(world)
    TUNNELS.act(world, world.store)
    cluster(world)


def _deserted(world: World) -> None:
    """A stopped VM's address, an ordinary pod's and a second block that nothing is in."""
    _stopped(world)
    client = world.client("n1")
    for number in range(3):
        client.assign(f"more-{number}", plain_pod(f"more-{number}"), V4)
    for number in range(3):
        client.release(f"more-{number}")


def _release(client: IPAMClient) -> object:
    return client.release(ORDINARY)


def _claim(client: IPAMClient) -> object:
    return client.claim_vm(VM, SOURCE, BOTH)


def _claim_again(client: IPAMClient) -> object:
    return client.claim_vm(VM, vm_pod("next", node="n2"), BOTH)


def _target(client: IPAMClient) -> object:
    return client.claim_vm_target(VM, TARGET)


def _promote(client: IPAMClient) -> object:
    return client.promote(VM, TARGET)


def _stop(client: IPAMClient) -> object:
    return client.disown_vm(VM, SOURCE, vm_deleting=False)


def _delete(client: IPAMClient) -> object:
    return client.disown_vm(VM, SOURCE, vm_deleting=True)


_explicit = _assign(AddressRequest(addresses=(FIXED,)))

ALLOCATIONS = (
    Operation("own block", ORDINARY, _own_block, _assign(V4)),
    Operation("new block", ORDINARY, cluster, _assign(V4)),
    Operation("dual stack", ORDINARY, cluster, _assign(BOTH)),
    Operation("reclaim", ORDINARY, _reclaimable, _assign(BOTH)),
    Operation("borrow", ORDINARY, _lendable, _assign(BOTH)),
    Operation("explicit", ORDINARY, cluster, _explicit),
    Operation("explicit, taken over", ORDINARY, _earlier_sandbox, _take_over, later="earlier"),
    Operation("claim", VM, cluster, _claim),
    Operation("claim of a family more", VM, _one_family, _claim, keeps=True),
)
CHANGES = (
    Operation("claim by the next pod", VM, _stopped, _claim_again, node="n2", keeps=True),
    Operation("claim for a target", VM, _running, _target, node="n2", keeps=True),
    Operation("promote", VM, _migrating, _promote, node="n2", keeps=True),
    Operation("disown", VM, _running, _stop, keeps=True),
)
RELEASES = (
    Operation("release", ORDINARY, _held, _release, gives=False),
    Operation("release with cooldown", ORDINARY, _held_with_cooldown, _release, gives=False),
    Operation("release of a block's last", ORDINARY, _held_in_nobodys_block, _release, gives=False),
    Operation("disown of a deleted VM", VM, _running, _delete, gives=False),
)
COLLECTOR = Collector("collector", VM, _deserted, lambda _: None, gives=False, settles=False)
TUNNELS = Tunnels("tunnels", VXLAN.handle_id("n1"), _needs_tunnels, lambda _: None, settles=False)
NO_TUNNELS = Tunnels(
    "no more tunnels",
    VXLAN.handle_id("n1"),
    _needs_no_tunnels,
    lambda _: None,
    gives=False,
    settles=False,
    collected=True,
)
OPERATIONS = (*ALLOCATIONS, *CHANGES, *RELEASES, COLLECTOR, TUNNELS, NO_TUNNELS)
BY_NAME = {one.name: one for one in OPERATIONS}
CLIENTS = [one.name for one in (*ALLOCATIONS, *CHANGES, *RELEASES)]
"""Operations of a sandbox's ADD or DEL, or of a migration."""
EVERYWHERE = [*CLIENTS, COLLECTOR.name]
"""What is swept on every store; tunnels, which are several operations, only in memory."""


def veteran(operation: Operation, world: World, store: Datastore) -> IPAMClient:
    """A client whose memory is out of date: another one has changed what it remembers."""
    client = world.client(operation.node, store)
    client.assign("stale", plain_pod("stale", node=operation.node), BOTH)
    world.client(operation.node).release("stale")
    return client


def stored(world: World, handle: str) -> set[IPAddress]:
    """What the blocks give a handle, whatever its record says."""
    return {
        block.address(ordinal)
        for block in world.blocks()
        for ordinal, index in enumerate(block.allocations)
        if index is not None and block.attributes[index].handle_id == handle
    }


def outcome(world: World) -> object:
    """What is stored, without sequence numbers and claim times.

    An affinity that claims another node's block stands for nothing and is left out: whoever it
    names deletes it.
    """
    nodes = {block.cidr: block.node for block in world.blocks()}
    named = [record.value for record in world.store.list(Resources(Kind.NODE)).records]
    return (
        [one.spec.to_wire() for one in named if isinstance(one, Node)],
        world.handles(),
        sorted(
            f"{b.cidr} {b.affinity} {b.allocations} {sorted(b.unallocated)} {b.attributes}"
            for b in world.blocks()
        ),
        sorted(
            f"{key} {value.state}"
            for key, value in world.affinities().items()
            if nodes.get(key.cidr, key.node) == key.node
        ),
    )


def judge(operation: Operation, world: World, before: set[IPAddress]) -> None:
    """What must hold once an operation succeeded, however often it was begun."""
    if operation.later:
        world.client("n1").release(operation.later)
    if operation.collected:
        collect_all(world, world.store)
    world.audit()
    held = stored(world, operation.handle)
    if operation.gives:
        assert held
        assert before <= held, "what had been stored is what is given"
    else:
        assert not held
    if not operation.keeps and operation.gives:
        per_family = [address.version for address in held]
        assert len(set(per_family)) == len(per_family), "one address of a family"


def give_back(world: World) -> None:
    """Release every handle there is: nothing may be left but empty blocks."""
    client = world.client("n1")
    for handle in {*world.handles(), *world.allocated()}:
        client.release(handle)
    assert world.handles() == {}
    assert world.allocated() == {}
    world.audit()
