"""A node on its bench whose cluster has an overlay: pools, Nodes, blocks."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from felix_shim.cluster import BLOCKS, NODES, POOLS
from felix_shim.events import CutOver, Listed, Stored
from libtortie.datastore.port import Record
from libtortie.linux.port import Route
from libtortie.model.ipam import Attribute, Block
from libtortie.model.keys import BlockKey, Kind, Scope
from tests.fakes.agent_world import (
    ADDRESS,
    NODE,
    Bench,
    endpoint_record,
    instance,
    migration,
    resource_record,
)

CIDR = ip_network("10.65.0.0/26")
DEVICE = "vxlan.calico"


def node_record(number: int, **spec: Any) -> Record:
    """Node n0, n1 ... with both ends."""
    ends = {
        "bgp": {"ipv4Address": f"172.31.{number}.2/24"},
        "ipv4VXLANTunnelAddr": f"10.65.{number + 1}.1",
    }
    return resource_record(Kind.NODE, f"n{number}", ends | spec)


def pool_record(mode: str = "Always", cidr: str = "10.65.0.0/16", **spec: Any) -> Record:
    """The pool of the VM."""
    body = {"cidr": cidr, "vxlanMode": mode, "blockSize": 26 if "." in cidr else 122} | spec
    return resource_record(Kind.IP_POOL, "pool", body)


def block_record(
    active: str, target: str = "", *, owner: str = "n0", uid: str = "m1", address: str = ADDRESS
) -> Record:
    """The VM's block: affine to `owner`, its address active on one node and perhaps awaited on
    another."""
    allocations: list[int | None] = [None] * CIDR.num_addresses
    ordinal = int(ip_address(address)) - int(CIDR.network_address)
    allocations[ordinal] = 0
    alternate: Mapping[str, str] = {"node": target, "vmim-uid": uid} if target else {}
    block = Block(
        cidr=CIDR,
        affinity=f"host:{owner}",
        allocations=tuple(allocations),
        unallocated=(),
        attributes=(Attribute("vm", {"node": active}, alternate),),
    )
    return Record(BlockKey(CIDR), block, "1")


def lists(block: Record, pool: Record | None = None) -> dict[Scope, tuple[Record, ...]]:
    """The cluster's, as an agent reads them first."""
    return {
        NODES: tuple(node_record(number) for number in range(3)),
        POOLS: (pool or pool_record(),),
        BLOCKS[0]: (block,),
        BLOCKS[1]: (),
    }


def with_overlay(bench: Bench, block: Record, pool: Record | None = None) -> Bench:
    """The cluster's lists; the node's own address is on its uplink."""
    if bench.kernel.link("up0") is None:
        bench.kernel.add_link("up0")
    bench.kernel.ensure_address("up0", ip_interface("172.31.1.2/24"))
    bench.tell(*(Listed(scope, records) for scope, records in lists(block, pool).items()))
    bench.advance(31)  # a resync: the uplink's address is seen
    return bench


def source_bench(owner: str = NODE) -> Bench:
    """A node that a VM is about to leave for n2."""
    bench = Bench()
    live = migration("m1", source="src", target="tgt")
    bench.start(objects=(live, instance(NODE)))
    bench.attach(endpoint_record("src"))
    with_overlay(bench, block_record(NODE, "n2", owner=owner))
    assert bench.metrics("src") == [1024]
    bench.kernel.namespaces.changes.clear()
    return bench


def store(bench: Bench, block: Record) -> None:
    """The block is stored in this form."""
    bench.tell(Stored(BLOCKS[0], block))


def cut_over(bench: Bench, node: str, uid: str = "m1", address: str = ADDRESS) -> None:
    """A node says that it has heard the VM."""
    bench.tell(CutOver(node, uid, (ip_address(address),)))


def away(bench: Bench, address: str = ADDRESS) -> str:
    """Where the overlay's host route leads, "" for none."""
    found: list[Route] = [
        route
        for route in bench.kernel.routes(dst=ip_network(address))
        if route.ifname == DEVICE and route.gateway is not None
    ]
    assert len(found) <= 1
    return (
        {f"10.65.{number + 1}.1": f"n{number}" for number in range(3)}[str(found[0].gateway)]
        if found
        else ""
    )
