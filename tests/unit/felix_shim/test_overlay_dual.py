"""A VM of both families in the overlay: each address keeps its route until its own way is there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from felix_shim.cluster import BLOCKS, NODES, POOLS
from felix_shim.events import Listed, Stored
from felix_shim.migration import State
from felix_shim.settings import Settings
from libtortie.datastore.port import Record
from libtortie.linux.port import RouteType
from libtortie.model.ipam import Attribute, Block
from libtortie.model.keys import BlockKey, Kind
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import (
    ADDRESS,
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
    resource_record,
)
from tests.fakes.overlay_bench import block_record, cut_over, node_record, pool_record, store

SIX, CIDR6 = "fd65::2", ip_network("fd65::/122")
BOTH = (ADDRESS, SIX)
CONVERGENCE = Settings().convergence_seconds


def dual(record: Record) -> Record:
    """An endpoint's record, with the second address."""
    value = record.value
    assert isinstance(value, WorkloadEndpoint)
    networks = (*value.spec.ip_networks, f"{SIX}/128")
    spec = value.spec.model_copy(update={"ip_networks": networks})
    return replace(record, value=value.model_copy(update={"spec": spec}))


def block6(active: str, target: str = "", owner: str = NODE) -> Record:
    """The block of the second address."""
    allocations: list[int | None] = [None] * CIDR6.num_addresses
    allocations[2] = 0
    alternate = {"node": target, "vmim-uid": "m1"} if target else {}
    attribute = Attribute("vm", {"node": active}, alternate)
    block = Block(CIDR6, f"host:{owner}", tuple(allocations), (), (attribute,))
    return Record(BlockKey(CIDR6), block, "1")


def leaving() -> Bench:
    """The node that both blocks are of, and that the VM is about to leave for n2."""
    bench = Bench()
    bench.start(objects=(migration("m1", source="src", target="tgt"), instance(NODE)))
    bench.attach(dual(endpoint_record("src")))
    with_both(bench, block_record(NODE, "n2", owner=NODE), block6(NODE, "n2"))
    assert [best(bench, one) for one in BOTH] == ["here", "here"]
    return bench


def arriving() -> Bench:
    """The node that the VM is about to come to from n0, which both blocks are of."""
    bench = Bench()
    bench.start(objects=(migration("m1", source="src", target="tgt"), instance("n0")))
    bench.attach(dual(endpoint_record("tgt", migration="m1")))
    with_both(bench, block_record("n0", NODE, owner="n0"), block6("n0", NODE, "n0"))
    assert bench.state("tgt") is State.TARGET
    return bench


def with_both(bench: Bench, four: Record, six: Record) -> None:
    """The cluster's lists, with a pool of each family in the overlay."""
    bench.kernel.add_link("up0")
    for address in ("172.31.1.2/24", "fd31::1:2/64"):
        bench.kernel.ensure_address("up0", ip_interface(address))
    nodes = [
        node_record(
            number,
            bgp={"ipv4Address": f"172.31.{number}.2/24", "ipv6Address": f"fd31::{number}:2/64"},
            ipv6VXLANTunnelAddr=f"fd65::{number + 1}:1",
        )
        for number in range(3)
    ]
    pool6 = resource_record(Kind.IP_POOL, "pool6", {"cidr": "fd65::/64", "vxlanMode": "Always"})
    bench.tell(
        Listed(NODES, tuple(nodes)),
        Listed(POOLS, (pool_record(), pool6)),
        Listed(BLOCKS[0], (four,)),
        Listed(BLOCKS[1], (six,)),
    )
    bench.advance(31)


def best(bench: Bench, address: str) -> str:
    """Where the kernel would send a packet: `here`, `away`, or into the blackhole."""
    packet = ip_address(address)
    routes = [one for one in bench.kernel.routes(version=packet.version) if packet in one.dst]
    first = min(routes, key=lambda one: (-one.dst.prefixlen, one.priority))
    if first.type is RouteType.BLACKHOLE:
        return "blackhole"
    return "here" if first.ifname.startswith("cali") else "away"


def test_a_family_whose_way_is_not_there_yet_meets_no_blackhole() -> None:
    bench = leaving()
    cut_over(bench, "n2")
    assert bench.state("src") is State.DEPARTED
    assert [best(bench, one) for one in BOTH] == ["away", "here"]
    cut_over(bench, "n2", address=SIX)
    assert [best(bench, one) for one in BOTH] == ["away", "away"]
    assert bench.metrics("src") == []


@pytest.mark.parametrize("first", [4, 6])
def test_the_records_of_the_families_come_one_after_the_other(first: int) -> None:
    bench = leaving()
    told = {4: (BLOCKS[0], block_record("n2", owner=NODE)), 6: (BLOCKS[1], block6("n2"))}
    for version, wanted in ((first, {"here", "away"}), (10 - first, {"away"})):
        bench.tell(Stored(*told[version]))
        assert {best(bench, one) for one in BOTH} == wanted


def test_a_way_that_never_comes_is_not_waited_for_for_ever() -> None:
    bench = leaving()
    cut_over(bench, "n2")
    for _ in range(3):
        bench.advance(CONVERGENCE / 3)
        cut_over(bench, "n2")
    assert [best(bench, one) for one in BOTH] == ["away", "blackhole"]
    bench.advance(CONVERGENCE)
    assert [best(bench, one) for one in BOTH] == ["here", "here"], "n2 fell silent"
    cut_over(bench, "n2")
    assert [best(bench, one) for one in BOTH] == ["away", "here"], "it is waited for anew"


def test_a_vm_that_is_known_to_be_gone_by_the_api_alone_keeps_its_routes_for_a_while() -> None:
    bench = leaving()
    bench.seen(migration("m1", "Succeeded", source="src", target="tgt"), instance("n2"))
    assert bench.state("src") is State.DEPARTED
    assert [best(bench, one) for one in BOTH] == ["here", "here"]
    store(bench, block_record("n2", owner=NODE))
    assert [best(bench, one) for one in BOTH] == ["away", "here"]


@pytest.mark.parametrize("first", [4, 6])
def test_a_vm_that_has_come_stays_though_its_blocks_are_told_of_one_after_the_other(
    first: int,
) -> None:
    """What the store still says of the other family is older than the VM's sign."""
    bench = arriving()
    bench.sign("tgt")
    told = {4: (BLOCKS[0], block_record(NODE, owner="n0")), 6: (BLOCKS[1], block6(NODE, "", "n0"))}
    for version, recorded in ((first, False), (10 - first, True)):
        bench.tell(Stored(*told[version]))
        assert bench.state("tgt") is State.LIVE
        assert [best(bench, one) for one in BOTH] == ["here", "here"]
        assert bool(bench.tellings[-1]) is not recorded, "the owner is told until it knows both"
