"""A node that has IPv6 addresses and no others starts as any does."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from libtortie.model.keys import Kind, ResourceKey, Resources
from tests.fakes.starting_node import Machine, memory


def test_a_node_of_ipv6_alone_starts(tmp_path: Path) -> None:
    store = memory()
    machine = Machine(tmp_path, store, address="fd00:1::11/64", options="ip: none\nip6: autodetect")
    machine.kernel.write_sysctl("net/ipv6/conf/all/disable_ipv6", "0")
    started = machine.boot()
    assert started.own() == (ip_address("fd00:1::11"),)
    assert started.uplinks() == ("eth0",)
    facts = started.facts()
    assert (facts.address, facts.link6) == (None, "eth0")
    pools = [record.key for record in store.list(Resources(Kind.IP_POOL)).records]
    assert pools == [ResourceKey(Kind.IP_POOL, "default-ipv6-ippool")]
    assert machine.complaints() == []
