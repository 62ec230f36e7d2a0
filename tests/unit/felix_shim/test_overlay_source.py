"""Blocks are followed from the moment that a pool is in the overlay; BIRD leaves it alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv6Interface, ip_network

import pytest

from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput
from felix_shim.cluster import BLOCKS, NODES, POOLS
from felix_shim.events import Event, Listed, Stored
from felix_shim.overlay_source import BlocksSource
from felix_shim.sources import StoreSource
from libtortie.datastore.memory import MemoryDatastore
from tests.fakes.agent_world import RecordingLog
from tests.fakes.node_process import until
from tests.fakes.overlay_bench import block_record, node_record, pool_record


@dataclass
class Following:
    """A source on a thread, and what it posted."""

    seen: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        store = MemoryDatastore()
        record = block_record("n0")
        store.create(record.key, record.value)
        inner = StoreSource(store, BLOCKS[0], self.seen.append, RecordingLog())
        self.source = BlocksSource(inner)
        self.thread = threading.Thread(target=self.source.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.source.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_without_a_pool_in_the_overlay_nobody_listens() -> None:
    following = Following()
    for event in (
        Listed(POOLS, (pool_record("Never"),)),
        Stored(POOLS, pool_record("Never")),
        Listed(NODES, (node_record(0),)),
    ):
        following.source.notice(event)
    following.end()
    assert following.seen == []


@pytest.mark.parametrize("mode", ["Always", "CrossSubnet"])
@pytest.mark.parametrize("by", [lambda one: Listed(POOLS, (one,)), lambda one: Stored(POOLS, one)])
def test_a_pool_in_the_overlay_begins_it(mode: str, by: object) -> None:
    following = Following()
    following.source.notice(by(pool_record(mode)))  # type: ignore[operator]  # one of the two above
    until("the blocks are listed", lambda: bool(following.seen))
    following.end()
    first = following.seen[0]
    assert isinstance(first, Listed)
    assert first.scope == BLOCKS[0]
    assert [record.key for record in first.records] == [block_record("n0").key]


def ignore(event: Event) -> None:
    """Nobody wants it."""


def test_both_families_have_names_of_their_own() -> None:
    names = {
        BlocksSource(StoreSource(MemoryDatastore(), scope, ignore, RecordingLog())).name
        for scope in BLOCKS
    }
    assert names == {"blocks", "blocks-v6"}


def test_bird_puts_no_route_of_the_overlay_into_the_kernel() -> None:
    config = BirdInput(
        node="n1",
        router_id=IPv4Address("172.31.1.2"),
        address=IPv4Interface("172.31.1.2/24"),
        address6=IPv6Interface("fd31::2/64"),
        tunnelled=(ip_network("10.66.0.0/16"), ip_network("10.65.0.0/16"), ip_network("fd65::/48")),
    )
    text = render_bird(config)
    four, six = text.split("filter to_kernel4 {")[1], text.split("filter to_kernel6 {")[1]
    assert four.splitlines()[2:4] == [
        "  if net ~ [ 10.65.0.0/16+, 10.66.0.0/16+ ] then reject;",
        "  if source = RTS_BGP || source = RTS_STATIC then accept;",
    ]
    assert six.splitlines()[2] == "  if net ~ [ fd65::/48+ ] then reject;"
    assert render_bird(BirdInput("n1", config.router_id, config.address)).count("+ ] then") == 0
