"""Two interfaces of one migrating VM on a real node: each arrives by itself, both stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipam.client import AddressRequest
from ipam.ownership import IFNAME
from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind
from libtortie.model.names import host_ifname, vm_handle
from tests.fakes import frames
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import packet_socket
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

POD = "virt-launcher-db-1"
LAN = vm_handle("lan", "default", "db")
SECOND: dict[str, Any] = {
    "ifname": "net1",
    "name": "lan",
    "ipam": {"type": "tortie-ipam", "ipv4_pools": ["lan"]},
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, fresh_name("ai"))
    try:
        spec = {"cidr": "10.77.0.0/24", "blockSize": 26, "assignmentMode": "Manual"}
        pool = resource_record(Kind.IP_POOL, "lan", spec)
        made.store.create(pool.key, pool.value)
        settings = {"liveMigrationRouteConvergenceTime": "1s"}
        soon = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", settings)
        made.store.create(soon.key, soon.value)
        yield made
    finally:
        made.close()


def metrics(node: CalledNode, address: str, ifname: str) -> list[int]:
    found = node.ip_json("route", "show", address, "dev", host_ifname("default", POD, ifname))
    return [int(one.get("metric", 0)) for one in found]


def announce(node: CalledNode, ifname: str, mac: str) -> None:
    raw = Netns().call(node.sandbox("ctr1"), lambda: packet_socket(ifname))
    with raw:
        raw.send(frames.rarp(mac))


def test_each_interface_arrives_by_its_own_sign(node: CalledNode) -> None:
    first = node.vm_elsewhere()
    second = node.claim_elsewhere(LAN, AddressRequest(ipv4_pools=("lan",)), **{IFNAME: "net1"})
    node.world.put_migration("m1", phase="Running")
    node.world.put_launcher(POD, migration="m1")
    node.start()
    answers = {
        "eth0": node.done("ADD", POD, "ctr1"),
        "net1": node.done("ADD", POD, "ctr1", **SECOND),
    }
    assert [one.address for one in answers.values()] == [first, second]
    macs = {name: one.body["interfaces"][1]["mac"] for name, one in answers.items()}
    until("both are listened for", lambda: len(node.lines("sniffer_open")) >= 2)

    def arrived(ifname: str, address: str) -> bool:
        announce(node, ifname, macs[ifname])  # again and again, as QEMU does
        return metrics(node, address, ifname) == [512]

    until("the second arrives", lambda: arrived("net1", second))
    until("its owner is swapped", lambda: node.owners()[second] == (LAN, POD, "virt-launcher-db-0"))
    assert metrics(node, first, "eth0") == []
    assert node.owners()[first] == (HANDLE, "virt-launcher-db-0", POD)
    until("the first arrives", lambda: arrived("eth0", first))
    node.say_vm_runs_on(NODE)
    node.say_migration("Succeeded")
    until("the first is normal", lambda: metrics(node, first, "eth0") == [1024])
    until("the second is normal", lambda: metrics(node, second, "net1") == [1024])
    until("the first owner is swapped", lambda: node.owners()[first][1] == POD)
    node.done("DEL", POD, "ctr1")
    until("its rules go", lambda: host_ifname("default", POD) not in node.rules())
    assert metrics(node, second, "net1") == [1024]
    assert host_ifname("default", POD, "net1") in node.rules()
    node.done("DEL", POD, "ctr1", **SECOND)
    assert [one for one in node.ip_json("link") if one["ifname"].startswith("cali")] == []
