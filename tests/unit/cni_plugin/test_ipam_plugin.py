"""tortie-ipam: addresses for other plugins, of a LAN, each freed by its own sandbox only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.errors import AttachmentConflict, CheckFailed, InvalidConfig, NotReady
from cni_plugin.ipam_plugin import IPAMPlugin
from cni_plugin.skel import dispatch
from cni_plugin.types import NetConf, Result
from cni_plugin.wiring import build_plugin
from libtortie.errors import InvalidInput, OwnerMismatch, TortieError, Unavailable
from libtortie.kube.objects import Pod
from libtortie.model import names
from libtortie.model.keys import Kind, Resources
from tests.fakes.cni_steps import Faults, Killed
from tests.fakes.cni_world import CniWorld, conf

POOLS = Resources(Kind.IP_POOL)


class Foreign:
    """A node on which `bridge` asks our IPAM."""

    def __init__(self, world: CniWorld, node: str = "node1", **ipam: Any) -> None:
        self.world = world
        self.node = world.node(node)
        self.plugin = IPAMPlugin(self.node.ports())
        self.ipam = ipam

    def conf(self, **more: Any) -> NetConf:
        return conf(
            **{"name": "lan", "type": "bridge", "isGateway": True, **self.section(), **more}
        )

    def section(self) -> dict[str, Any]:
        return {"ipam": {"type": "tortie-ipam", **self.ipam}}

    def add(self, pod: str, container: str, ifname: str = "eth0", **more: Any) -> Result:
        args = self.node.args(pod, container, ifname=ifname)
        return self.plugin.cmd_add(args, self.conf(**more))

    def delete(self, pod: str, container: str, ifname: str = "eth0") -> None:
        self.plugin.cmd_del(self.node.args(pod, container, ifname=ifname), self.conf())

    def gc(self, *valid: tuple[str, str]) -> None:
        listed = [{"containerID": one, "ifname": name} for one, name in valid]
        self.plugin.cmd_gc(self.conf(**{"cni.dev/valid-attachments": listed}))


@pytest.fixture
def lan(world: CniWorld) -> Foreign:
    return Foreign(world)


def pods(world: CniWorld, count: int) -> None:
    for number in range(count):
        world.put_pod(f"web-{number}")


def addresses(result: Result) -> list[str]:
    return [str(one) for one in result.addresses]


def test_an_address_with_its_blocks_prefix_and_no_interface(world: CniWorld, lan: Foreign) -> None:
    pods(world, 1)
    wire = lan.add("web-0", "c1").to_wire("1.0.0")
    assert wire == {"cniVersion": "1.0.0", "ips": [{"address": "10.65.0.2/26"}], "dns": {}}
    assert lan.add("web-0", "c1").to_wire("0.2.0")["ip4"] == {"ip": "10.65.0.2/26"}
    assert world.allocated() == {"10.65.0.2": "lan.c1"}
    assert world.endpoints() == []
    assert lan.node.veths() == {}, "the other plugin wires"
    lan.delete("web-0", "c1")
    lan.delete("web-0", "c1")
    assert world.nothing_left()


def test_the_links_own_addresses_are_nobodys(world: CniWorld) -> None:
    """Its network, its broadcast and its router's address: `bridge` takes the first one."""
    world.memory.delete(next(iter(world.memory.list(POOLS).records)).key)
    world.pool("small", "10.65.9.0/29", blockSize=29)
    lan = Foreign(world)
    pods(world, 6)
    given = [lan.add(f"web-{number}", f"c{number}") for number in range(5)]
    assert [text for one in given for text in addresses(one)] == [
        f"10.65.9.{last}/29" for last in range(2, 7)
    ]
    with pytest.raises(TortieError, match="no free IPv4 address"):
        lan.add("web-5", "c5")
    lan.delete("web-3", "c3")
    assert addresses(lan.add("web-5", "c5")) == ["10.65.9.5/29"]


def test_gateway_routes_and_the_pools_prefix(world: CniWorld) -> None:
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.65.0.9"}]
    lan = Foreign(world, prefix="pool", gateway="10.65.0.2", routes=routes)
    pods(world, 2)
    wire = lan.add("web-0", "c0").to_wire("1.0.0")
    assert wire["ips"] == [{"address": "10.65.0.1/24", "gateway": "10.65.0.2"}]
    assert wire["routes"] == routes
    assert addresses(lan.add("web-1", "c1")) == ["10.65.0.3/24"], "not the gateway's"
    node2 = Foreign(world, "node2", prefix="pool", gateway="10.65.0.2")
    world.put_pod("far")
    assert (
        node2.add("far", "c9").addresses[0].network == lan.add("web-0", "c0").addresses[0].network
    )


def test_the_gateway_cannot_be_asked_for(world: CniWorld) -> None:
    lan = Foreign(world, gateway="10.65.0.2")
    notes = {"cni.projectcalico.org/ipAddrs": '["10.65.0.2"]'}
    world.put_pod("web-0", annotations=notes)
    with pytest.raises(InvalidInput, match=r"10\.65\.0\.2 is ipam\.gateway"):
        lan.add("web-0", "c1")
    assert world.nothing_left()


@pytest.mark.parametrize(
    ("prefix", "address", "link"),
    [
        ("block", "10.65.0.0", "10.65.0.0/26"),
        ("block", "10.65.0.63", "10.65.0.0/26"),
        ("pool", "10.65.0.255", "10.65.0.0/24"),
    ],
)
def test_the_links_own_addresses_cannot_be_asked_for(
    world: CniWorld, prefix: str, address: str, link: str
) -> None:
    lan = Foreign(world, prefix=prefix)
    notes = {"cni.projectcalico.org/ipAddrs": f'["{address}"]'}
    world.put_pod("web-0", annotations=notes)
    with pytest.raises(InvalidInput, match=f"{address} is an address of {link} itself"):
        lan.add("web-0", "c1")
    assert world.nothing_left()
    assert addresses(Foreign(world, prefix="host").add("web-0", "c1")) == [f"{address}/32"]


def test_an_address_beside_them_can_be_asked_for(world: CniWorld) -> None:
    """The first one, too, which is otherwise left to the plugin; and what ends a block."""
    for number, (prefix, address) in enumerate(
        (("block", "10.65.0.1/26"), ("pool", "10.65.0.63/24"))
    ):
        notes = {"cni.projectcalico.org/ipAddrs": f'["{address.partition("/")[0]}"]'}
        world.put_pod(f"web-{number}", annotations=notes)
        lan = Foreign(world, prefix=prefix)
        assert addresses(lan.add(f"web-{number}", f"c{number}")) == [address]


def test_addresses_that_are_routed_by_themselves(world: CniWorld) -> None:
    lan = Foreign(world, prefix="host")
    pods(world, 1)
    assert addresses(lan.add("web-0", "c1")) == ["10.65.0.0/32"]


def test_dual_stack(world: CniWorld) -> None:
    world.pool("pool-6", "fd00:10:65::/112")
    lan = Foreign(world, assign_ipv6="true", gateway=["10.65.0.1", "fd00:10:65::1"])
    pods(world, 1)
    wire = lan.add("web-0", "c1").to_wire("0.4.0")
    (four, six) = wire["ips"]
    assert four == {"version": "4", "address": "10.65.0.2/26", "gateway": "10.65.0.1"}
    assert (six["version"], six["gateway"]) == ("6", "fd00:10:65::1")
    assert six["address"].endswith("/122")
    lan.delete("web-0", "c1")
    assert world.nothing_left()


def test_two_interfaces_of_one_sandbox_have_addresses_of_their_own(
    world: CniWorld, lan: Foreign
) -> None:
    pods(world, 1)
    first, second = lan.add("web-0", "c1"), lan.add("web-0", "c1", "net1")
    assert first.addresses != second.addresses
    assert lan.add("web-0", "c1", "net1") == second
    lan.delete("web-0", "c1", "net1")
    assert set(world.allocated()) == {str(first.addresses[0].ip)}


def test_other_sandboxes_and_networks_are_left_alone(world: CniWorld, lan: Foreign) -> None:
    pods(world, 2)
    world.node().add("web-0", "c1")
    lan.add("web-0", "c1")
    lan.add("web-1", "c2")
    lan.delete("web-0", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1", "lan.c2"}


def test_handles_that_read_alike_are_never_shared(world: CniWorld, lan: Foreign) -> None:
    """Container `x.c1` of network `lan`, and container `c1` of network `lan.x`."""
    result = lan.add("", "c1", name="lan.x").to_wire("1.1.0")
    with pytest.raises(AttachmentConflict, match=r"handle lan\.x\.c1 is .* of container c1 of"):
        lan.add("", "x.c1")
    with pytest.raises(CheckFailed, match=r"container x\.c1 has no address"):
        lan.plugin.cmd_check(lan.node.args("", "x.c1"), lan.conf(prevResult=result))
    lan.delete("", "x.c1")
    assert list(world.allocated().values()) == ["lan.x.c1"]


def test_containers_without_a_pod(world: CniWorld, lan: Foreign) -> None:
    assert addresses(lan.add("", "c1")) == ["10.65.0.2/26"]
    lan.delete("", "c1")
    assert world.nothing_left()


def test_a_vm_keeps_its_addresses_on_every_network(world: CniWorld, lan: Foreign) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    first = lan.add("virt-launcher-db-a", "c1", "net1")
    handle = names.vm_handle("lan", "default", "db")
    assert set(world.allocated().values()) == {handle}
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    other = Foreign(world, "node2")
    assert other.add("virt-launcher-db-b", "c2", "net1").addresses == first.addresses
    lan.delete("virt-launcher-db-a", "c1", "net1")
    assert set(world.allocated().values()) == {handle}
    other.delete("virt-launcher-db-b", "c2", "net1")
    assert set(world.allocated().values()) == {handle}, "the VM is stopped, not deleted"
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-c", generation=2)
    assert lan.add("virt-launcher-db-c", "c3", "net1").addresses == first.addresses


def test_a_second_pod_of_a_live_vm_is_refused(world: CniWorld, lan: Foreign) -> None:
    world.put_vm()
    for name in "ab":
        world.put_launcher(f"virt-launcher-db-{name}")
    lan.add("virt-launcher-db-a", "c1", "net1")
    with pytest.raises(OwnerMismatch):
        lan.add("virt-launcher-db-b", "c2", "net1")


def test_check(world: CniWorld, lan: Foreign) -> None:
    pods(world, 2)
    result = lan.add("web-0", "c1").to_wire("1.1.0")
    args = lan.node.args("web-0", "c1")
    lan.plugin.cmd_check(args, lan.conf(prevResult=result))
    more = {**result, "ips": [*result["ips"], {"address": "192.0.2.1/24"}]}
    lan.plugin.cmd_check(args, lan.conf(prevResult=more))
    with pytest.raises(CheckFailed, match=r"prevResult lacks 10\.65\.0\.2"):
        lan.plugin.cmd_check(args, lan.conf(prevResult={**result, "ips": more["ips"][1:]}))
    with pytest.raises(InvalidConfig, match="CHECK needs"):
        lan.plugin.cmd_check(args, lan.conf())
    wrong: list[Any] = [{"address": "nowhere"}, {}, "10.65.0.2/26"]
    for item in wrong:
        with pytest.raises(InvalidConfig, match=r"prevResult\.ips"):
            lan.plugin.cmd_check(args, lan.conf(prevResult={**result, "ips": [item]}))
    lan.delete("web-0", "c1")
    with pytest.raises(CheckFailed, match="container c1 has no address of lan"):
        lan.plugin.cmd_check(args, lan.conf(prevResult=result))


def test_gc_frees_what_is_not_listed_of_this_network_and_node(
    world: CniWorld, lan: Foreign
) -> None:
    pods(world, 4)
    kept = lan.add("web-0", "c0")
    lan.add("web-1", "c1")
    lan.add("web-0", "c0", "net1")
    world.node().add("web-2", "c2")
    Foreign(world, "node2").add("web-3", "c3")
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    lan.add("virt-launcher-db-a", "c5", "net1")
    lan.gc(("c0", "eth0"))
    held = world.allocated()
    assert held[str(kept.addresses[0].ip)] == "lan.c0"
    assert sorted(held.values()) == [
        "k8s-pod-network.c2",
        "lan.c0",
        "lan.c3",
        "lan.vmi.default.db",
    ]
    assert lan.node.ipam.seats_of("c5") == (), "the VM keeps its address, the sandbox its seat not"
    lan.plugin.cmd_gc(lan.conf())
    assert world.allocated() == held, "without a list nobody is stale"


def test_gc_goes_on_after_an_error_and_tells_all(
    world: CniWorld, lan: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods(world, 3)
    for number in range(3):
        lan.add(f"web-{number}", f"c{number}")
    release = lan.node.ipam.release

    def failing(handle: str) -> object:
        if handle != "lan.c1":
            raise Unavailable(f"{handle} is not to be had")
        return release(handle)

    monkeypatch.setattr(lan.node.ipam, "release", failing)
    with pytest.raises(Unavailable, match=r"lan\.c0 is not to be had") as caught:
        lan.gc()
    assert caught.value.__notes__ == ["and: lan.c2 is not to be had"]
    assert sorted(world.allocated().values()) == ["lan.c0", "lan.c2"]


def test_gc_spares_what_is_being_worked_on(world: CniWorld, lan: Foreign) -> None:
    pods(world, 2)
    for number in range(2):
        lan.add(f"web-{number}", f"c{number}")
    with lan.node.locks.hold("ipam lan c0 eth0", 1.0):
        lan.gc()
    assert list(world.allocated().values()) == ["lan.c0"]


def test_gc_leaves_what_our_own_plugin_wired_in_a_network_of_the_name(
    world: CniWorld, lan: Foreign
) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.put_pod("web-0")
    world.node().add("virt-launcher-db-a", "c1", conf={"name": "lan"})
    for ifname in ("eth0", "net1"):
        world.node().add("web-0", "c2", ifname=ifname, conf={"name": "lan"})
    before = world.allocated()
    lan.gc()
    assert world.allocated() == before
    assert lan.node.ipam.seats_of("c1") != ()


def test_gc_of_the_first_network_leaves_other_plugins_addresses(
    world: CniWorld, lan: Foreign
) -> None:
    pods(world, 1)
    lan.add("web-0", "c0")
    world.node().gc()
    assert list(world.allocated().values()) == ["lan.c0"]


def test_status(world: CniWorld, lan: Foreign) -> None:
    lan.node.gate.is_ready = False
    lan.plugin.cmd_status(lan.conf())
    world.faults = Faults(frozenset(range(1, 100)))
    with pytest.raises(NotReady, match="injected"):
        lan.plugin.cmd_status(lan.conf())


def ordinary(world: CniWorld) -> tuple[str, str]:
    world.put_pod("web-0")
    return "web-0", "c1"


def launcher(world: CniWorld) -> tuple[str, str]:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    return "virt-launcher-db-a", "c1"


@pytest.mark.parametrize("case", [ordinary, launcher])
@pytest.mark.parametrize("further", [(), (1,), (1, 2, 3)], ids=str)
def test_failing_at_every_step_and_in_the_undo_leaves_nothing(
    tmp_path: Path, case: Callable[[CniWorld], tuple[str, str]], further: tuple[int, ...]
) -> None:
    failures, k = 0, 0
    while True:
        k += 1
        world = CniWorld(tmp_path / f"{k}")
        world.pool("pool-6", "fd00:10:65::/112")
        lan = Foreign(world, assign_ipv6=True)
        pod, container = case(world)
        world.faults = Faults(frozenset({k, *(k + more for more in further)}))
        try:
            lan.add(pod, container)
        except TortieError:
            failures += 1
            assert world.nothing_left(), (k, world.faults.seen)
        if world.faults.steps < k:
            break
    assert failures >= 3, "IPAM's own retries explain the rest"


@pytest.mark.parametrize("case", [ordinary, launcher])
def test_killed_at_every_step_a_repeat_completes_and_del_frees(
    tmp_path: Path, case: Callable[[CniWorld], tuple[str, str]]
) -> None:
    k, killed = 0, True
    while killed:
        k += 1
        world = CniWorld(tmp_path / f"{k}")
        lan = Foreign(world)
        pod, container = case(world)
        world.faults = Faults(frozenset({k}), kill=True)
        try:
            lan.add(pod, container)
            killed = False
        except Killed:
            pass
        world.faults = Faults()
        result = lan.add(pod, container)
        assert set(world.allocated()) == {str(one.ip) for one in result.addresses}
        lan.delete(pod, container)
        if case is ordinary:
            assert world.nothing_left(), k
    assert k > 5


def test_over_the_whole_path_as_a_runtime_calls_it(world: CniWorld) -> None:
    """By the configuration alone: the executable's name does not reach the agent."""
    node = world.node()
    parts = node.shared(table_ready=lambda: False)
    world.put_pod("web-0")
    phases: dict[str, set[str]] = {}

    def call(verb: str, **more: Any) -> tuple[int, Any]:
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": node.netns("c1"),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0",
            "CNI_PATH": "/opt/cni/bin",
        }
        body = {
            "cniVersion": "1.1.0",
            "name": "lan",
            "type": "macvlan",
            "master": "eth0",
            "mode": "bridge",
            "ipam": {"type": "calico-ipam"},
            **more,
        }
        stdin = json.dumps(body).encode()
        answer = dispatch(
            env,
            stdin,
            lambda parsed: build_plugin(parsed, shared=parts),
            observe=lambda told, _: phases.update({verb: set(told.phases)}),
        )
        return answer.code, json.loads(answer.stdout) if answer.stdout else None

    before = {"cniVersion": "1.1.0", "interfaces": [{"name": "x"}], "ips": []}
    code, body = call("ADD", prevResult=before)
    assert (code, body) == (
        0,
        {"cniVersion": "1.1.0", "ips": [{"address": "10.65.0.2/26"}], "dns": {}},
    )
    assert call("CHECK", prevResult=body) == (0, None)
    assert call("STATUS") == (0, None)
    assert "1.1.0" in call("VERSION")[1]["supportedVersions"]
    assert call("GC", **{"cni.dev/valid-attachments": []}) == (0, None)
    assert world.allocated() == {}
    assert call("DEL") == (0, None)
    assert phases["ADD"] == {"identity", "lock", "ipam"}
    assert phases["DEL"] == {"lock", "ipam"}
    world.kube.remove(Pod, "web-0", "default")
    assert call("DEL") == (0, None)
    code, body = call("ADD", ipam={"type": "host-local"})
    assert (code, body["code"]) == (1, 7)
