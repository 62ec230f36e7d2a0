"""DEL: keyed on the container, missing is success, others' things are left alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_network

import pytest

from cni_plugin import detach, endpoint
from libtortie.errors import Malformed, Unauthorized, Unavailable
from libtortie.kube.objects import KubeObject, Pod, VirtualMachine, VirtualMachineInstance
from libtortie.linux.port import Route
from libtortie.model import names
from libtortie.model.keys import BlockKey, path_of
from tests.fakes.cni_world import (
    NETWORK,
    CniWorld,
    conf,
    endpoint_key,
    first_address,
    owners,
    started_vm,
)

HANDLE = "k8s-pod-network.vmi.default.db"


def test_del_undoes_add_and_may_come_again(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.delete("web-0", "c1")
    assert world.nothing_left()
    node.delete("web-0", "c1", netns="")
    node.delete("web-0", "c1", netns="/run/netns/gone")


def test_del_before_any_add(world: CniWorld) -> None:
    node = world.node()
    node.delete("web-0", "c1")
    node.delete("virt-launcher-db-a", "c1", netns="")
    assert world.nothing_left()


def test_del_after_the_namespace_died(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.machine.delete("/run/netns/c1")
    node.delete("web-0", "c1", netns="/run/netns/c1")
    assert world.nothing_left()


def test_del_without_a_namespace_still_removes_the_veth(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.delete("web-0", "c1", netns="")
    assert world.nothing_left()
    assert "eth0" not in node.machine.space("/run/netns/c1").links


def test_del_of_an_ordinary_pod_needs_no_api(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.kube.fail(Unavailable("down"), times=100)
    node.delete("web-0", "c1")
    assert world.nothing_left()


def test_many_dels_of_a_dead_sandbox_beside_its_successors_add(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    inside, go_on = threading.Event(), threading.Event()

    def linger() -> None:
        inside.set()
        assert go_on.wait(60)

    node.gate.during = linger
    with ThreadPoolExecutor(12) as pool:
        adding = pool.submit(node.add, "web-0", "c2")
        assert inside.wait(60)
        deleting = [pool.submit(node.delete, "web-0", "c1", netns="") for _ in range(10)]
        go_on.set()
        result = adding.result(60)
        for one in deleting:
            one.result(60)
    assert world.allocated() == {first_address(result): "k8s-pod-network.c2"}
    assert world.endpoints()[0].spec.container_id == "c2"
    assert node.route(first_address(result)) is not None


def test_a_late_del_of_a_vms_dead_sandbox(world: CniWorld) -> None:
    node = started_vm(world)
    second = node.add("virt-launcher-db-a", "c2")  # the pod's sandbox was re-created
    node.delete("virt-launcher-db-a", "c1")
    assert node.ipam.by_handle(HANDLE)[0].active["container-id"] == "c2"
    assert node.route(first_address(second)) is not None
    assert world.endpoints()[0].spec.container_id == "c2"


def test_a_del_for_another_uid_of_the_same_container_touches_nothing(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0", uid="uid-new")
    node.add("web-0", "c1", uid="uid-new")
    node.delete("web-0", "c1", uid="uid-old", netns="")
    assert len(world.endpoints()) == 1
    assert [n for n in node.host.links if n.startswith("cali")]


def test_the_pod_moved_to_another_node(world: CniWorld) -> None:
    one, two = world.node("node1"), world.node("node2")
    world.put_pod("web-0")
    one.add("web-0", "c1")
    result = two.add("web-0", "c2")
    for _ in range(3):
        one.delete("web-0", "c1")
    assert world.allocated() == {first_address(result): "k8s-pod-network.c2"}
    assert [e.spec.node for e in world.endpoints()] == ["node2"]


# --- whose link, whose handle -------------------------------------------------------------------


def test_the_link_says_whose_it_is(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    name = node.add("web-0", "c1").interfaces[0].name
    assert node.veths() == {name: "tortie:k8s-pod-network/c1"}
    node.add("web-0", "c2")
    assert node.veths() == {name: "tortie:k8s-pod-network/c2"}


@pytest.mark.parametrize("netns", ["/run/netns/c2", "/run/netns/c1", ""])
def test_del_of_an_old_sandbox_with_any_namespace_leaves_the_new_ones_veth(
    world: CniWorld, netns: str
) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    result = node.add("web-0", "c2")
    node.delete("web-0", "c1", netns=netns)
    assert list(node.veths().values()) == ["tortie:k8s-pod-network/c2"]
    assert node.route(first_address(result)) is not None
    assert "eth0" in node.machine.space("/run/netns/c2").links


@pytest.mark.parametrize("netns", ["/run/netns/c2", ""])
def test_without_an_alias_a_record_of_another_sandbox_protects_the_link(
    world: CniWorld, netns: str
) -> None:
    node = world.node()
    world.put_pod("web-0")
    name = node.add("web-0", "c2").interfaces[0].name
    node.host.links[name] = replace(node.host.links[name], alias="")
    node.delete("web-0", "c1", netns=netns)
    assert name in node.host.links
    node.delete("web-0", "c2", netns=netns)
    assert world.nothing_left()


def test_an_old_record_does_not_prove_a_new_sandboxes_veth(world: CniWorld) -> None:
    """The new sandbox's ADD has its veth and not yet its record when the old one's DEL comes."""
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.cut_short("web-0", "c2")
    assert [e.spec.container_id for e in world.endpoints()] == ["c1"]
    node.delete("web-0", "c1")
    assert list(node.veths().values()) == ["tortie:k8s-pod-network/c2"]
    assert world.endpoints() == []
    node.delete("web-0", "c2", netns="")
    assert world.nothing_left()


def test_another_networks_link_of_the_same_container_stays(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1", conf={"name": "othernet"})
    world.memory.delete(endpoint_key("node1", "web-0"))
    node.delete("web-0", "c1")
    assert list(node.veths().values()) == ["tortie:othernet/c1"]


def test_del_of_a_refused_second_interface_leaves_the_first(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    result = node.add("web-0", "c1")
    before = world.left()
    for netns in ("/run/netns/c1", ""):
        node.delete("web-0", "c1", ifname="net1", netns=netns)
        assert world.left() == before
    assert node.route(first_address(result)) is not None


def test_an_endpoint_under_the_name_of_earlier_versions_is_taken_down(world: CniWorld) -> None:
    node = world.node()
    container = "podman-0123456789abcdef"
    new = node.add("", container).interfaces[0].name
    old = "cali" + container[:11]
    node.host.drop_routes(new)
    node.host.links[old] = replace(node.host.links.pop(new), name=old, alias="")
    node.host.peers[old] = node.host.peers.pop(new)
    world.edit_endpoint(container, interface_name=old)
    node.delete("", container, netns="")
    assert world.nothing_left()


def test_a_record_that_names_an_uplink_does_not_cost_it(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.edit_endpoint("c1", interface_name="uplink0")
    node.delete("web-0", "c1")
    assert "uplink0" in node.host.links
    assert world.nothing_left()


@pytest.mark.parametrize(
    ("network", "container"), [(NETWORK, "vmi.default.db"), ("k8s-pod-network.vmi", "default.db")]
)
def test_a_container_whose_handle_reads_like_a_vms_frees_nothing(
    world: CniWorld, network: str, container: str
) -> None:
    """The parsers refuse both; whatever comes past them still meets the fence."""
    assert names.container_handle(network, container) == HANDLE
    node = started_vm(world)
    held = world.allocated()
    args = node.args("", container)
    place = endpoint.place_of(args, "node1")
    detach.tear_down(node.ports(), args, network, place)
    assert world.allocated() == held
    assert "handle_of_another" in [event for event, _ in node.log]
    world.kube.remove(VirtualMachine, "db", "default")
    world.kube.remove(VirtualMachineInstance, "db", "default")
    node.delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()


def test_two_networks_whose_handles_read_alike(world: CniWorld) -> None:
    node = world.node()
    node.add("", "b.c", conf={"name": "a"})
    held = world.allocated()
    node.plugin.cmd_del(node.args("", "c"), conf(name="a.b"))
    assert world.allocated() == held
    assert list(held.values()) == ["a.b.c"]


# --- recycled namespaces ---------------------------------------------------------------------


def test_a_path_recycled_to_the_hosts_namespace_changes_nothing_there(world: CniWorld) -> None:
    node = world.node()
    node.kernel.add_link("eth0", "")
    world.put_pod("web-0")
    node.add("web-0", "c1")
    node.machine.alias("/proc/7/ns/net", "")
    links = set(node.host.links)
    node.delete("web-1", "c9", netns="/proc/7/ns/net")
    assert set(node.host.links) == links
    node.delete("web-0", "c1", netns="/proc/7/ns/net")  # its own record still proves its veth
    assert "eth0" in node.host.links
    assert world.nothing_left()


def test_a_path_recycled_to_another_pods_namespace_leaves_that_pod_alone(world: CniWorld) -> None:
    node = world.node()
    for pod, container in (("web-0", "c1"), ("web-1", "c2")):
        world.put_pod(pod)
        node.add(pod, container)
    node.delete("web-0", "c1", netns="/run/netns/c2")
    assert "eth0" in node.machine.space("/run/netns/c2").links
    assert [n for n in node.host.links if n.startswith("cali")] == [
        names.host_ifname("default", "web-1")
    ]
    node.delete("web-9", "c9", netns="/run/netns/c2")
    assert "eth0" in node.machine.space("/run/netns/c2").links


def test_the_peer_is_found_after_kubevirt_renamed_it(world: CniWorld) -> None:
    node = started_vm(world)
    record = world.memory.get(endpoint_key("node1", "virt-launcher-db-a"))
    world.memory.delete(record.key)  # only the peer can prove it now
    space = node.machine.space("/run/netns/c1")
    link = space.links.pop("eth0")
    space.links["eth0-nic"] = replace(link, name="eth0-nic")
    space.peers["eth0-nic"] = space.peers.pop("eth0")
    node.delete("virt-launcher-db-a", "c1")
    assert [n for n in node.host.links if n.startswith("cali")] == []


# --- VMs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pod_still_there", [True, False])
def test_a_stopped_vm_keeps_its_address(world: CniWorld, pod_still_there: bool) -> None:
    node = started_vm(world)
    if not pod_still_there:
        world.kube.remove(Pod, "virt-launcher-db-a", "default")
    world.kube.remove(VirtualMachineInstance, "db", "default")  # stopped: VMI goes, VM stays
    node.delete("virt-launcher-db-a", "c1")
    assert list(world.allocated().values()) == [HANDLE]
    assert owners(node.ipam.by_handle(HANDLE)) == ("", "")
    assert world.endpoints() == []


def end(world: CniWorld, kind: type[KubeObject], uid: str, how: str) -> None:
    """What becomes of one of the VM's two objects."""
    body = {"name": "db", "namespace": "default", "uid": uid}
    if how == "gone":
        world.kube.remove(kind, "db", "default")
    elif how == "replaced":
        world.kube.put({"metadata": {**body, "uid": "another"}}, kind)
    elif how == "deleting":
        stamp = {"deletionTimestamp": "2026-08-22T13:00:00Z", "finalizers": ["x"]}
        world.kube.put({"metadata": {**body, **stamp}}, kind)


ENDINGS = ["deleting", "gone", "replaced"]


@pytest.mark.parametrize("vm", ENDINGS)
@pytest.mark.parametrize("vmi", ENDINGS)
def test_the_address_is_freed_with_the_vm(world: CniWorld, vm: str, vmi: str) -> None:
    node = started_vm(world)
    end(world, VirtualMachine, "vm-db", vm)
    end(world, VirtualMachineInstance, "vmi-db-1", vmi)
    node.delete("virt-launcher-db-a", "c1")
    assert world.nothing_left()


@pytest.mark.parametrize("vm", ENDINGS)
def test_an_orphaned_vmi_keeps_its_address(world: CniWorld, vm: str) -> None:
    """`kubectl delete vm --cascade=orphan`, and a launcher that ends before KubeVirt's next."""
    node = started_vm(world)
    end(world, VirtualMachine, "vm-db", vm)
    node.delete("virt-launcher-db-a", "c1")
    assert list(world.allocated().values()) == [HANDLE]
    end(world, VirtualMachineInstance, "vmi-db-1", "deleting")
    node.delete("virt-launcher-db-a", "c1")
    assert list(world.allocated().values()) == [HANDLE], "the seat is left: garbage collection's"


@pytest.mark.parametrize("vmi", ENDINGS)
def test_a_vmi_that_its_vm_makes_again_keeps_its_address(world: CniWorld, vmi: str) -> None:
    node = started_vm(world)
    end(world, VirtualMachineInstance, "vmi-db-1", vmi)
    node.delete("virt-launcher-db-a", "c1")
    assert list(world.allocated().values()) == [HANDLE]


def test_a_standalone_vmi_is_its_own_vm(world: CniWorld) -> None:
    node = world.node()
    meta = {"name": "solo", "namespace": "default", "uid": "vmi-solo-1"}
    world.kube.put({"metadata": meta}, VirtualMachineInstance)
    world.put_launcher("virt-launcher-solo-a", "solo")
    node.add("virt-launcher-solo-a", "c1")
    assert set(world.allocated().values()) == {"k8s-pod-network.vmi.default.solo"}
    world.kube.remove(VirtualMachineInstance, "solo", "default")
    node.delete("virt-launcher-solo-a", "c1")
    assert world.nothing_left()


def test_with_the_api_down_a_vms_del_is_retried_and_completed(world: CniWorld) -> None:
    node = started_vm(world)
    end(world, VirtualMachine, "vm-db", "gone")
    end(world, VirtualMachineInstance, "vmi-db-1", "gone")
    world.kube.fail(Unavailable("no answer"), plural="virtualmachines")
    with pytest.raises(Unavailable):
        node.delete("virt-launcher-db-a", "c1")
    node.delete("virt-launcher-db-a", "c1", netns="")
    assert world.nothing_left()


def test_without_permission_the_address_is_kept_and_del_succeeds(world: CniWorld) -> None:
    node = started_vm(world)
    end(world, VirtualMachine, "vm-db", "gone")
    end(world, VirtualMachineInstance, "vmi-db-1", "gone")
    world.kube.fail(Unauthorized("get virtualmachines: forbidden"), plural="virtualmachines")
    node.delete("virt-launcher-db-a", "c1")
    assert list(world.allocated().values()) == [HANDLE]
    assert world.endpoints() == []
    assert "vm_state_unknown" in [event for event, _ in node.log]


def test_a_source_del_after_promotion_leaves_the_target_active(world: CniWorld) -> None:
    node = started_vm(world)
    world.put_migration("m1")
    world.put_launcher("virt-launcher-db-b", migration="m1")
    other = world.node("node2")
    other.add("virt-launcher-db-b", "c2")
    other.ipam.promote(HANDLE, node.ipam.by_handle(HANDLE)[0].alternate)
    node.delete("virt-launcher-db-a", "c1")
    assert owners(node.ipam.by_handle(HANDLE)) == ("virt-launcher-db-b", "")


def test_an_unreadable_endpoint_does_not_stop_del(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.memory.put_raw(path_of(endpoint_key("node1", "web-0")), b"{not json")
    node.delete("web-0", "c1")
    assert world.allocated() == {}
    assert [n for n in node.host.links if n.startswith("cali")] == []


def test_nothing_is_freed_before_the_device_is_gone(
    world: CniWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")

    def stays(name: str) -> bool:
        raise Unavailable(f"deleting link {name} takes longer than 20 s")

    with monkeypatch.context() as patch:
        patch.setattr(node.kernel, "delete_link", stays)
        with pytest.raises(Unavailable, match="takes longer"):
            node.delete("web-0", "c1")
    assert list(world.allocated().values()) == ["k8s-pod-network.c1"]
    node.delete("web-0", "c1")
    assert world.nothing_left()


def test_an_old_route_of_ours_goes_with_the_link(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    result = node.add("web-0", "c1")
    name = result.interfaces[0].name
    node.kernel.ensure_route(Route(ip_network(f"{first_address(result)}/32"), 512, name))
    node.delete("web-0", "c1")
    assert not [r for r in node.host.routes.values() if r.ifname == name]


def test_indices_that_agree_by_chance_in_the_nodes_own_namespace_prove_nothing(
    world: CniWorld,
) -> None:
    node = world.node()
    world.put_pod("web-0")
    host = node.host.links[node.add("web-0", "c1").interfaces[0].name]
    node.host.links["other"] = replace(
        host, name="other", ifindex=host.peer_ifindex, peer_ifindex=host.ifindex
    )
    node.machine.alias("/proc/7/ns/net", "")
    node.delete("web-0", "c0", netns="/proc/7/ns/net")
    assert host.name in node.host.links


def test_an_endpoint_is_removed_by_its_own_container_only(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c2")
    key = endpoint_key("node1", "web-0")
    endpoint.remove(world.store, key, "c1")
    assert len(world.endpoints()) == 1
    endpoint.remove(world.store, key, "c2")
    assert world.endpoints() == []


def test_a_stopped_vms_address_is_no_containers(world: CniWorld) -> None:
    """Its owner names a VM and no container."""
    node = started_vm(world)
    node.delete("virt-launcher-db-a", "c1")
    (stopped,) = node.ipam.by_handle(HANDLE)
    assert "container-id" not in stopped.active
    args = node.args("", "vmi.default.db")
    detach.tear_down(node.ports(), args, NETWORK, endpoint.place_of(args, "node1"))
    assert list(world.allocated().values()) == [HANDLE]
    assert "handle_of_another" in [event for event, _ in node.log]


def test_a_seat_in_a_block_that_cannot_be_read_is_not_forgotten(world: CniWorld) -> None:
    """A DEL without an endpoint is repeated until the block can be read."""
    node = started_vm(world)
    world.memory.delete(endpoint_key("node1", "virt-launcher-db-a"))
    (allocation,) = node.ipam.by_handle(HANDLE)
    path = path_of(BlockKey(allocation.block))
    stored = world.memory.get(BlockKey(allocation.block)).value
    world.memory.put_raw(path, b"{not json")
    with pytest.raises(Malformed, match="block"):
        node.delete("virt-launcher-db-a", "c1")
    world.memory.delete(BlockKey(allocation.block))
    world.memory.create(BlockKey(allocation.block), stored)
    node.delete("virt-launcher-db-a", "c1")
    assert owners(node.ipam.by_handle(HANDLE)) == ("", "")
