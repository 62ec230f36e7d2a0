"""ADD: what it makes, that it repeats, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest

from cni_plugin.errors import (
    AttachmentConflict,
    InvalidEnvironment,
    UnknownContainer,
)
from cni_plugin.plugin import Plugin
from libtortie.errors import (
    InvalidInput,
    KernelError,
    NoFreeAddresses,
    Unavailable,
)
from libtortie.linux.port import Route, RouteProto
from libtortie.model import names
from libtortie.model.keys import path_of
from tests.fakes.cni_world import (
    CniWorld,
    endpoint_key,
    first_address,
)


def put_web(world: CniWorld) -> None:
    """A pod of which an endpoint tells all it can."""
    world.put_pod(
        "web-0",
        labels={"app": "web"},
        spec={
            "serviceAccountName": "sa",
            "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}],
        },
    )


def test_an_ordinary_pod_is_attached_as_in_calico(world: CniWorld) -> None:
    node = world.node()
    put_web(world)
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
    put_web(world)
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

    node.plugin = Plugin(replace(plugin_ports, locks=SlowLocks()))
    node.add("web-0", "c1")
    (fields,) = [fields for event, fields in node.log if event == "cni_add"]
    assert fields["lock_ms"] == waiting * 1000
    assert fields["duration_ms"] == 0


def test_an_unreadable_endpoint_does_not_block_its_pods_name(world: CniWorld) -> None:
    node = world.node()
    world.put_pod("web-0")
    node.add("web-0", "c1")
    world.memory.put_raw(path_of(endpoint_key("node1", "web-0")), b"{not json")
    node.add("web-0", "c2")
    assert [e.spec.container_id for e in world.endpoints()] == ["c2"]
    (fields,) = [told for event, told in node.log if event == "unreadable_endpoint_replaced"]
    assert fields["name"] == endpoint_key("node1", "web-0").name
