"""ADD: what it makes, that it repeats, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_plugin.errors import (
    AttachmentConflict,
    IdentityRefused,
    InvalidConfig,
    InvalidEnvironment,
    UnknownContainer,
)
from libtortie.errors import (
    InvalidInput,
    KernelError,
    MigrationRefused,
    NoFreeAddresses,
    OwnerMismatch,
    Unavailable,
)
from libtortie.linux.port import Route, RouteProto, VethPair
from libtortie.model import names
from libtortie.model.ipam import Persistence
from libtortie.model.keys import path_of
from tests.fakes.cni_world import CniWorld, conf, endpoint_key, first_address, owners

HANDLE = "k8s-pod-network.vmi.default.db"


@pytest.fixture
def world(tmp_path: Path) -> CniWorld:
    return CniWorld(tmp_path)


def test_an_ordinary_pod_is_attached_as_in_calico(world: CniWorld) -> None:
    node = world.node()
    world.put_pod(
        "web-0",
        labels={"app": "web"},
        spec={
            "serviceAccountName": "sa",
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}],
        },
    )
    result = node.add("web-0", "c1")
    address = first_address(result)
    host_name = names.host_ifname("default", "web-0")

    assert [i.name for i in result.interfaces] == [host_name, "eth0"]
    assert result.interfaces[0].sandbox == ""
    assert result.interfaces[1].sandbox == "/run/netns/c1"
    assert str(result.addresses[0]) == f"{address}/32"
    assert node.host.links[host_name].mac == "ee:ee:ee:ee:ee:ee"
    assert node.route(address) == Route(
        ip_network(f"{address}/32"), 1024, host_name, proto=RouteProto.BOOT, link_scope=True
    )
    for name, value in {
        f"net/ipv4/conf/{host_name}/proxy_arp": "1",
        f"net/ipv4/conf/{host_name}/forwarding": "1",
        f"net/ipv4/conf/{host_name}/route_localnet": "1",
    }.items():
        assert node.host.sysctls[name] == value
    inside = node.machine.space("/run/netns/c1")
    assert [str(a) for a in inside.addresses["eth0"]] == [f"{address}/32"]
    assert {(str(r.dst), str(r.gateway), r.link_scope) for r in inside.routes.values()} == {
        ("169.254.1.1/32", "None", True),
        ("0.0.0.0/0", "169.254.1.1", False),
    }


def test_the_endpoint_says_what_agent_and_del_need(world: CniWorld) -> None:
    node = world.node()
    world.put_pod(
        "web-0",
        labels={"app": "web"},
        spec={
            "serviceAccountName": "sa",
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}],
        },
    )
    address = first_address(node.add("web-0", "c1"))
    (stored,) = world.endpoints()
    assert stored.metadata.name == "node1-k8s-web--0-eth0"
    assert stored.metadata.namespace == "default"
    assert stored.metadata.labels == {
        "app": "web",
        "projectcalico.org/namespace": "default",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "sa",
    }
    assert stored.metadata.annotations == {
        names.ANNOTATION_POD_UID: "uid-of-web-0",
        names.ANNOTATION_HANDLE: "k8s-pod-network.c1",
    }
    spec = stored.spec
    assert spec.ip_networks == (f"{address}/32",)
    assert (spec.node, spec.pod, spec.container_id, spec.endpoint) == (
        "node1",
        "web-0",
        "c1",
        "eth0",
    )
    assert spec.profiles == ("kns.default", "ksa.default.sa")
    assert spec.mac == node.machine.space("/run/netns/c1").links["eth0"].mac
    assert [(p.name, p.port) for p in spec.ports] == [("http", 80)]


def test_a_repeat_returns_the_first_result_and_changes_nothing(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    first = node.add("web-0", "c1")
    before, changes = world.left(), len(node.machine.changes)
    created = world.endpoints()[0].metadata.creation_timestamp
    world.clock.sleep(60)
    assert node.add("web-0", "c1") == first
    assert world.left() == before
    assert world.endpoints()[0].metadata.creation_timestamp == created
    assert {op for op, _ in node.machine.changes[changes:]} <= {
        "ensure_veth",
        "ensure_route",
        "ensure_address",
    }


def test_a_failing_repeat_leaves_the_first_attachment_alone(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    before = world.left()
    world.faults.at = frozenset({world.faults.steps + 12})
    with pytest.raises((Unavailable, KernelError)):
        node.add("web-0", "c1")
    assert world.left() == before


def test_a_new_sandbox_of_the_pod_gets_its_own_address_and_the_old_del_is_harmless(
    world: CniWorld,
) -> None:
    node = world.node()
    world.put_pod("web-0")
    old = first_address(node.add("web-0", "c1"))
    new = first_address(node.add("web-0", "c2"))
    assert old != new
    node.delete("web-0", "c1")
    assert world.allocated() == {new: "k8s-pod-network.c2"}
    assert world.endpoints()[0].spec.container_id == "c2"
    assert node.route(new) is not None
    assert node.route(old) is None


def test_policy_is_waited_for_by_container(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    assert node.gate.asked == [("k8s default%2Fweb-0 eth0", "c1", 10.0)]
    assert [fields["policy_wait_ms"] for event, fields in node.log if event == "cni_add"] == [0.0]


def test_when_time_is_over_the_pod_starts_all_the_same(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.gate.satisfied = False
    before = world.clock.monotonic()
    node.add("web-0", "c1", conf={"policy_setup_timeout_seconds": 3})
    assert world.clock.monotonic() - before == pytest.approx(3, abs=0.5)
    assert ("policy_timeout", {"container_id": "c1", "timeout_seconds": 3.0}) in node.log


def test_no_wait_when_none_is_configured(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1", conf={"policy_setup_timeout_seconds": 0})
    assert node.gate.asked == []


def test_no_agent_no_pod(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.gate.is_ready = False
    with pytest.raises(Unavailable, match="tortie-node"):
        node.add("web-0", "c1")
    assert world.nothing_left()


def test_the_netns_must_be_another_one(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.machine.alias("/proc/1/ns/net", "")
    with pytest.raises(InvalidEnvironment, match="own namespace"):
        node.add("web-0", "c1", netns="/proc/1/ns/net")
    with pytest.raises(UnknownContainer, match="/run/netns/none"):
        node.add("web-0", "c1", netns="/run/netns/none")
    assert world.nothing_left()


def test_only_the_first_plugin_of_a_list(world: CniWorld) -> None:
    world.put_pod("web-0")
    with pytest.raises(InvalidConfig, match="prevResult"):
        world.node().add("web-0", "c1", conf={"prevResult": {"cniVersion": "1.0.0"}})


def test_a_caller_without_kubernetes(world: CniWorld) -> None:
    node = world.node()
    result = node.add("", "podman-0123456789abcdef")
    assert result.interfaces[0].name == names.host_ifname_of_container("podman-0123456789abcdef")
    (stored,) = world.endpoints()
    assert (stored.spec.orchestrator, stored.spec.workload, stored.spec.pod) == (
        "cni",
        "podman-0123456789abcdef",
        "",
    )
    assert stored.spec.profiles == ("k8s-pod-network",)
    node.delete("", "podman-0123456789abcdef")
    assert world.nothing_left()


def test_containers_whose_ids_begin_alike_are_two_attachments(world: CniWorld) -> None:
    node = world.node()
    results = [node.add("", f"podman-0123456789{end}") for end in "ab"]
    assert len({result.interfaces[0].name for result in results}) == 2
    assert len({first_address(result) for result in results}) == 2
    node.delete("", "podman-0123456789a")
    assert [e.spec.container_id for e in world.endpoints()] == ["podman-0123456789b"]
    assert node.route(first_address(results[1])) is not None


def test_a_host_name_that_anothers_container_has_is_refused(world: CniWorld) -> None:
    node = world.node()
    node.add("", "c1")
    name = names.host_ifname_of_container("c2")
    world.edit_endpoint("c1", interface_name=name)
    node.kernel.add_link(name, "veth")
    before = world.left()
    with pytest.raises(AttachmentConflict, match=name):
        node.add("", "c2")
    assert world.left() == before


def test_a_second_interface_of_a_pod_is_refused(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    before = world.left()
    with pytest.raises(AttachmentConflict, match="one interface"):
        node.add("web-0", "c1", ifname="net1")
    assert world.left() == before


def test_the_pool_runs_dry(world: CniWorld) -> None:
    node = world.node()
    for number in range(2):
        world.put_pod(
            f"web-{number}", annotations={"cni.projectcalico.org/ipAddrs": '["10.9.9.9"]'}
        )
    with pytest.raises((NoFreeAddresses, InvalidInput)):
        node.add("web-0", "c1")
    assert world.nothing_left()


def test_annotation_and_cni_args_choose_the_address(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0", annotations={"cni.projectcalico.org/ipAddrs": '["10.65.0.77"]'})
    assert first_address(node.add("web-0", "c1")) == "10.65.0.77"
    assert first_address(node.add("web-0", "c2")) == "10.65.0.77", "same pod, next sandbox"
    world.put_pod("web-1")
    assert first_address(node.add("web-1", "c3", IP="10.65.0.78")) == "10.65.0.78"


# --- routes in the way -----------------------------------------------------------------------


def occupy(world: CniWorld, address: str) -> str:
    """A live veth of another workload that has a route for an address."""
    node = world.node()
    node.netns("other")
    node.kernel.ensure_veth(
        VethPair("cali00000000000", "ee:ee:ee:ee:ee:ee", "eth0", "/run/netns/other", 1500)
    )
    node.kernel.ensure_route(Route(ip_network(address + "/32"), 512, "cali00000000000"))
    return "cali00000000000"


def test_a_route_on_another_live_veth_stops_an_ordinary_pod(world: CniWorld) -> None:
    node = world.node()
    occupy(world, "10.65.0.77")
    world.put_pod("web-0")
    with pytest.raises(AttachmentConflict, match=r"10\.65\.0\.77/32 dev cali00000000000"):
        node.add("web-0", "c1", IP="10.65.0.77")
    assert world.allocated() == {}
    assert [n for n in node.host.links if n.startswith("cali")] == ["cali00000000000"]
    assert world.endpoints() == []


def test_a_route_on_the_right_veth_is_accepted(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    first = node.add("web-0", "c1")
    node.kernel.ensure_route(
        Route(ip_network(f"{first_address(first)}/32"), 0, first.interfaces[0].name)
    )
    assert node.add("web-0", "c1") == first


def test_a_bird_route_to_an_uplink_is_not_in_the_way(world: CniWorld) -> None:
    node = world.node()
    node.kernel.ensure_route(Route(ip_network("10.65.0.77/32"), 768, "uplink0"))
    world.put_pod("web-0")
    assert first_address(node.add("web-0", "c1", IP="10.65.0.77")) == "10.65.0.77"


# --- gateway, MTU, IPv6 ----------------------------------------------------------------------


def test_the_gateway_is_routable_without_a_default_route(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    (helper,) = [r for r in node.host.routes.values() if str(r.dst) == "169.254.1.1/32"]
    assert helper.ifname == "lo"
    assert helper.proto == RouteProto.KERNEL, "BIRD must not learn it"


@pytest.mark.parametrize(
    ("file", "settings", "default_route", "expected"),
    [
        (None, {}, False, 1500),
        (None, {}, True, 1442),
        ("1430\n", {}, True, 1430),
        ("garbage", {}, True, 1442),
        ("1430\n", {"mtu": 1400}, True, 1400),
    ],
)
def test_mtu(
    world: CniWorld, file: str | None, settings: dict[str, int], default_route: bool, expected: int
) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.kernel.set_link("uplink0", mtu=1442)
    if default_route:
        node.kernel.ensure_route(Route(ip_network("0.0.0.0/0"), 100, "uplink0"))
    if file is not None:
        (world.directory / "mtu").write_text(file)
    result = node.add("web-0", "c1", conf=settings)
    assert [i.mtu for i in result.interfaces] == [expected, expected]


def test_dual_stack(world: CniWorld) -> None:
    node = world.node()
    world.pool("pool-6", "fd00:10:65::/112")
    world.put_pod("web-0", annotations={"cni.projectcalico.org/ipFamilies": '["IPv4", "IPv6"]'})
    result = node.add("web-0", "c1")
    assert [a.version for a in result.addresses] == [4, 6]
    assert result.addresses[1].network.prefixlen == 128
    host = result.interfaces[0].name
    assert str(node.host.addresses[host][0]) == "fe80::ecee:eeff:feee:eeee/64"
    inside = node.machine.space("/run/netns/c1")
    assert any(
        str(r.dst) == "::/0" and str(r.gateway) == "fe80::ecee:eeff:feee:eeee"
        for r in inside.routes.values()
    )
    assert any(r.dst == result.addresses[1].network for r in node.host.routes.values())
    assert node.host.sysctls[f"net/ipv6/conf/{host}/forwarding"] == "1"


def test_no_ipv6_in_the_kernel_matters_to_those_who_want_it_only(world: CniWorld) -> None:
    node = world.node()
    world.pool("pool-6", "fd00:10:65::/112")

    def no_ipv6(operation: str, subject: str) -> None:
        if operation == "write_sysctl" and "ipv6" in subject:
            raise KernelError(f"cannot write sysctl {subject}: Read-only file system")

    node.machine.before = no_ipv6
    node.host.sysctls["net/ipv6/conf/all/disable_ipv6"] = "1"
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.put_pod("web-1")
    with pytest.raises(KernelError, match="net/ipv6"):
        node.add("web-1", "c2", conf={"ipam": {"assign_ipv6": "true"}})
    assert len(world.endpoints()) == 1


def test_names_of_greatest_length(world: CniWorld) -> None:
    node = world.node()
    namespace = "n" * 63
    pod = ".".join(["p" * 61] * 4) + ".x"
    world.put_pod(pod, namespace, spec={"serviceAccountName": "s" * 253})
    node.add(pod, "c1", namespace)
    (stored,) = world.endpoints()
    assert stored.spec.service_account_name == "s" * 253
    assert all(len(value) <= 63 for value in stored.metadata.labels.values())
    node.delete(pod, "c1", namespace)
    assert world.nothing_left()


# --- VMs -------------------------------------------------------------------------------------


def test_a_vm_gets_its_own_handle_mac_and_endpoint_notes(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    result = node.add("virt-launcher-db-a", "c1")
    assert world.allocated() == {first_address(result): HANDLE}
    assert result.interfaces[1].mac == names.derived_mac(HANDLE)
    (stored,) = world.endpoints()
    assert stored.metadata.annotations == {
        names.ANNOTATION_POD_UID: "uid-of-virt-launcher-db-a",
        names.ANNOTATION_HANDLE: HANDLE,
        names.ANNOTATION_VMI_NAME: "db",
        names.ANNOTATION_VMI_UID: "vmi-db-1",
        names.ANNOTATION_VM_UID: "vm-db",
    }
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")


def test_a_restarted_vm_keeps_its_address_on_any_node(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    first = world.node("node1").add("virt-launcher-db-a", "c1")
    world.node("node1").delete("virt-launcher-db-a", "c1")
    assert world.allocated() == {first_address(first): HANDLE}, "stopped, not freed"
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-b", generation=2)
    second = world.node("node2").add("virt-launcher-db-b", "c2")
    assert second.addresses == first.addresses
    assert second.interfaces[1].mac == first.interfaces[1].mac


def test_a_restart_on_the_same_node_replaces_the_old_sandbox_route(world: CniWorld) -> None:
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    first = node.add("virt-launcher-db-a", "c1")
    old_name = first.interfaces[0].name
    node.kernel.ensure_route(Route(first.addresses[0].network, 512, old_name))  # an elevated one
    world.put_launcher("virt-launcher-db-a", status={"phase": "Succeeded"})
    world.put_vm(generation=2)
    world.put_launcher("virt-launcher-db-b", generation=2)
    second = node.add("virt-launcher-db-b", "c2")
    assert second.addresses == first.addresses
    here = [r for r in node.host.routes.values() if r.dst == first.addresses[0].network]
    assert [(r.ifname, r.priority) for r in here] == [(second.interfaces[0].name, 1024)]
    node.delete("virt-launcher-db-a", "c1")
    assert node.route(first_address(second)) is not None
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-b", "")


def test_a_migration_target_has_everything_but_the_route(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    source = world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    node = world.node("node2")
    target = node.add("virt-launcher-db-b", "c2")
    assert target.addresses == source.addresses
    assert target.interfaces[1].mac == source.interfaces[1].mac
    assert node.route(first_address(target)) is None
    host_name = target.interfaces[0].name
    assert node.host.sysctls[f"net/ipv4/conf/{host_name}/proxy_arp"] == "1"
    assert world.node("node1").route(first_address(source)) is not None
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "virt-launcher-db-b")
    assert node.gate.asked, "a target waits for policy too"
    target_endpoint = next(e for e in world.endpoints() if e.spec.node == "node2")
    assert target_endpoint.metadata.annotations[names.ANNOTATION_MIGRATION_UID] == "vmim-m1"


def test_a_failed_target_leaves_the_source_sole_owner(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    node = world.node("node2")
    node.add("virt-launcher-db-b", "c2")
    node.delete("virt-launcher-db-b", "c2")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")


def test_a_target_of_a_vm_without_address_is_refused(world: CniWorld) -> None:
    world.put_vm()
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    with pytest.raises(MigrationRefused, match="no IP allocated"):
        world.node().add("virt-launcher-db-b", "c2")
    assert world.nothing_left()


def test_a_forged_pod_with_the_right_uid_does_not_take_a_live_vms_address(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a", status={"phase": "Running"})
    source = world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_launcher("virt-launcher-db-forged")
    node = world.node("node2")
    with pytest.raises(OwnerMismatch, match="virt-launcher-db-a, which is alive"):
        node.add("virt-launcher-db-forged", "c9")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-a", "")
    assert [e.spec.pod for e in world.endpoints()] == ["virt-launcher-db-a"]
    assert node.route(first_address(source)) is None


def test_a_second_target_of_one_migration_is_refused(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    world.node("node1").add("virt-launcher-db-a", "c1")
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    world.node("node2").add("virt-launcher-db-b", "c2")
    world.put_launcher("virt-launcher-db-c", migration="m1")
    with pytest.raises(OwnerMismatch, match="alternate owner"):
        world.node("node3").add("virt-launcher-db-c", "c3")
    assert owners(world.node().ipam.by_handle(HANDLE))[1] == "virt-launcher-db-b"


def test_the_next_vm_of_a_name_takes_over_once_the_old_one_is_gone(world: CniWorld) -> None:
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    node = world.node()
    first = node.add("virt-launcher-db-a", "c1")
    node.delete("virt-launcher-db-a", "c1")
    reborn = {"name": "db", "namespace": "default", "uid": "vm-db-reborn"}
    from libtortie.kube.objects import VirtualMachine, VirtualMachineInstance
    from tests.fakes.cni_world import owner_reference

    world.kube.put({"metadata": reborn}, VirtualMachine)
    vmi = {
        "name": "db",
        "namespace": "default",
        "uid": "vmi-reborn",
        "ownerReferences": [owner_reference("VirtualMachine", "db", "vm-db-reborn")],
    }
    world.kube.put({"metadata": vmi}, VirtualMachineInstance)
    reference = owner_reference("VirtualMachineInstance", "db", "vmi-reborn")
    world.put_launcher("virt-launcher-db-z", ownerReferences=[reference])
    second = node.add("virt-launcher-db-z", "c2")
    assert second.addresses == first.addresses
    assert node.ipam.by_handle(HANDLE)[0].active["vm-uid"] == "vm-db-reborn"


def test_disabled_persistence(world: CniWorld) -> None:
    world.config(kubevirt_persistence=Persistence.DISABLED)
    node = world.node()
    world.put_vm()
    world.put_launcher("virt-launcher-db-a")
    node.add("virt-launcher-db-a", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.c1"}
    assert names.ANNOTATION_VMI_NAME not in world.endpoints()[0].metadata.annotations
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    with pytest.raises(MigrationRefused) as refused:
        node.add("virt-launcher-db-b", "c2")
    assert str(refused.value) == (
        "live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled"
    )
    node.delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()


def test_identity_failure_leaves_nothing(world: CniWorld) -> None:
    world.put_launcher("virt-launcher-db-a")  # no VMI
    with pytest.raises(IdentityRefused):
        world.node().add("virt-launcher-db-a", "c1")
    assert world.nothing_left()


def test_the_lock_comes_first_and_then_the_clock(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    plugin_ports = node.ports()
    waiting = 30.0

    class SlowLocks:
        def hold(self, key: str, timeout: float):  # type: ignore[no-untyped-def]  # context manager
            world.clock.sleep(waiting)
            return plugin_ports.locks.hold(key, timeout)

        def busy(self, key: str) -> bool:
            return plugin_ports.locks.busy(key)

    from cni_plugin.plugin import Plugin

    plugin = Plugin(replace(plugin_ports, locks=SlowLocks()))
    plugin.cmd_add(node.args("web-0", "c1"), conf())
    (duration,) = [fields["duration_ms"] for event, fields in node.log if event == "cni_add"]
    assert isinstance(duration, float)
    assert duration < waiting * 1000


def test_an_unreadable_endpoint_does_not_block_its_pods_name(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.memory.put_raw(path_of(endpoint_key("node1", "web-0")), b"{not json")
    node.add("web-0", "c2")
    assert [e.spec.container_id for e in world.endpoints()] == ["c2"]
    (fields,) = [told for event, told in node.log if event == "unreadable_endpoint_replaced"]
    assert fields["name"] == endpoint_key("node1", "web-0").name
