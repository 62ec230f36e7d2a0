"""Whatever the overlay is told, in whatever order and however often: in the end the store decides.

And what is remembered between plans changes none of them.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from felix_shim.cluster import BLOCKS, FELIX, NODES, POOLS, Cluster
from felix_shim.drivers.vxlan import OverlayDriver
from felix_shim.endpoints import parse_endpoint
from felix_shim.events import CutOver, Listed, Stored, Unstored
from felix_shim.overlay import Composer, Overlay, overlay
from felix_shim.overlay_desk import OverlayDesk
from felix_shim.roster import Local, Roster
from felix_shim.settings import Settings
from libtortie.datastore.port import Record
from libtortie.model.ipam import Attribute, Block
from libtortie.model.keys import BlockKey
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NODE, RecordingLog, endpoint_record
from tests.fakes.kernel import FakeKernel
from tests.fakes.overlay_bench import node_record, pool_record
from tests.fakes.tunnels import FakeTunnels

CIDRS = [ip_network(f"10.65.{number}.0/30") for number in range(3)] + [ip_network("10.65.9.9/32")]
NODE_NAMES = ["n0", NODE, "n2", "n3"]
ADDRESSES = [cidr.network_address for cidr in CIDRS]
LINKS = {"up0": frozenset({ip_address("172.31.1.2")})}

names = st.sampled_from(NODE_NAMES)
blocks = st.builds(
    lambda cidr, owner, active, target: Block(
        cidr,
        owner and f"host:{owner}",
        (0, *(None,) * (cidr.num_addresses - 1)),
        (),
        (Attribute("vm", {"node": active}, {"node": target, "vmim-uid": "m"} if target else {}),),
    ),
    st.sampled_from(CIDRS),
    st.none() | names,
    names,
    st.none() | names,
)
stored = blocks.map(lambda one: Stored(BLOCKS[0], Record(BlockKey(one.cidr), one, "1")))
gone = st.sampled_from(CIDRS).map(lambda cidr: Unstored(BLOCKS[0], BlockKey(cidr)))
told = st.builds(CutOver, names, st.just("m"), st.sampled_from(ADDRESSES).map(lambda one: (one,)))
nodes = st.sets(st.integers(0, 3), min_size=1).map(
    lambda found: Listed(NODES, tuple(node_record(number) for number in sorted(found)))
)
pools = st.sampled_from(["Always", "CrossSubnet", "Never"]).map(
    lambda mode: Listed(POOLS, (pool_record(mode),))
)
histories = st.lists(stored | stored | told | gone | nodes | pools | st.just(None), max_size=30)


CONVERGENCE = 30.0


def local_roster(address: IPv4Address) -> Roster:
    """A VM's endpoint with the address is here."""
    record = endpoint_record("vm", address=str(address))
    assert isinstance(record.value, WorkloadEndpoint)
    roster = Roster()
    roster.add(Local(record.key, parse_endpoint(record.value)))
    return roster


class Site:
    """A desk, what is listed, and a kernel."""

    def __init__(self, here: IPv4Address) -> None:
        self.cluster = Cluster(NODE)
        self.cluster.replace(FELIX, ())
        for scope in BLOCKS:
            self.cluster.replace(scope, ())
        self.desk = OverlayDesk(NODE, local_roster(here))
        self.composer = Composer()
        self.kernel = FakeKernel()
        self.kernel.add_link("up0")
        self.driver = OverlayDriver(self.kernel, FakeTunnels(self.kernel), RecordingLog())
        self.now = 0.0
        self.take(Listed(NODES, tuple(map(node_record, range(3)))))
        self.take(Listed(POOLS, (pool_record(),)))

    def take(self, event: Stored | Unstored | Listed | CutOver | None) -> None:
        match event:
            case None:
                self.now += CONVERGENCE / 2
            case CutOver():
                self.desk.claim(event, self.now, CONVERGENCE)
            case Listed():
                self.cluster.replace(event.scope, event.records)
            case _:
                self.desk.feed(event)
        self.desk.expire(self.now)

    def apply(self) -> tuple[Overlay, ...]:
        """The overlays, laid; as quick as they can be had, and as they are from nothing."""
        plan = self.desk.plan(self.cluster, Settings(), LINKS)
        assert plan is not None
        found = plan.overlays(self.composer)
        where = replace(plan.where, near=None, version=-1)
        assert found == tuple(overlay(ground, where) for ground in plan.grounds)
        self.driver.apply(found, 0)
        assert frozenset(self.kernel.routes()) == found[0].routes
        return found


@given(histories, st.sampled_from(ADDRESSES))
def test_in_the_end_the_store_decides(
    history: list[Stored | Unstored | Listed | CutOver | None], here: IPv4Address
) -> None:
    site, last = Site(here), Site(here)
    final: dict[object, Stored | Unstored | Listed] = {}
    for event in history:
        site.take(event)
        site.apply()
        match event:
            case Stored(record=record):
                final[record.key] = event
            case Unstored(key=key):
                final[key] = event
            case Listed(scope=scope):
                final[scope] = event
    site.take(None)
    site.take(None)
    for one in final.values():
        last.take(one)
    assert site.apply() == last.apply()


@given(histories)
def test_no_notice_makes_a_way_that_the_store_does_not_foresee(
    history: list[Stored | Unstored | Listed | CutOver | None],
) -> None:
    """A host route leads to the active owner's node, or to that of the one who is awaited."""
    site = Site(IPv4Address("10.64.0.1"))
    for event in history:
        site.take(event)
        for route in site.apply()[0].hosts:
            block = site.desk._block_of(route.dst.network_address)
            assert block is not None
            foreseen = {block.nodes[route.dst.network_address]}
            foreseen |= {block.targets.get(route.dst.network_address, ("", ""))[0]}
            ends = {f"10.65.{number + 1}.1": f"n{number}" for number in range(4)}
            near = {f"172.31.{number}.2": f"n{number}" for number in range(4)}
            assert (ends | near)[str(route.gateway)] in foreseen
