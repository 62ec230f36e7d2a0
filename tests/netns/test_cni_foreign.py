"""tortie-ipam for Debian's `bridge` and `macvlan`: what they make of our addresses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from libtortie.model.keys import Kind
from tests.fakes.agent_world import resource_record
from tests.fakes.calling_runtime import CallingNode, ping
from tests.fakes.fresh_names import fresh_name
from tests.fakes.libcni import JSON, Attachment, PluginError

pytestmark = pytest.mark.root


class LanNode(CallingNode):
    """A node whose pods `bridge` and `macvlan` wire."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        ipam = self.bin_dir / "tortie-ipam"
        if not ipam.exists():
            ipam.symlink_to(self.root / "tortie")
        for name, cidr in (("lan-4", "10.66.0.0/24"), ("lan-6", "fd00:66::/112")):
            pool = resource_record(Kind.IP_POOL, name, {"cidr": cidr, "assignmentMode": "Manual"})
            self.store.create(pool.key, pool.value)

    def lan(self, plugin: JSON, version: str = "1.0.0", **ipam: Any) -> JSON:
        """A list of one foreign plugin; ours are the keys by which the fallback finds its data."""
        ours = {key: value for key, value in self.plugin().items() if key not in plugin}
        section = {"type": "tortie-ipam", **ipam}
        return {
            "name": "lan",
            "cniVersion": version,
            "plugins": [{**ours, **plugin, "ipam": section}],
        }


BRIDGE: JSON = {"type": "bridge", "bridge": "lan0", "isGateway": True}
MACVLAN: JSON = {"type": "macvlan", "master": "under0", "mode": "bridge"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanNode]:
    """One node with an agent for all of them."""
    with closing(LanNode(tmp_path_factory.mktemp("fp") / "node", fresh_name("fp"))) as made:
        for words in ("link add under0 type bridge", "link set under0 up"):
            subprocess.run(["ip", "-n", made.name, *words.split()], check=True, timeout=120)
        made.start()
        yield made


def plain(text: str) -> str:
    return text.partition("/")[0]


def first(result: JSON) -> str:
    return plain(result["ips"][0]["address"])


def handles(node: LanNode) -> list[str]:
    return sorted(handle for handle, *_ in node.owners().values())


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_bridge(node: LanNode, version: str) -> None:
    network = node.lan(BRIDGE, version)
    one, two = node.attachment(), node.attachment()
    a, b = node.runtime.add(network, one), node.runtime.add(network, two)
    assert a["ips"][0]["address"].endswith("/26")
    gateway = a["ips"][0]["gateway"]
    assert len({first(a), first(b), gateway}) == 3, "the bridge's address is no pod's"
    ping(one.netns, first(b))
    ping(two.netns, gateway)
    ping(node.space, first(a))
    if version != "0.3.1":
        node.runtime.check(network, one)
    assert handles(node) == sorted(f"lan.{one_.container}" for one_ in (one, two))
    for sandboxed in (one, one, two):
        node.runtime.delete(network, sandboxed)
    assert node.owners() == {}
    assert node.left()["locks"] == []


def test_bridge_in_both_families_with_the_pools_prefix(node: LanNode) -> None:
    network = node.lan(
        {**BRIDGE, "bridge": "lan1"},
        prefix="pool",
        assign_ipv6="true",
        ipv4_pools=["lan-4"],
        ipv6_pools=["lan-6"],
        gateway=["10.66.0.1", "fd00:66::1"],
        routes=[{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    )
    one, two = node.attachment(), node.attachment()
    node.runtime.add(network, one)
    result = node.runtime.add(network, two)
    four, six = result["ips"]
    assert four["address"].endswith("/24")
    assert six["address"].endswith("/112")
    assert (four["gateway"], six["gateway"]) == ("10.66.0.1", "fd00:66::1")
    for text in (four["address"], six["address"]):
        ping(one.netns, plain(text))
    for text in ("10.66.0.1", "fd00:66::1"):
        ping(one.netns, text)
    node.runtime.check(network, two)
    for sandboxed in (one, two):
        node.runtime.delete(network, sandboxed)
    assert node.owners() == {}


def test_macvlan_beside_our_own_network(node: LanNode) -> None:
    """A second interface, as Multus makes it: each network has its own address of the sandbox."""
    ours, network = node.network(), node.lan(MACVLAN, prefix="pool", ipv4_pools=["lan-4"])
    one, two = node.attachment(), node.attachment()
    pairs = [(one, second(one)), (two, second(two))]
    for primary, _ in pairs:
        node.runtime.add(ours, primary)
    results = [node.runtime.add(network, extra) for _, extra in pairs]
    ping(one.netns, first(results[1]), "-Inet1")
    node.runtime.check(network, pairs[0][1])
    assert len(node.owners()) == 4
    node.runtime.delete(network, pairs[0][1])
    assert f"k8s-pod-network.{one.container}" in handles(node)
    node.runtime.check(ours, one)
    for primary, extra in pairs:
        node.runtime.delete(network, extra)
        node.runtime.delete(ours, primary)
    assert node.owners() == {}


def second(one: Attachment) -> Attachment:
    """Another interface of the same sandbox."""
    return Attachment(one.container, one.netns, "net1")


def test_a_bridge_that_fails_gives_its_address_back(node: LanNode) -> None:
    network = node.lan({**BRIDGE, "bridge": "under0", "vlan": 5000})
    with pytest.raises(PluginError):
        node.runtime.add(network, node.attachment())
    assert node.owners() == {}


def test_status_and_gc_of_the_ipam_alone(node: LanNode) -> None:
    """Debian's plugins know neither verb; those that do call the IPAM with them."""
    network = node.lan(BRIDGE)
    one, two = node.attachment(), node.attachment()
    for sandboxed in (one, two):
        node.runtime.add(network, sandboxed)
    alone = node.lan({"type": "tortie-ipam"}, version="1.1.0")
    node.runtime.status(alone)
    node.runtime.forget(network, two)
    node.runtime.forget(network, one)
    node.runtime.collect(alone, [one])
    assert handles(node) == [f"lan.{one.container}"]
    node.runtime.collect(alone, [])
    assert node.owners() == {}


def test_without_an_agent_the_fallback_gives_addresses(tmp_path_factory: Any) -> None:
    with closing(LanNode(tmp_path_factory.mktemp("fp") / "node", fresh_name("fp"))) as node:
        network, one = node.lan(BRIDGE), node.attachment()
        result = node.runtime.add(network, one)
        ping(one.netns, result["ips"][0]["gateway"])
        node.runtime.check(network, one)
        node.runtime.delete(network, one)
        assert node.owners() == {}
