"""Addresses of ordinary pods, tunnels and services: which are kept, which are freed and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipam.gc import Outcome, explain
from ipam.gc_inventory import NODES
from libtortie.errors import Malformed, Unauthorized, Unavailable
from libtortie.kube.objects import KubeNode, Meta, Pod, VirtualMachine
from libtortie.model.keys import BlockKey
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.gc_world import BOTH, GRACE, Town
from tests.fakes.ipam_world import vm_pod

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


def tunnel(town: Town, node: str, kind: str = TUNNELS[0], want: Any = BOTH) -> tuple[str, ...]:
    handle = f"tunnel-addr-{node}"
    got = town.world.client(node).assign(handle, {"node": node, "type": kind}, want)
    return tuple(str(one.address) for one in got)


@pytest.mark.parametrize("kind", TUNNELS)
def test_a_tunnels_address_lives_with_its_node_and_only_with_it(town: Town, kind: str) -> None:
    addresses = tunnel(town, "n1", kind)
    town.settle()
    assert {town.of(one) for one in addresses} == {KEEP}
    town.remove_node("n1")
    town.sweep()
    assert {town.of(one) for one in addresses} == {WAIT}
    town.sweep()
    assert town.held == set()


def test_a_removed_nodes_tunnel_address_that_another_node_uses_is_kept(town: Town) -> None:
    v4, _ = tunnel(town, "n1")
    town.node("n2", bgp={"ipv4Address": "192.0.2.2/24", "ipv4IPIPTunnelAddr": v4})
    town.remove_node("n1")
    town.settle()
    assert town.held == {v4}
    assert town.why(v4) == "ipipTunnelAddress of removed node n1, but n2 uses it"


def test_a_tunnel_of_no_node_is_kept(town: Town) -> None:
    town.world.client().assign("t", {"type": TUNNELS[0]}, BOTH)
    town.settle()
    assert len(town.held) == 2


# -- what is not known --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Unauthorized("list pods: 403"), Unavailable("nobody there"), Malformed("half a page")]
)
def test_an_api_that_fails_frees_nothing(town: Town, error: Exception) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    for _ in range(3):
        town.kube.fail(error, verb="list", plural="pods")
        town.sweep()
        assert town.of(address) is KEEP
        assert town.why(address) == f"unknown: pod shop/web: {error}"
    town.sweep()
    assert town.of(address) is WAIT, "failures confirmed nothing"


def test_a_failure_between_two_observations_neither_counts_nor_resets(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    town.sweep()
    town.kube.fail(Unavailable("away"), verb="list", plural="pods")
    town.sweep()
    assert town.of(address) is KEEP
    town.sweep()
    assert town.of(address) is FREE


def test_an_empty_list_of_pods_is_not_believed(town: Town) -> None:
    (address,) = town.start("web")
    for name in ("web", "kube-proxy"):
        town.remove_pod(name)
    town.settle()
    assert town.held == {str(address)}
    assert town.why(address).startswith("unknown: pod shop/web: the API lists no pods at all")
    town.settle(2, trust_empty=True)
    assert town.held == set()


def test_an_empty_list_of_nodes_is_not_believed(town: Town) -> None:
    addresses = tunnel(town, "n1")
    for name in ("n0", "n1", "n2"):
        town.remove_node(name)
    town.settle()
    assert town.held == set(addresses)
    assert "the API lists no nodes at all" in town.why(addresses[0])
    town.settle(2, trust_empty=True)
    assert town.held == set()


@pytest.mark.parametrize("version", ["", "0"])
def test_a_server_that_has_read_nothing_frees_nothing(town: Town, version: str) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    real = town.kube.list

    def stale(*args: Any, **options: Any) -> Any:
        return real(*args, **options)[0], version

    town.kube.list = stale  # type: ignore[method-assign]  # such a server
    town.settle()
    assert town.held == {str(address)}


def test_without_an_api_pods_are_kept_and_nodes_are_the_datastores(town: Town) -> None:
    (address,) = town.start("web")
    gone = tunnel(town, "n2")
    town.reader = None
    town.remove_node("n2")
    town.settle()
    assert town.held == {str(address)}
    assert town.why(address) == "unknown: pod shop/web: no Kubernetes API is configured"
    assert gone


def test_without_an_api_and_without_nodes_no_node_is_taken_for_removed(town: Town) -> None:
    addresses = tunnel(town, "n1")
    town.reader = None
    for name in ("n0", "n1", "n2"):
        town.remove_node(name)
    town.settle()
    assert town.held == set(addresses)
    assert town.why(addresses[0]).endswith("no Node is stored, and no Kubernetes API is configured")
    town.settle(2, trust_empty=True)
    assert town.held == set()


def test_a_list_that_lacks_a_living_pod_is_found_out(town: Town) -> None:
    """The last question before an address is freed is asked by name."""
    (address,) = town.start("web")
    real = town.kube.list

    def partial(model: Any, *args: Any, **options: Any) -> Any:
        objects, version = real(model, *args, **options)
        return tuple(one for one in objects if one.metadata.name != "web"), version

    town.kube.list = partial  # type: ignore[method-assign]  # such a server
    town.settle(2)
    assert town.held == {str(address)}
    assert (town.of(address), town.why(address)) == (KEEP, "pod shop/web lives and has it")
    town.sweep()
    assert town.of(address) is WAIT, "it was found alive: the clock starts anew"
    town.kube.fail(Unavailable("away"), verb="get", plural="pods")
    town.sweep()
    assert town.why(address) == "unknown: away"


def test_a_list_that_lacks_a_living_node_is_found_out(town: Town) -> None:
    addresses = tunnel(town, "n3")
    town.node("n3", stored=False)
    real = town.kube.list

    def partial(model: Any, *args: Any, **options: Any) -> Any:
        objects, version = real(model, *args, **options)
        return tuple(one for one in objects if one.metadata.name != "n3"), version

    town.kube.list = partial  # type: ignore[method-assign]  # such a server
    town.settle()
    assert town.held == set(addresses)
    town.kube.list = real  # type: ignore[method-assign]  # healed
    town.kube.remove(KubeNode, "n3")
    town.settle(2)
    assert town.held == set()


def test_a_pod_born_while_the_lists_are_read_is_not_dead(town: Town) -> None:
    """Allocations are read before pods: hooked in between, its ADD and the pod are both missed or
    the pod is seen, never the allocation alone."""
    real = town.kube.list
    born: list[str] = []

    def birth(model: Any, *args: Any, **options: Any) -> Any:
        found = real(model, *args, **options)
        if model is Pod:
            born.append(f"late-{len(born)}")
            town.start(born[-1])
        return found

    town.kube.list = birth  # type: ignore[method-assign]  # the world moves on
    for _ in range(3):
        town.sweep()
        assert town.last is not None
        assert {one.outcome for one in town.last.verdicts} <= {KEEP}
    assert len(town.held) == len(born) == 3


def test_a_node_that_cannot_be_read_counts_as_any(town: Town) -> None:
    addresses = tunnel(town, "n1")
    town.remove_node("n1")
    store = town.world.store
    real = store.list

    def half(scope: Any) -> Any:
        found = real(scope)
        return replace(found, malformed=("a node",)) if scope == NODES else found

    store.list = half  # type: ignore[method-assign]  # one Node is malformed
    town.settle()
    assert town.held == set(addresses)
    assert town.last is not None
    assert "a node" in town.last.opinions.inventory.unreadable


def test_a_dry_run_explains_and_changes_nothing(town: Town) -> None:
    (address,) = town.start("web")
    town.remove_pod("web")
    store = FaultyStore(town.world.store)
    town.settle(3, store=store, dry_run=True)
    assert town.of(address) is FREE
    assert town.held == {str(address)}
    assert store.commits == []
    assert town.last is not None
    gone = f"{address} of handle k8s-pod-network.c-web: pod shop/web is gone"
    assert f"free: {gone}" in explain(town.last.verdicts)
