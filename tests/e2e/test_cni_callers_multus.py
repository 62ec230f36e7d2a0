"""A pod with several networks, as Multus calls their plugins: ours, ours again, and another's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from libtortie.model.keys import Kind
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import resource_record
from tests.fakes.calling_runtime import CallingNode, ping
from tests.fakes.fresh_names import fresh_name
from tests.fakes.libcni import JSON, Attachment, PluginError
from tests.fakes.multus import Delegate, Multus
from tests.fakes.node_process import until

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallingNode]:
    root = tmp_path_factory.mktemp("mu") / "node"
    with closing(CallingNode(root, fresh_name("mu"))) as made:
        for name, cidr in (("lan", "10.77.0.0/24"), ("wire", "10.78.0.0/24")):
            spec = {"cidr": cidr, "blockSize": 26, "assignmentMode": "Manual"}
            pool = resource_record(Kind.IP_POOL, name, spec)
            made.store.create(pool.key, pool.value)
        (made.bin_dir / "tortie-ipam").symlink_to(made.root / "tortie")
        fixed = ("address", "02:00:00:00:78:01")  # else a bridge takes its ports' smallest
        made.ip("link", "add", "mu0", *fixed, "type", "bridge")
        made.start_and_settle()
        yield made


@pytest.fixture
def multus(node: CallingNode) -> Multus:
    return Multus(node.runtime)


def default(node: CallingNode) -> Delegate:
    api = {"k8s_api_root": node.config["k8s_api_root"]}
    return Delegate(node.network(kubernetes=api, datastore_type="sqlite"))


def lan(node: CallingNode, **wishes: Any) -> Delegate:
    """A second network of ours; Multus passes on what the pod wishes of it."""
    capabilities = {"ips": True, "mac": True}
    ours = node.plugin(ipam={"ipv4_pools": ["lan"]}, capabilities=capabilities)
    return Delegate({"name": "lan", "cniVersion": "1.0.0", "plugins": [ours]}, wishes)


def wire(node: CallingNode, **more: Any) -> Delegate:
    """Another's plugin with our IPAM."""
    plugin = {
        **{key: value for key, value in node.plugin().items() if key != "type"},
        "type": "bridge",
        "bridge": "mu0",
        "ipam": {"type": "tortie-ipam", "ipv4_pools": ["wire"], "prefix": "pool"},
        **more,
    }
    return Delegate({"name": "wire", "cniVersion": "1.0.0", "plugins": [plugin]})


def pod(node: CallingNode) -> tuple[str, Attachment]:
    name = fresh_name("pod")
    node.world.put_pod(name)
    told = ("K8S_POD_NAMESPACE=default", f"K8S_POD_NAME={name}", f"K8S_POD_UID=uid-of-{name}")
    one = node.attachment()
    args = ("IgnoreUnknown=1", *told, f"K8S_POD_INFRA_CONTAINER_ID={one.container}")
    return name, replace(one, args=";".join(args))


def address(result: JSON) -> str:
    return str(result["ips"][0]["address"]).partition("/")[0]


def test_three_networks_come_and_go_together(node: CallingNode, multus: Multus) -> None:
    before = node.left()
    name, one = pod(node)
    wished = lan(node, ips=["10.77.0.9"], mac="02:00:00:00:77:09")
    results = multus.add(one, [default(node), wished, wire(node)])
    assert [address(one).rpartition(".")[0] for one in results] == ["10.65.0", "10.77.0", "10.78.0"]
    assert address(results[1]) == "10.77.0.9"
    assert results[1]["interfaces"][1] | {"sandbox": ""} == {
        "name": "net1",
        "mac": "02:00:00:00:77:09",
        "sandbox": "",
    }
    _, other = pod(node)
    theirs = multus.add(other, [default(node), lan(node), wire(node)])
    ping(node.space, address(results[0]))
    for number in (1, 2):
        ping(other.netns, address(results[number]), f"-Inet{number}")
        ping(one.netns, address(theirs[number]), f"-Inet{number}")
    multus.check(one)
    multus.delete(other)
    multus.check(one)
    handles = sorted(handle for handle, *_ in node.owners().values())
    assert handles == sorted(
        [
            f"k8s-pod-network.{one.container}",
            f"lan.{one.container}.net1",
            f"wire.{one.container}.net2",
        ]
    )
    multus.delete(one)
    multus.delete(one, [default(node), wished, wire(node)])
    node.rest(before)
    assert host_ifname("default", name, "net1") not in node.rules()


def test_one_that_fails_takes_the_others_with_it(node: CallingNode, multus: Multus) -> None:
    before = node.left()
    _, one = pod(node)
    broken = wire(node, bridge="up0")
    for delegates in (
        [default(node), lan(node), broken],
        [default(node), lan(node, ips=["10.99.0.1"]), wire(node)],
    ):
        with pytest.raises(PluginError):
            multus.add(one, delegates)
        multus.delete(one)
    node.rest(before)
    multus.add(one, [default(node), lan(node)])
    multus.check(one)
    multus.delete(one)
    node.rest(before)


def test_a_sandbox_that_is_gone_and_a_runtime_that_forgot(
    node: CallingNode, multus: Multus
) -> None:
    before = node.left()
    name, one = pod(node)
    both = [default(node), lan(node)]
    multus.add(one, both)
    _, other = pod(node)
    kept = multus.add(other, both)
    node.remove_sandbox(one.container)
    for delegate, ifname in zip(both, ("eth0", "net1"), strict=True):
        node.runtime.forget(delegate.network, replace(one, ifname=ifname))
    multus.saved.clear()
    multus.delete(replace(one, netns=""), both)
    until("its policy goes", lambda: node.status(name) is None)
    ping(node.space, address(kept[0]))
    multus.saved[other.container] = tuple(both)
    multus.check(other)
    multus.delete(other)
    node.rest(before)
