"""Debian's reference plugins before and behind ours, called as libcni calls them; GC and STATUS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from libtortie.model.names import host_ifname_of_container
from tests.fakes.calling_runtime import CallingNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.libcni import JSON, Attachment, PluginError

pytestmark = pytest.mark.root

LOOPBACK: JSON = {"type": "loopback"}
RATE = 1_000_000
PORT = 18090
"""None that the node listens at: who calls it would reach the container instead."""
CAPABILITIES = {
    "portMappings": [{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}],
    "bandwidth": dict.fromkeys(("ingressRate", "ingressBurst", "egressRate", "egressBurst"), RATE),
}
PORTMAP: JSON = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
BANDWIDTH: JSON = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
TUNING: JSON = {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}, "mtu": 1400}
CHAINS: dict[str, tuple[JSON, ...]] = {
    "alone": (),
    "portmap": (PORTMAP,),
    "bandwidth": (BANDWIDTH,),
    "tuning": (TUNING,),
    "firewall": ({"type": "firewall"},),
    "many": (BANDWIDTH, TUNING, PORTMAP),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallingNode]:
    """One node with an agent for all of them."""
    with closing(CallingNode(tmp_path_factory.mktemp("cc") / "node", fresh_name("cc"))) as made:
        made.start_and_settle()
        yield made


def sandbox(node: CallingNode) -> Attachment:
    """A fresh container."""
    return node.attachment(CAPABILITIES)


def run(node: CallingNode, *words: str) -> str:
    """What a command in the node's namespace prints."""
    done = subprocess.run(
        node.inside_command(*words), check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def address(result: JSON) -> str:
    """The address of eth0."""
    (found,) = (
        ip["address"]
        for ip in result["ips"]
        if result["interfaces"][ip["interface"]]["name"] == "eth0"
    )
    return str(found)


@pytest.mark.parametrize("first", [(), (LOOPBACK,)], ids=["first", "behind loopback"])
@pytest.mark.parametrize("behind", CHAINS)
def test_add_check_and_delete_in_a_chain(
    node: CallingNode, behind: str, first: tuple[JSON, ...]
) -> None:
    before = node.left()
    network, one = node.network(*CHAINS[behind], before=first), sandbox(node)
    result = node.runtime.add(network, one)
    names = [item["name"] for item in result["interfaces"]]
    host = host_ifname_of_container(one.container)
    assert names[: len(first) + 2] == [*(["lo"] if first else []), host, "eth0"]
    assert address(result).partition("/")[0] in node.owners()
    ours = Attachment(one.container, one.netns, capabilities=CAPABILITIES)
    checked = {**network, "plugins": [p for p in network["plugins"] if p["type"] != "portmap"]}
    node.runtime.check(checked, ours)  # Debian's portmap looks for IPv6 rules it never made
    if behind in ("portmap", "many"):
        assert str(PORT) in run(node, "iptables-save", "-t", "nat")
    if behind in ("bandwidth", "many"):
        assert "tbf" in run(node, "tc", "qdisc", "show", "dev", host)
    if behind in ("tuning", "many"):
        inside = one.netns.rpartition("/")[2]
        shown = subprocess.run(
            ["ip", "-n", inside, "link", "show", "eth0"], check=True, capture_output=True
        )
        assert b"mtu 1400" in shown.stdout
    node.runtime.delete(network, one)
    node.runtime.delete(network, one)
    node.rest(before)


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0"])
def test_chains_of_every_version(node: CallingNode, version: str) -> None:
    before = node.left()
    network, one = node.network(TUNING, before=(LOOPBACK,), version=version), sandbox(node)
    result = node.runtime.add(network, one)
    assert result["cniVersion"] == version
    assert {"version" in ip for ip in result["ips"]} == {version.startswith("0.")}
    node.runtime.delete(network, one)
    node.rest(before)


def test_a_later_plugin_that_fails_leaves_what_del_takes_away(node: CallingNode) -> None:
    before, held = node.left(), len(node.owners())
    broken = {"type": "tuning", "sysctl": {"net.ipv4.no_such_thing": "1"}}
    network, one = node.network(broken), sandbox(node)
    with pytest.raises(PluginError, match="no_such_thing"):
        node.runtime.add(network, one)
    assert len(node.owners()) == held + 1
    node.runtime.delete(network, one)
    node.rest(before)


def test_what_the_runtime_remembers_is_not_what_del_goes_by(node: CallingNode) -> None:
    """Lost, or another container's: our own record counts."""
    before = node.left()
    network, one, two = node.network(), sandbox(node), sandbox(node)
    node.runtime.add(network, one)
    result = node.runtime.add(network, two)
    node.runtime.forget(network, one)
    node.runtime.delete(network, one)
    node.runtime.check(network, two)
    forged = Attachment(one.container, one.netns)
    other = node.runtime.add(network, one)
    entry = node.runtime.cache / f"{network['name']}-{one.container}-eth0"
    entry.write_text(entry.read_text().replace(address(other), address(result)))
    node.runtime.delete(network, forged)
    node.runtime.check(network, two)
    node.runtime.delete(network, two)
    node.rest(before)


def test_gc_takes_what_is_not_valid_and_nothing_else(node: CallingNode) -> None:
    before, held = node.left(), len(node.owners())
    network = node.network(version="1.1.0")
    other: JSON = {**network, "name": "othernet"}
    one, two, three, four = (sandbox(node) for _ in range(4))
    for each in (one, two, three):
        node.runtime.add(network, each)
    node.runtime.add(other, four)
    node.runtime.forget(network, two)  # nobody will ever send its DEL
    node.runtime.collect(network, [one])
    assert node.runtime.cached(network, three) is None, "libcni deleted it"
    node.runtime.check(network, one)
    node.runtime.check(other, four)
    assert len(node.owners()) == held + 2, "of the one that is valid, and of the other network"
    node.runtime.collect(network, None)
    assert node.runtime.cached(network, one) is None
    node.runtime.add(network, two)
    node.runtime.forget(network, two)
    node.runtime.collect(network, [])
    node.runtime.check(other, four)
    node.runtime.collect(other, [])
    node.rest(before)


def test_status_and_a_verb_that_a_version_does_not_have(node: CallingNode) -> None:
    node.runtime.status(node.network(version="1.1.0"))
    for verb in ("status", "collect"):
        with pytest.raises(PluginError, match=r"1\.0\.0") as caught:
            call = getattr(node.runtime, verb)
            call(node.network(version="1.0.0"), *([[]] if verb == "collect" else []))
        assert caught.value.code == 1
    network = node.network(version="1.1.0", ipam={"ipv4_pools": ["nowhere"]})
    with pytest.raises(PluginError, match="nowhere") as caught:
        node.runtime.status(network)
    assert caught.value.code == 50
