"""What the lab decides before it does anything: topology, ToR, plumbing, seeds, small parsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import names, seed
from lab.cluster import parse_established
from lab.durations import seconds
from lab.nodes import in_netns, in_node, missing_mount_points, mount_script
from lab.plumbing import PodInterface, plan_bridge_binding, plan_guest, read_interface
from lab.processes import parse_record
from lab.state import NODE_MOUNTS, StateDir
from lab.teardown import parse_mounts
from lab.topology import plan_topology
from lab.tor import render_tor
from libtortie.model.keys import Kind


def test_topology_gives_every_node_its_address_and_a_port_at_the_tor() -> None:
    topology = plan_topology(3)
    assert [node.netns for node in topology.nodes] == ["tlab-node1", "tlab-node2", "tlab-node3"]
    assert all(name.startswith("tlab-") for name in topology.namespaces)
    assert set(topology.commands) == set(topology.namespaces)
    assert "addr add 172.31.0.12/24 dev eth0" in topology.commands["tlab-node2"]
    assert "route add default via 172.31.0.1" in topology.commands["tlab-node2"]
    assert "addr add fd00:172:31::12/64 dev eth0 nodad" in topology.commands["tlab-node2"]
    assert "route add ::/0 via fd00:172:31::1" in topology.commands["tlab-node2"]
    tor = topology.commands["tlab-tor"]
    for part in ("node1", "node2", "node3", "api"):
        assert f"link add {part} type veth peer name eth0 netns tlab-{part}" in tor
        assert f"link set {part} master lan up" in tor
    assert topology.sysctls["tlab-node1"]["net.ipv4.ip_forward"] == "1"
    assert topology.sysctls["tlab-tor"]["net.ipv4.conf.all.send_redirects"] == "0"


def test_no_link_is_ever_made_in_the_machines_own_namespace() -> None:
    topology = plan_topology(9)
    made = [line for lines in topology.commands.values() for line in lines if " veth " in line]
    assert made
    assert all(" netns tlab-" in line for line in made)


@pytest.mark.parametrize("count", [0, 101])
def test_topology_refuses_other_sizes(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 100 nodes"):
        plan_topology(count)


def test_tor_speaks_ebgp_with_each_node_and_takes_the_pool_only() -> None:
    text = render_tor(names.lab_nodes(2), Path("/x/bird.log"))
    assert "local 172.31.0.1 as 65000;" in text
    assert "protocol bgp node1 from session4 { neighbor 172.31.0.11 as 64512; }" in text
    assert "protocol bgp node2 from session4 { neighbor 172.31.0.12 as 64512; }" in text
    assert "if net ~ [ 10.65.0.0/16+ ] then accept;" in text
    assert "local fd00:172:31::1 as 65000;" in text
    assert "protocol bgp node2_v6 from session6 { neighbor fd00:172:31::12 as 64512; }" in text
    assert "if net ~ [ fd00:10:65::/64+ ] then accept;" in text
    assert "krt_metric" not in text


def test_a_hundred_nodes_have_an_address_and_a_name_for_their_port_each() -> None:
    nodes = names.lab_nodes(100)
    assert len({node.address for node in nodes}) == 100
    assert all(node.address.ip in names.CLUSTER_SUBNET for node in nodes)
    assert max(len(node.name) for node in nodes) < 16


def test_reflectors_are_the_first_nodes() -> None:
    nodes = names.lab_nodes(3)
    assert names.reflectors(nodes, 2) == nodes[:2]
    assert names.reflectors(nodes, 0) == ()
    for count in (-1, 4):
        with pytest.raises(ValueError, match="cannot be route reflectors"):
            names.reflectors(nodes, count)


def test_bridge_binding_leaves_the_pods_identity_on_a_link_that_is_down() -> None:
    eth0 = PodInterface("02:00:00:00:00:01", 1450, ("10.65.0.2/32",))
    plan = plan_bridge_binding(eth0, "uid-1")
    assert plan.index("link set eth0 name eth0-nic") < plan.index("addr flush dev eth0-nic")
    assert "link set eth0-nic master k6t-eth0" in plan
    assert "link set eth0-nic type bridge_slave learning off" in plan
    assert "link add eth0 address 02:00:00:00:00:01 mtu 1450 type bridge" in plan
    assert plan[-1] == "addr add 10.65.0.2/32 dev eth0"
    assert "link set eth0 up" not in plan
    bridge = next(line for line in plan if line.startswith("link add k6t-eth0"))
    assert "02:00:00:00:00:01" not in bridge  # the guest's MAC belongs to the guest alone
    assert plan_bridge_binding(eth0, "uid-2") != plan


def test_a_guest_has_the_pods_addresses_and_a_gateway_of_each_family() -> None:
    eth0 = PodInterface("02:00:00:00:00:01", 1450, ("10.65.0.2/32", "fd00::2/128"))
    plan = plan_guest(eth0)
    assert {"addr add 10.65.0.2/32 dev eth0", "addr add fd00::2/128 dev eth0"} <= set(plan)
    assert plan[-1] == "route add ::/0 via fe80::ecee:eeff:feee:eeee dev eth0"
    assert "route add default via 169.254.1.1 dev eth0" in plan
    six = plan_guest(PodInterface("02:00:00:00:00:01", 1450, ("fd00::2/128",)))
    assert not any("169.254.1.1" in line for line in six)


def test_read_interface_takes_global_addresses_only() -> None:
    link = {
        "address": "02:00:00:00:00:01",
        "mtu": 1500,
        "addr_info": [
            {"local": "10.65.0.2", "prefixlen": 32, "scope": "global"},
            {"local": "fe80::1", "prefixlen": 64, "scope": "link"},
        ],
    }
    assert read_interface(link) == PodInterface("02:00:00:00:00:01", 1500, ("10.65.0.2/32",))


def test_cable_names_fit_the_kernel_and_differ_by_pod() -> None:
    first, second = names.cable("0a1b2c3d-4e5f-6789"), names.cable("1a1b2c3d-4e5f-6789")
    assert first != second
    assert len(first) <= 15


def test_node_processes_enter_both_namespaces() -> None:
    argv = in_node(StateDir(Path("/s")), "node1", ["ip", "route"])
    assert argv[0] == "nsenter"
    assert {
        "--net=/run/netns/tlab-node1",
        "--mount=/s/ns/node1.mnt",
        "--uts=/s/ns/node1.uts",
    } <= set(argv)
    assert argv[argv.index("--") :] == ["--", "ip", "route"]
    assert in_netns("tlab-ext", ["true"])[1:] == ["--net=/run/netns/tlab-ext", "--", "true"]


def test_a_node_has_its_own_copy_of_every_directory() -> None:
    script = mount_script(StateDir(Path("/s")), "node1")
    for place, part in NODE_MOUNTS.items():
        assert f"mount --bind /s/nodes/node1/{part} {place}" in script


def test_missing_mount_points_come_parents_first(tmp_path: Path) -> None:
    wanted = (str(tmp_path / "a" / "b"), str(tmp_path / "a" / "c"), str(tmp_path))
    made = [str(tmp_path / part) for part in ("a", "a/b", "a/c")]
    assert list(missing_mount_points(wanted)) == made


def test_mounts_under_the_state_directory_and_nothing_else() -> None:
    text = "t /run/x tmpfs rw 0 0\nt /run/x/ns tmpfs rw 0 0\nt /run/xy tmpfs rw 0 0\n"
    assert parse_mounts(text, Path("/run/x")) == ["/run/x", "/run/x/ns"]
    assert parse_mounts("t /run/a\\040b/c tmpfs rw 0 0", Path("/run/a b")) == ["/run/a b/c"]


@pytest.mark.parametrize("line", ["", "12", "12 34", "x 34 name", "12 y name"])
def test_a_ledger_line_cut_short_is_skipped(line: str) -> None:
    assert parse_record(line) is None


def test_ledger_names_may_have_blanks() -> None:
    record = parse_record("12 3456 agent of node1")
    assert record is not None
    assert (record.pid, record.start_time, record.name) == (12, 3456, "agent of node1")


def test_established_sessions_in_birds_words() -> None:
    text = """BIRD 2.0.12 ready.
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     16:53:49.546
node1      BGP        ---        up     16:53:49.546  Established
node2      BGP        ---        start  16:53:49.546  Active        Socket: refused
"""
    assert parse_established(text) == {"node1"}


@pytest.mark.parametrize(
    ("text", "value"), [("8s", 8), ("500ms", 0.5), ("1m30s", 90), ("1.5s", 1.5), ("1h", 3600)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "8", "s", "8s!", "-1s", "8 s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        seconds(text)


def test_seed_names_the_promises_settings() -> None:
    stored = {
        (key.kind, key.name): resource.to_wire()["spec"] for key, resource in seed.resources("8s")
    }
    felix = stored[Kind.FELIX_CONFIGURATION, "default"]
    assert felix["liveMigrationRouteConvergenceTime"] == "8s"
    for pool, cidr in (("ipv4", "10.65.0.0/16"), ("ipv6", "fd00:10:65::/64")):
        found = stored[Kind.IP_POOL, f"default-{pool}-ippool"]
        assert found["cidr"] == cidr
        assert not found.get("natOutgoing")
    assert stored[Kind.BGP_PEER, "tor"] == {"peerIP": "172.31.0.1", "asNumber": 65000}
    assert stored[Kind.BGP_PEER, "tor-v6"] == {"peerIP": "fd00:172:31::1", "asNumber": 65000}


def test_with_reflectors_there_is_no_mesh_and_the_tor_is_theirs() -> None:
    found = {
        key: resource.to_wire()["spec"] for key, resource in seed.resources("8s", reflected=True)
    }
    by_name = {key.name: spec for key, spec in found.items() if key.kind is Kind.BGP_PEER}
    assert by_name["tor"]["nodeSelector"] == "has(route-reflector)"
    assert by_name["tor"]["nextHopMode"] == "Keep"
    assert by_name["reflectors"] == {
        "nodeSelector": "all()",
        "peerSelector": "has(route-reflector)",
    }
    (bgp,) = (spec for key, spec in found.items() if key.kind is Kind.BGP_CONFIGURATION)
    assert not bgp["nodeToNodeMeshEnabled"]


def test_a_reflector_is_one_in_either_datastore() -> None:
    node = names.lab_nodes(1)[0]
    _, stored = seed.reflector(node)
    wire = stored.to_wire()
    assert wire["metadata"]["labels"] == {"route-reflector": "true"}
    assert wire["spec"]["bgp"]["routeReflectorClusterID"] == "244.0.0.1"
    metadata = seed.kube_node(node, reflector=True)["metadata"]
    assert metadata["labels"]["route-reflector"] == "true"
    assert metadata["annotations"] == {"projectcalico.org/RouteReflectorClusterID": "244.0.0.1"}
    assert "annotations" not in seed.kube_node(node)["metadata"]


def test_a_vm_prefers_its_first_node_but_may_leave_it() -> None:
    spec = seed.vm_body("vm", "default", "node2", {})["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert "node2" in str(spec["affinity"])
