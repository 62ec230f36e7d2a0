"""A node's start in real namespaces: address choice over real links, the agent's own process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from felix_shim.addresses import find_address, interfaces, uplink_mtu
from felix_shim.kube_node import UP, NodeView, is_up
from libtortie.datastore.port import Record
from libtortie.errors import InvalidInput
from libtortie.events import (
    Correlator,
    KubeEvent,
    Notice,
    Subject,
    Told,
    event_body,
    event_patch,
    instance,
    pod,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.objects import KubeNode
from libtortie.linux.netlink import NetlinkKernel
from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.names import host_ifname
from libtortie.model.resources import (
    ClusterInformation,
    ClusterInformationSpec,
    IPPool,
    Node,
    NodeBGP,
    NodeSpec,
    ObjectMeta,
    WorkloadEndpoint,
)
from tests.fakes.agent_world import NAMESPACE, NODE, endpoint_record
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, NodeProcess, ip, until

pytestmark = pytest.mark.root
T = TypeVar("T")


@pytest.fixture
def space() -> Iterator[str]:
    """A namespace with the NIC every VM has, a real uplink, a container's bridge, a dead link."""
    name = fresh_name("st")
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        for link, address, mtu in (
            ("nat0", "10.0.2.2/24", "1500"),
            ("eth1", "192.0.2.11/24", "9000"),
            ("br-0123456789ab", "172.18.0.1/16", "1500"),
            ("down0", "203.0.113.1/24", "1500"),
        ):
            ip("-n", name, "link", "add", link, "type", "bridge")
            ip("-n", name, "link", "set", link, "mtu", mtu)
            ip("-n", name, "address", "add", address, "dev", link)
            if link != "down0":
                ip("-n", name, "link", "set", link, "up")
        ip("-n", name, "address", "add", "192.0.2.12/24", "dev", "eth1")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def within(space: str, work: Callable[[NetlinkKernel], T]) -> T:
    """Do something with the kernel of a namespace, from inside it."""

    def call() -> T:
        kernel = NetlinkKernel()
        try:
            return work(kernel)
        finally:
            kernel.close()

    return Netns(deadline=DEADLINE).call(f"/run/netns/{space}", call)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("autodetect", "10.0.2.2/24 nat0"),
        ("skip-interface=^nat", "192.0.2.11/24 eth1"),
        ("interface=eth.*", "192.0.2.11/24 eth1"),
        ("interface=br-.*", "172.18.0.1/16 br-0123456789ab"),
        ("cidr=192.0.2.0/24", "192.0.2.11/24 eth1"),
        ("cidr=192.0.2.12/32", "192.0.2.12/24 eth1"),
        ("can-reach=192.0.2.99", "192.0.2.11/24 eth1"),
        ("192.0.2.12/24", "192.0.2.12/24 eth1"),
        ("203.0.113.1/24", "203.0.113.1/24 "),
    ],
)
def test_each_method_on_real_links(space: str, method: str, expected: str) -> None:
    found = within(space, lambda kernel: find_address(kernel, method))
    assert f"{found.address} {found.link}" == expected


def test_the_default_route_decides(space: str) -> None:
    with pytest.raises(InvalidInput, match="can-reach"):
        within(space, lambda kernel: find_address(kernel, "can-reach=198.51.100.1"))
    ip("-n", space, "route", "add", "default", "via", "192.0.2.1", "src", "192.0.2.12")
    assert within(space, lambda kernel: find_address(kernel, "autodetect")).link == "eth1"
    reached = within(space, lambda kernel: find_address(kernel, "can-reach=198.51.100.1"))
    assert str(reached.address) == "192.0.2.12/24", "by the kernel's own source address"


def test_interfaces_and_mtu_of_real_links(space: str) -> None:
    assert within(space, interfaces) == (
        ("eth1", ("192.0.2.11", "192.0.2.12")),
        ("nat0", ("10.0.2.2",)),
    )
    assert within(space, lambda kernel: uplink_mtu(kernel, ("eth1", "nat0"))) == 1500
    assert within(space, lambda kernel: uplink_mtu(kernel, ("eth1",))) == 9000


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Makes nodes that were not started yet."""
    made: list[NodeProcess] = []

    def make(*, api: bool = False, **config: object) -> NodeProcess:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(NodeProcess(root, fresh_name("st"), api=api, **config))
        return made[-1]

    try:
        yield make
    finally:
        with ExitStack() as stack:
            for node in made:
                stack.callback(node.close)


def node_resource(name: str, address: str) -> Node:
    bgp = NodeBGP.model_validate({"ipv4Address": address})
    return Node(metadata=ObjectMeta(name=name), spec=NodeSpec(bgp=bgp))


def test_a_first_start_with_an_api(fresh: Callable[..., NodeProcess]) -> None:
    node = fresh(api=True, default_pools={"ipv4": {"cidr": "10.65.0.0/16"}}, ip="autodetect")
    node.kube(lambda api: api.create(KubeNode, {"metadata": {"name": NODE}}))
    node.start()
    stored = node.stored(ResourceKey(Kind.NODE, NODE))
    wire = stored.spec.to_wire()
    assert wire["bgp"] == {"ipv4Address": "172.31.1.2/24"}
    assert wire["orchRefs"] == [{"nodeName": NODE, "orchestrator": "k8s"}]
    (uplink,) = wire["interfaces"]
    assert uplink["name"] == "up0"
    assert uplink["addresses"][0] == "172.31.1.2"
    key = ResourceKey(Kind.IP_POOL, "default-ipv4-ippool")
    pool = until("its pool is made", lambda: node.stored(key))
    assert isinstance(pool, IPPool)
    assert pool.spec.cidr == "10.65.0.0/16"
    assert (node.root / "state" / "mtu").read_text() == "1500"
    until("the API knows", lambda: node.kube(lambda api: is_up(api.get(NodeView, NODE))))
    assert node.lines("start_up_failed") == []
    waits = [line["reason"] for line in node.lines("start_up_waits")]
    assert [one for one in waits if "not done after" not in one] == [], "but for a slow machine"
    assert node.stop() == 0
    said = [line for line in node.lines() if line["event"].startswith("node_condition_")]
    assert said[-1]["reason"] != UP, "it said goodbye, or that it could not"


def test_an_address_another_node_has(fresh: Callable[..., NodeProcess]) -> None:
    node = fresh(ip="autodetect")
    node.store.create(ResourceKey(Kind.NODE, "twin"), node_resource("twin", "172.31.1.2/16"))
    node.start(wait=False)
    assert node.agent is not None
    assert node.agent.wait(DEADLINE) == 1
    (line,) = node.lines("agent_failed")
    assert "172.31.1.2 (on up0) is already that of node twin" in line["reason"]
    assert node.stored(ResourceKey(Kind.NODE, NODE)) is None
    assert not (node.root / "nodename").exists()


def test_a_locked_store_is_respected_until_it_is_unlocked(
    fresh: Callable[..., NodeProcess],
) -> None:
    node = fresh()
    key = ResourceKey(Kind.CLUSTER_INFORMATION, "default")
    spec = ClusterInformationSpec.model_validate({"datastoreReady": False})
    node.store.create(key, ClusterInformation(metadata=ObjectMeta(name="default"), spec=spec))
    node.start()
    assert node.store.list(Resources(Kind.IP_POOL)).records == ()
    record = node.store.get(key)
    assert isinstance(record.value, ClusterInformation)
    assert record.value.spec.datastore_ready is False
    ready = record.value.spec.model_copy(update={"datastore_ready": True})
    node.store.update(key, record.value.model_copy(update={"spec": ready}), record.revision)
    until("pools are made", lambda: node.store.list(Resources(Kind.IP_POOL)).records)


def dual_stack(pod: str) -> Record:
    """An endpoint with an address of each family."""
    record = endpoint_record(pod, vm=False)
    value = record.value
    assert isinstance(value, WorkloadEndpoint)
    spec = value.spec.model_copy(update={"ip_networks": ("10.65.0.2/32", "fd00:65::2/128")})
    return Record(record.key, value.model_copy(update={"spec": spec}), "")


def test_ipv6_is_forwarded_from_the_first_ipv6_workload_on(
    fresh: Callable[..., NodeProcess],
) -> None:
    node = fresh()

    def forwarding() -> str:
        return within(node.name, lambda k: k.read_sysctl("net/ipv6/conf/all/forwarding"))

    before = forwarding()
    node.start()
    node.attach("web", vm=False, address="10.65.0.9")
    assert forwarding() == before == "0"
    node.add_pod("dual", "02:aa:bb:cc:dd:02")
    record = dual_stack("dual")
    node.store.create(record.key, record.value)
    until("its policy is in force", lambda: node.status("dual"))
    assert forwarding() == "1"
    routes = subprocess.run(
        ["ip", "-n", node.name, "-6", "route", "show", "dev", host_ifname(NAMESPACE, "dual")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "fd00:65::2" in routes.stdout


def test_the_api_server_takes_our_events(fresh: Callable[..., NodeProcess]) -> None:
    node = fresh(api=True)
    about = (pod(NAMESPACE, "web", "uid"), instance(NAMESPACE, "db", "uid"), Subject("Node", NODE))
    sends = Correlator()
    for one in about:
        told = sends.decide(Notice(one, "Reason", "text"), datetime.now(UTC), 0.0)
        assert isinstance(told, Told)
        body = event_body(told, component="tortie-node", instance=NODE, host=NODE)
        made = node.kube(partial(HttpKubeClient.create, model=KubeEvent, body=body))
        assert made.metadata.name == told.series.name
        again = sends.decide(told.notice, datetime.now(UTC), 0.0)
        assert isinstance(again, Told)
        namespace, patch = one.namespace or "default", event_patch(again)
        patched = partial(HttpKubeClient.patch, model=KubeEvent, namespace=namespace, body=patch)
        node.kube(partial(patched, name=again.series.name))


def test_a_tunnel_address_follows_its_pool(fresh: Callable[..., NodeProcess]) -> None:
    node = fresh(default_pools={"ipv4": {"cidr": "10.65.0.0/16"}})
    node.start()
    key = ResourceKey(Kind.IP_POOL, "default-ipv4-ippool")

    def set_mode(mode: str) -> None:
        record = node.store.get(key)
        assert isinstance(record.value, IPPool)
        spec = record.value.spec.model_copy(update={"ipip_mode": mode})
        node.store.update(key, record.value.model_copy(update={"spec": spec}), record.revision)

    def stated() -> str:
        bgp = node.stored(ResourceKey(Kind.NODE, NODE)).spec.bgp
        return bgp.ipv4_ipip_tunnel_addr if bgp is not None else ""

    assert not stated()
    set_mode("CrossSubnet")
    until("the node has one", stated)
    assert stated().startswith("10.65.")
    set_mode("Never")
    until("it has none", lambda: not stated())
    until("both are told", lambda: len(node.lines("tunnel_address")) == 2)
