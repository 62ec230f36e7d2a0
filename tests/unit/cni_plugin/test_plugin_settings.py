"""Settings and annotations, by what becomes of them on the wire and in the endpoint."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Any

import pytest

from cni_plugin import readiness
from cni_plugin.errors import AttachmentConflict
from felix_shim.endpoints import parse_endpoint
from libtortie.datastore.port import Listing
from libtortie.errors import InvalidInput, OwnerMismatch, Unavailable
from libtortie.model.keys import Scope
from tests.fakes.cni_world import CniNode, CniWorld, conf, started_vm
from tests.fakes.ipam_program import FakeProgram

P = "cni.projectcalico.org/"
GATES: dict[str, Any] = {"feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True}}


def bringing(world: CniWorld, pod: str = "web-0", **notes: str) -> CniNode:
    """A pod with annotations, and a node where the operator allows everything."""
    world.put_pod(pod, annotations={P + name: value for name, value in notes.items()})
    world.node().use(**GATES)
    return world.node()


def test_addresses_the_pod_brings_along(world: CniWorld) -> None:
    node = bringing(world, ipAddrsNoIpam='["10.9.0.7", "fd00:9::7"]')
    result = node.add("web-0", "c1")
    assert [str(one) for one in result.addresses] == ["10.9.0.7/32", "fd00:9::7/128"]
    assert world.allocated() == {}
    assert node.route("10.9.0.7").ifname == result.interfaces[0].name
    assert node.add("web-0", "c1") == result
    checked = conf(**GATES, prevResult=result.to_wire("1.1.0"))
    node.plugin.cmd_check(node.args("web-0", "c1"), checked)
    node.delete("web-0", "c1")
    assert world.nothing_left()


def test_addresses_that_another_pod_of_the_node_has_are_refused(world: CniWorld) -> None:
    node = bringing(world, ipAddrsNoIpam='["10.9.0.7"]')
    node.add("web-0", "c1")
    bringing(world, "web-1", ipAddrsNoIpam='["10.9.0.7"]')
    with pytest.raises(AttachmentConflict, match=r"10\.9\.0\.7"):
        node.add("web-1", "c2")
    assert [one.spec.pod for one in world.endpoints()] == ["web-0"]


def test_a_floating_address_that_somebody_has_is_refused(world: CniWorld) -> None:
    world.put_pod("web-0")
    taken = str(world.node().add("web-0", "c1").addresses[0].ip)
    node = bringing(world, "web-1", floatingIPs=f'["{taken}"]')
    before = world.left()
    with pytest.raises(OwnerMismatch, match=rf"floatingIPs: {taken} is already given to handle"):
        node.add("web-1", "c2")
    assert world.left() == before
    world.node().delete("web-0", "c1")
    node.add("web-1", "c2")


def test_many_floating_addresses_cost_no_more_readings_than_one(
    world: CniWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes annotations does not have the datastore read hundreds of times."""
    listed: list[object] = []
    read = world.store.list

    def counted(scope: Scope) -> Listing:
        listed.append(scope)
        return read(scope)

    monkeypatch.setattr(world.store, "list", counted)
    counts = []
    for number, wanted in enumerate((1, 200)):
        texts = json.dumps([f"192.0.2.{last}" for last in range(1, wanted + 1)])
        bringing(world, f"web-{number}", floatingIPs=texts).add(f"web-{number}", f"c{number}")
        counts.append(len(listed))
        listed.clear()
    assert counts[0] == counts[1] > 0


def test_a_vms_own_addresses_follow_it_in_both_families(world: CniWorld) -> None:
    notes = {P + "ipAddrsNoIpam": '["10.9.0.7", "fd00:9::7"]'}
    world.put_vm()
    world.put_launcher("virt-launcher-db-a", annotations=notes)
    world.node().use(**GATES)
    source = world.node().add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1", annotations=notes)
    other = world.node("node2")
    other.use(**GATES)
    target = other.add("virt-launcher-db-b", "c2")
    assert target.addresses == source.addresses
    for vm in (parse_endpoint(one).vm for one in world.endpoints()):
        assert vm is not None
        assert vm.handle_id == "", "the agent has nobody to make the addresses' owner"
    assert target.interfaces[1].mac == source.interfaces[1].mac
    assert other.route("10.9.0.7") is None, "the agent raises a target's route"
    world.node().delete("virt-launcher-db-a", "c1")
    other.delete("virt-launcher-db-b", "c2")
    assert world.nothing_left()


def test_floating_addresses_and_source_prefixes_are_the_endpoints(world: CniWorld) -> None:
    node = bringing(world, floatingIPs='["192.0.2.7"]', allowedSourcePrefixes='["198.51.100.9/24"]')
    own = str(node.add("web-0", "c1").addresses[0].ip)
    (stored,) = world.endpoints()
    wire = stored.to_wire()["spec"]
    assert wire["ipNATs"] == [{"internalIP": own, "externalIP": "192.0.2.7"}]
    assert wire["allowSpoofedSourcePrefixes"] == ["198.51.100.0/24"]


@pytest.mark.parametrize(
    "notes",
    [
        {"floatingIPs": "nonsense"},
        {"allowedSourcePrefixes": "nonsense"},
        {"floatingIPs": '["2001:db8::1"]'},
        {"ipAddrsNoIpam": "nonsense"},
        {"ipAddrs": '["10.65.0.9"]', "ipAddrsNoIpam": '["10.65.0.9"]'},
        {"hwAddr": "nonsense"},
    ],
    ids=str,
)
def test_a_wish_that_cannot_be_met_takes_nothing(world: CniWorld, notes: dict[str, str]) -> None:
    node = bringing(world, **notes)
    with pytest.raises(InvalidInput):
        node.add("web-0", "c1")
    assert world.nothing_left()
    assert node.machine.changes == [] or "2001:db8::1" in notes.get("floatingIPs", "")


def sysctls(node: CniNode, container: str = "c1") -> dict[str, str]:
    return node.machine.space(f"/run/netns/{container}").sysctls


def test_pods_forward_packets_only_where_they_are_allowed_to(world: CniWorld) -> None:
    """A new namespace inherits the node's setting, so both are written."""
    world.pool("pool-6", "fd00:10:65::/112")
    both = {"assign_ipv6": True}
    keys = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    for number, allowed in enumerate((False, True)):
        pod, container = f"web-{number}", f"c{number}"
        world.put_pod(pod)
        space = world.node().machine.space(world.node().netns(container))
        space.sysctls.update(dict.fromkeys(keys, "0" if allowed else "1"))
        settings = {"container_settings": {"allow_ip_forwarding": allowed}, "ipam": both}
        world.node().add(pod, container, conf=settings)
        found = sysctls(world.node(), container)
        assert [found[key] for key in keys] == ["1" if allowed else "0"] * 2


def test_queues_and_device_types(world: CniWorld) -> None:
    made: list[Any] = []
    node = world.node()
    ensure = node.kernel.ensure_veth

    def record(pair: Any, inside: Any = None) -> Any:
        made.append(pair)
        return ensure(pair, inside)

    node.kernel.ensure_veth = record  # type: ignore[method-assign]  # looks on
    world.put_pod("web-0")
    node.add("web-0", "c1", conf={"num_queues": 4, "device_type": "netkit"})
    assert made[0].queues == 4
    assert ("device_type_unavailable", {"device_type": "netkit", "made": "veth"}) in node.log


def test_an_mtu_file_that_has_to_be_there(world: CniWorld) -> None:
    world.put_pod("web-0")
    node, file = world.node(), world.directory / "mtu"
    for content in (None, "", "0", "much"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(Unavailable, match="require_mtu_file"):
            node.add("web-0", "c1", conf={"require_mtu_file": True})
    assert world.nothing_left()
    file.write_text("1440\n")
    assert node.add("web-0", "c1", conf={"require_mtu_file": True}).interfaces[1].mtu == 1440
    file.unlink()
    assert node.add("web-0", "c1", conf={"require_mtu_file": True, "mtu": 1400})


class Gates:
    """Readiness gates; each URL is ready from a moment on."""

    def __init__(self, world: CniWorld, ready_from: dict[str, float]) -> None:
        self.clock = world.clock
        self.ready_from = ready_from
        self.asked: list[tuple[str, float]] = []

    def __call__(self, url: str) -> bool:
        self.asked.append((url, self.clock.elapsed))
        return self.clock.elapsed >= self.ready_from[url]

    def require(self) -> None:
        urls = list(self.ready_from)
        readiness.require(urls, self, self.clock.monotonic, self.clock.sleep)


def test_readiness_gates(world: CniWorld) -> None:
    gates = Gates(world, {"http://a": 0, "http://b": 12})
    gates.require()
    assert gates.asked == [
        ("http://a", 0),
        ("http://b", 0),
        *(("http://b", t) for t in (5, 10, 15)),
    ]
    late = Gates(world, {"http://a": 0, "http://b": 1e9})
    with pytest.raises(Unavailable, match="readiness gate http://b is not ready within 30 s"):
        late.require()
    assert late.asked[-1] == ("http://b", 15 + readiness.PATIENCE)


def test_a_gate_that_stays_shut_takes_nothing(world: CniWorld) -> None:
    world.put_pod("web-0")
    settings = {"readiness_gates": ["http://localhost:9099/readiness"]}
    with pytest.raises(Unavailable, match="readiness gate"):
        world.node().add("web-0", "c1", conf=settings)
    assert world.nothing_left()


def test_an_old_launcher_without_addresses_of_its_own_keeps_ipams(world: CniWorld) -> None:
    """What a pod brings along does not free what its VM has."""
    started_vm(world)
    held = world.allocated()
    world.node().delete("virt-launcher-db-a", "c1")
    world.put_launcher("virt-launcher-db-b", annotations={P + "ipAddrsNoIpam": '["10.9.0.7"]'})
    world.node().use(**GATES)
    world.node().add("virt-launcher-db-b", "c2")
    assert world.allocated() == held


def test_capabilities_of_the_runtime(world: CniWorld) -> None:
    """`mac`, `ips` and `ipRanges` are obeyed; what is for later plugins is none of our business."""
    world.pool("other", "10.67.0.0/24", assignmentMode="Manual")
    for name in ("web-0", "web-1"):
        world.put_pod(name)
    later = {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": {"ingressRate": 1000, "ingressBurst": 1000},
        "dns": {"servers": ["10.0.0.10"]},
    }
    node = world.node()
    granted = {"mac": "02:00:00:00:00:07", "ips": ["10.65.0.9/24"], **later}
    result = node.add("web-0", "c1", conf={"runtimeConfig": granted})
    assert str(result.addresses[0]) == "10.65.0.9/32"
    assert result.interfaces[1].mac == "02:00:00:00:00:07"
    ranges = {"ipRanges": [[{"subnet": "10.67.0.0/24"}]]}
    result = node.add("web-1", "c2", conf={"runtimeConfig": ranges})
    assert result.addresses[0].ip in ip_network("10.67.0.0/24")


def test_the_networks_dns_is_told_the_runtime(world: CniWorld) -> None:
    """Before what a delegated IPAM says, as with the reference plugins."""
    dns = {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local"]}
    world.put_pod("web-0")
    node = world.node()
    assert node.add("web-0", "c1", conf={"dns": dns}).to_wire("1.0.0")["dns"] == dns
    program = FakeProgram(world.directory / "bin")
    node.use(program, **program.settings(dns={"domain": "ipam."}))
    world.put_pod("web-1")
    assert node.add("web-1", "c2", conf={"dns": dns}).dns == dns
    world.put_pod("web-2")
    assert node.add("web-2", "c3").dns == {"domain": "ipam."}


def test_capabilities_reach_a_delegated_ipam(world: CniWorld) -> None:
    program = FakeProgram(world.directory / "bin")
    granted = {"ipRanges": [[{"subnet": "10.67.0.0/24", "rangeStart": "10.67.0.9"}]], "other": 1}
    world.node().use(program, **program.settings(), runtimeConfig=granted)
    world.put_pod("web-0")
    world.node().add("web-0", "c1")
    assert program.asked[0][2]["runtimeConfig"] == granted
