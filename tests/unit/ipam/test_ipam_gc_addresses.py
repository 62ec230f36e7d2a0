"""Addresses of ordinary pods, tunnels and services: which are kept, which are freed and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipam.gc import Outcome
from ipam.ownership import PLUGIN
from libtortie.kube.objects import Meta, Pod, VirtualMachine
from libtortie.model.keys import BlockKey
from tests.fakes.gc_world import BOTH, GRACE, V4, Town
from tests.fakes.ipam_world import plain_pod, vm_pod

KEEP, WAIT, FREE = Outcome.KEEP, Outcome.WAIT, Outcome.FREE


@pytest.fixture
def town() -> Town:
    return Town()


def test_a_running_pods_address_is_kept(town: Town) -> None:
    (address,) = town.start("web")
    town.settle()
    assert town.of(address) is KEEP
    assert town.why(address) == "pod shop/web lives and has it"


def test_a_pod_that_is_gone_is_waited_for_and_then_its_address_is_freed(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()
    assert town.of(address) is WAIT
    town.sweep(later=GRACE - 1)
    assert town.of(address) is WAIT
    assert str(address) in town.held
    town.sweep(later=1)
    assert town.of(address) is FREE
    assert town.why(address) == "pod shop/web is gone"
    assert town.held == set()
    assert town.world.handles() == {}
    town.world.audit()


def test_however_long_ago_one_observation_does_not_suffice(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep(later=1e6)
    assert town.of(address) is WAIT


def test_a_pod_seen_in_between_starts_the_clock_anew(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()
    town.pod("web", ips=[address])
    town.sweep()
    town.remove_pod("web")
    town.sweep()
    assert town.of(address) is WAIT


def test_lost_memory_costs_a_grace_and_nothing_else(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()
    town.memory = {}
    town.sweep()
    assert town.of(address) is WAIT
    town.sweep()
    assert town.held == set()


@pytest.mark.parametrize("jump", [-8 * 3600.0, 8 * 3600.0, 1e8])
def test_a_jump_of_the_wall_clock_frees_nothing_sooner(town: Town, jump: float) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()
    town.world.later(jump)
    town.sweep(later=1)
    assert town.of(address) is WAIT


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_has_no_address(town: Town, phase: str) -> None:
    (address,) = town.start("job")
    town.pod("job", ips=[address], phase=phase)
    town.settle(2)
    assert town.held == set()
    assert town.why(address) == "pod shop/job has finished"


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_a_pod_that_reports_no_address_yet_may_have_any(town: Town, phase: str) -> None:
    (address,) = town.run("web")
    town.pod("web", phase=phase)
    town.settle()
    assert town.why(address) == "pod shop/web lives and reports no address yet"
    assert town.held == {str(address)}


def test_a_name_that_is_used_again_frees_the_old_pods_address_only(town: Town) -> None:
    (old,) = town.run("db-0", "n1", uid="u-1", container="c-1")
    (new,) = town.run("db-0", "n2", uid="u-2", container="c-2")
    town.pod("db-0", node="n2", uid="u-2", ips=[new])
    town.settle(2)
    assert town.held == {str(new)}
    assert town.why(old) == "pod shop/db-0 is another now, with UID u-2"


def test_without_uids_node_and_reported_addresses_tell_pods_of_a_name_apart(town: Town) -> None:
    """As Calico records them."""
    (old,) = town.run("db-0", "n1", container="c-1")
    (twin,) = town.run("db-0", "n2", container="c-2")
    (new,) = town.run("db-0", "n2", container="c-3")
    for address, node in ((old, "n1"), (twin, "n2"), (new, "n2")):
        town.rewrite(address, {"namespace": "shop", "pod": "db-0", "node": node})
    town.pod("db-0", node="n2", uid="u-2", ips=[new])
    town.settle(2)
    assert town.held == {str(new)}
    assert town.why(old) == "pod shop/db-0 is on node n2 now"
    assert town.why(twin) == f"pod shop/db-0 has {new} instead"


def test_a_node_by_another_name_in_the_datastore_is_the_pods_node(town: Town) -> None:
    town.node("rack1", api=False, orchRefs=[{"orchestrator": "k8s", "nodeName": "n1"}])
    (address,) = town.run("web", "rack1")
    town.pod("web", node="n1")
    town.settle()
    assert town.held == {str(address)}


def test_a_static_pod_is_known_by_either_of_its_uids(town: Town) -> None:
    (address,) = town.run("etcd", uid="by-the-kubelet")
    notes = {"kubernetes.io/config.mirror": "by-the-kubelet"}
    meta = {"namespace": "shop", "name": "etcd", "uid": "by-the-api", "annotations": notes}
    town.kube.put({"metadata": meta, "spec": {"nodeName": "n1"}, "status": {}}, Pod)
    town.settle()
    assert town.held == {str(address)}


# -- what a living pod reports ------------------------------------------------------------------


def test_an_older_sandboxs_address_is_freed_the_living_one_is_not(town: Town) -> None:
    (old,) = town.run("web", container="c-1")
    (new,) = town.run("web", container="c-2")
    town.pod("web", ips=[new])
    town.settle(2)
    assert town.held == {str(new)}
    assert town.why(old) == f"pod shop/web has {new} instead"


def test_status_names_one_family_and_annotations_both(town: Town) -> None:
    v4, v6 = town.run("web", want=BOTH)
    town.pod("web", ips=[v4], podIPs=f"{v4}/32,{v6}/128")
    town.settle()
    assert town.held == {str(v4), str(v6)}


def test_status_names_one_family_and_nothing_says_more(town: Town) -> None:
    v4, v6 = town.run("web", want=BOTH)
    town.pod("web", ips=[v4])
    town.settle()
    assert town.held == {str(v4), str(v6)}
    assert town.why(v6) == "pod shop/web lives and reports no IPv6 address"


def test_a_doubtful_address_does_not_drag_in_its_sibling(town: Town) -> None:
    v4, v6 = town.run("web", want=BOTH)
    town.pod("web", ips=["10.9.9.9", v6])
    town.sweep()
    assert (town.of(v4), town.of(v6)) == (WAIT, KEEP)
    town.settle(2)
    assert town.held == {str(v6)}
    assert set(town.world.handles()) == {"k8s-pod-network.c-web"}
    town.world.audit()


def test_an_endpoint_speaks_for_an_address_that_the_status_lacks(town: Town) -> None:
    """A secondary network's address is never in the pod's status."""
    (address,) = town.run("web")
    town.pod("web", ips=["10.1.1.1"])
    town.endpoint("web", address)
    town.settle()
    assert town.held == {str(address)}


def test_an_endpoint_of_another_pod_of_the_name_does_not(town: Town) -> None:
    (address,) = town.run("web", "n2", container="c-old")
    town.rewrite(address, {"namespace": "shop", "pod": "web"})
    town.pod("web", node="n1", ips=["10.1.1.1"])
    town.endpoint("web", address, node="n2", container="c-old")
    town.settle(2)
    assert town.held == set()


@pytest.mark.parametrize("by", ["annotation", "endpoint"])
def test_the_sandbox_that_lives_keeps_its_address_whatever_is_reported(town: Town, by: str) -> None:
    (address,) = town.run("web", container="c-9")
    notes = {"containerID": "c-9"} if by == "annotation" else {}
    town.pod("web", ips=["10.1.1.1"], **notes)
    if by == "endpoint":
        town.endpoint("web", "10.1.1.1", container="c-9")
    town.settle()
    assert town.why(address) == "pod shop/web lives in the sandbox it was given to"


def test_a_family_that_is_not_reported_goes_with_its_old_sandbox(town: Town) -> None:
    v4, v6 = town.run("web", container="c-1", want=BOTH)
    (new,) = town.run("web", container="c-2")
    town.pod("web", ips=[new], containerID="c-2")
    town.settle(2)
    assert town.held == {str(new)}
    assert v4 and town.why(v6) == "pod shop/web has another sandbox and does not report it"


def test_what_a_pod_reports_may_be_nonsense(town: Town) -> None:
    (address,) = town.run("web")
    town.pod("web", ips=["", "no address", "10.0.0.0/33"], podIPs=",,x,")
    town.settle()
    assert town.why(address) == "pod shop/web lives and reports no address yet"


# -- who is not ours to judge -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"node": "n1", "container-id": "c"}, "no pod is named"),
        ({}, "no pod is named"),
        ({"service": "shop/web", "type": "LoadBalancer"}, "of service shop/web"),
        ({"type": "somethingNew", "node": "n1"}, "no pod is named"),
    ],
)
def test_kept_with_the_reason(town: Town, attributes: dict[str, str], reason: str) -> None:
    (address,) = town.run("web")
    town.rewrite(address, attributes)
    town.remove_node("n1")
    town.settle()
    assert town.of(address) is KEEP
    assert town.why(address).startswith(reason)
    assert town.held == {str(address)}


def test_an_address_without_a_handle_is_kept(town: Town) -> None:
    town.start("web")
    (block,) = town.world.blocks()
    loose = tuple(replace(one, handle_id=None) for one in block.attributes)
    town.world.put(BlockKey(block.cidr), replace(block, attributes=loose))
    town.remove_pod("web")
    town.settle()
    assert len(town.held) == 1
    (address,) = town.held
    assert town.why(address) == "it has no handle by which it could be freed"


def test_a_vm_whose_address_does_not_persist_has_it_like_any_pod(town: Town) -> None:
    """Opted out, or persistence is Disabled: the handle is the container's."""
    (address,) = town.start("launcher")
    town.rewrite(address, vm_pod("launcher"))
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    town.settle()
    assert town.held == {str(address)}
    town.remove_pod("launcher")
    town.settle(2)
    assert town.held == set()


def test_a_windows_nodes_reservation_is_kept(town: Town) -> None:
    owner = {"note": "windows host rsvd", "node": "n1", "pod": "x", "namespace": "shop"}
    town.world.client().assign("windows-reserved-ipam-handle", owner, BOTH)
    town.settle()
    assert len(town.held) == 2


TUNNELS = [
    "ipipTunnelAddress",
    "vxlanTunnelAddress",
    "vxlanV6TunnelAddress",
    "wireguardTunnelAddress",
    "wireguardV6TunnelAddress",
]


@pytest.mark.parametrize("kind", TUNNELS)
def test_a_tunnels_address_lives_with_its_node_and_only_with_it(town: Town, kind: str) -> None:
    addresses = town.tunnel("n1", kind)
    town.settle()
    assert {town.of(one) for one in addresses} == {KEEP}
    town.remove_node("n1")
    town.sweep()
    assert {town.of(one) for one in addresses} == {WAIT}
    town.sweep()
    assert town.held == set()


def test_a_removed_nodes_tunnel_address_that_another_node_uses_is_kept(town: Town) -> None:
    v4, _ = town.tunnel("n1")
    town.node("n2", bgp={"ipv4Address": "192.0.2.2/24", "ipv4IPIPTunnelAddr": v4})
    town.remove_node("n1")
    town.settle()
    assert town.held == {v4}
    assert town.why(v4) == "ipipTunnelAddress of removed node n1, but n2 uses it"


def test_a_tunnel_of_no_node_is_kept(town: Town) -> None:
    town.world.client().assign("t", {"type": TUNNELS[0]}, BOTH)
    town.settle()
    assert len(town.held) == 2


def test_an_address_of_a_second_network_is_kept_while_its_pod_lives(town: Town) -> None:
    """Kubernetes knows only the addresses of a pod's first network."""
    owner = {**plain_pod("web"), PLUGIN: "macvlan"}
    (address,) = [one.address for one in town.world.client().assign("lan.c-web", owner, V4)]
    (other,) = town.run("db")
    for name in ("web", "db"):
        town.pod(name, ips=["192.0.2.1"])
    for later in (0.0, GRACE, GRACE):
        town.sweep(later=later)
    assert (town.of(address), str(address) in town.held) == (KEEP, True)
    assert str(other) not in town.held
    town.remove_pod("web")
    for later in (0.0, GRACE, GRACE):
        town.sweep(later=later)
    assert str(address) not in town.held
