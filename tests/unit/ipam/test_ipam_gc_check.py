"""`ipam check`'s rules: sound blocks, who uses what, and never a false alarm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address, ip_network

import pytest

from ipam.block import new_block
from ipam.check import Examination, examine, structure
from ipam.client import AddressRequest
from ipam.gc import Means, opinions
from libtortie.errors import Unavailable
from libtortie.kube.objects import Meta, VirtualMachine
from libtortie.model.ipam import Attribute, Block, BlockAffinity, Handle
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey
from libtortie.model.names import ANNOTATION_VMI_NAME
from tests.fakes.gc_world import BOTH, Town
from tests.fakes.ipam_world import START, vm_pod

HANDLE = "k8s-pod-network.vmi.shop.db"


@pytest.fixture
def town() -> Town:
    return Town()


def check(town: Town) -> Examination:
    before = town.held
    means = Means(town.world.store, town.reader, town.world.now)
    found = examine(opinions(means))
    assert town.held == before
    return found


def texts(town: Town) -> list[str]:
    return [problem.text for problem in check(town).problems]


def running(town: Town, pod: str, node: str = "n1") -> tuple[str, ...]:
    addresses = town.start(pod, node, want=BOTH)
    town.endpoint(pod, *addresses, node=node)
    return tuple(str(one) for one in addresses)


def stopped_vm(town: Town) -> str:
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    (got,) = town.world.client().claim_vm(HANDLE, vm_pod("p1"), AddressRequest())
    town.world.client().disown_vm(HANDLE, vm_pod("p1"), vm_deleting=False)
    return str(got.address)


def test_a_sound_cluster_has_no_problem(town: Town) -> None:
    running(town, "web")
    running(town, "app", "n2")
    stopped_vm(town)
    tunnel = {"node": "n1", "type": "vxlanV6TunnelAddress"}
    got = town.world.client("n1").assign("vxlan-v6-tunnel-addr-n1", tunnel, BOTH)
    v4, v6 = (str(one.address) for one in got)
    town.node("n1", ipv4VXLANTunnelAddr=v4, ipv6VXLANTunnelAddr=v6)
    town.world.config(cooldown_seconds=600)
    town.run("old")
    town.stop("old")
    found = check(town)
    assert found.problems == ()
    assert found.unjudged == {}
    assert [user.name for user in found.users[ip_address(v6)]] == ["Node tunnel (n1)"]


def test_a_pod_that_is_gone_leaks_and_a_stopped_vm_does_not(town: Town) -> None:
    v4, v6 = running(town, "web")
    kept = stopped_vm(town)
    town.remove_pod("web")
    found = check(town)
    assert found.leaked == {
        ip_address(v4): "pod shop/web is gone",
        ip_address(v6): "pod shop/web is gone",
    }
    assert ip_address(kept) not in found.leaked
    assert [one.text for one in found.problems] == [
        f"{v4} is leaked: pod shop/web is gone",
        f"{v6} is leaked: pod shop/web is gone",
    ]


def test_a_deleted_vms_address_is_leaked(town: Town) -> None:
    address = stopped_vm(town)
    town.kube.remove(VirtualMachine, "db", "shop")
    assert texts(town) == [
        f"{address} is leaked: VirtualMachine shop/db with UID vm-1 is gone",
    ]


def test_what_cannot_be_asked_is_neither_a_problem_nor_healthy(town: Town) -> None:
    town.start("silent")
    (v4, *_) = running(town, "web")
    town.kube.fail(Unavailable("away"), verb="list", plural="pods")
    found = check(town)
    assert found.problems == ()
    assert set(found.unjudged.values()) == {"unknown: pod shop/silent: away"}
    assert ip_address(v4) not in found.unjudged, "its endpoint speaks for it"


def test_in_use_and_not_allocated(town: Town) -> None:
    v4, v6 = running(town, "web")
    town.stop("web")
    town.node("n2", bgp={"ipv4Address": "192.0.2.2/24", "ipv4IPIPTunnelAddr": "10.65.0.250"})
    assert texts(town) == [
        f"{v4} is used by Workload (n1/shop/web) and not allocated",
        f"{v6} is used by Workload (n1/shop/web) and not allocated",
        "10.65.0.250 is used by Node tunnel (n2) and not allocated",
    ]


def test_an_address_outside_all_pools_may_be_used(town: Town) -> None:
    town.pod("odd", ips=["10.99.0.1"])
    town.endpoint("odd", "10.99.0.1")
    found = check(town)
    assert found.problems == ()
    assert found.foreign == (ip_address("10.99.0.1"),)


def test_used_by_another_than_it_is_allocated_to(town: Town) -> None:
    (v4, _) = running(town, "web")
    town.pod("thief", node="n2", ips=[v4])
    town.endpoint("thief", v4, node="n2")
    assert texts(town) == [
        f"{v4} is allocated to pod shop/web, and used by Workload (n2/shop/thief)"
    ]


def test_both_pods_of_a_migration_may_have_the_address(town: Town) -> None:
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    (got,) = town.world.client().claim_vm(HANDLE, vm_pod("p1"), AddressRequest())
    town.world.client("n2").claim_vm_target(HANDLE, vm_pod("p2", node="n2", vmim_uid="m"))
    for pod, node in (("p1", "n1"), ("p2", "n2")):
        town.pod(pod, node=node, ips=[got.address])
        town.endpoint(pod, got.address, node=node)
    assert texts(town) == []
    town.world.client("n2").promote(HANDLE, vm_pod("p2", node="n2"))
    assert texts(town) == [
        f"{got.address} is used by Workload (n1/shop/p1), Workload (n2/shop/p2) at once, "
        "and no migration runs"
    ]
    town.pod("p1", phase="Succeeded")
    assert texts(town) == []


def test_a_vms_pod_that_was_force_deleted_and_may_still_run_is_shown(town: Town) -> None:
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    (got,) = town.world.client().claim_vm(HANDLE, vm_pod("p1"), AddressRequest())
    town.endpoint("p1", got.address)
    town.pod("p2", node="n2", ips=[got.address])
    town.world.client("n2").claim_vm(HANDLE, vm_pod("p2", node="n2"), AddressRequest())
    town.endpoint("p2", got.address, node="n2")
    assert texts(town) == [
        f"{got.address} is allocated to pod shop/p2, and used by Workload (n1/shop/p1), "
        "which is gone"
    ]


@pytest.mark.parametrize(
    ("pod", "annotations", "whose"),
    [
        ("virt-launcher-db-x1", {}, True),
        ("l1", {ANNOTATION_VMI_NAME: "db"}, True),
        ("virt-launcher-web-x1", {ANNOTATION_VMI_NAME: "web"}, False),
        ("thief", {}, False),
    ],
)
def test_a_stopped_vms_address_is_its_launchers_and_no_other_pods(
    town: Town, pod: str, annotations: dict[str, str], whose: bool
) -> None:
    address = stopped_vm(town)
    town.pod(pod, ips=[address])
    town.endpoint(pod, address, notes=annotations)
    said = f"{address} is allocated to db on n1, and used by Workload (n1/shop/{pod})"
    assert texts(town) == ([] if whose else [said])


def test_a_container_of_another_orchestrator_may_have_an_endpoint(town: Town) -> None:
    (address,) = town.run("web")
    town.rewrite(address, {"node": "n1", "container-id": "c-web"})
    town.pod("web", ips=[address])
    town.endpoint("web", address)
    assert texts(town) == []


def test_a_pod_that_uses_a_tunnels_address(town: Town) -> None:
    address, _ = town.tunnel("n1")
    town.pod("web", ips=[address])
    town.endpoint("web", address)
    assert texts(town) == [
        f"{address} is allocated to ipipTunnelAddress on n1, and used by Workload (n1/shop/web)"
    ]


def test_a_tunnels_address_that_another_node_uses(town: Town) -> None:
    owner = {"node": "n1", "type": "ipipTunnelAddress"}
    (got,) = town.world.client().assign("ipip-tunnel-addr-n1", owner, AddressRequest())
    spec = {"ipv4Address": "192.0.2.2/24", "ipv4IPIPTunnelAddr": str(got.address)}
    town.node("n2", bgp=spec)
    assert texts(town) == [
        f"{got.address} is allocated to ipipTunnelAddress on n1, and used by Node tunnel (n2)"
    ]


def test_handles_and_claims_that_disagree_are_named(town: Town) -> None:
    running(town, "web")
    town.world.store.delete(HandleKey("k8s-pod-network.c-web"))
    town.world.store.create(HandleKey("orphan"), Handle(blocks={}))
    cidr = ip_network("10.65.0.64/30")
    town.world.put(AffinityKey("n1", cidr), BlockAffinity())
    town.world.put(AffinityKey("ghost", cidr), BlockAffinity())
    found = texts(town)
    assert [text.split(":")[0] for text in found] == [
        "handle k8s-pod-network.c-web",
        "handle orphan",
        f"block {cidr} of node ghost",
        f"block {cidr} of node n1",
    ]


def test_an_empty_block_that_will_be_released_is_no_problem(town: Town) -> None:
    for number in range(5):
        town.start(f"p{number}")
    for number in (3, 4):
        town.stop(f"p{number}")
        town.remove_pod(f"p{number}")
    assert len(town.world.blocks()) == 2
    assert texts(town) == []


# -- inside a block -----------------------------------------------------------------------------


SOUND = new_block(ip_network("10.65.0.0/30"), node="n1", now=START)
HELD = replace(
    SOUND,
    allocations=(0, None, None, None),
    unallocated=(1, 2, 3),
    attributes=(Attribute(handle_id="h"),),
)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b, []),
        (lambda b: replace(b, unallocated=(1, 2, 2, 3)), ["10.65.0.2 is free more than once"]),
        (lambda b: replace(b, unallocated=(0, 1, 2, 3)), ["10.65.0.0 is free and allocated"]),
        (lambda b: replace(b, unallocated=(1, 2)), ["10.65.0.3 is neither free nor allocated"]),
        (
            lambda b: replace(b, attributes=(*b.attributes, Attribute(handle_id="x"))),
            ["attributes[1] is no address's"],
        ),
        (
            lambda b: replace(b, sequence_numbers={0: b.sequence_number}),
            ["10.65.0.0 has a sequence number that is yet to come"],
        ),
        (
            lambda b: replace(b, attributes=(Attribute(released_at=START + timedelta(seconds=1)),)),
            [f"attributes[0] was released in the future, {START + timedelta(seconds=1)}"],
        ),
        (lambda b: replace(b, attributes=(Attribute(released_at=START),)), []),
    ],
)
def test_structure(damage: Callable[[Block], Block], said: list[str]) -> None:
    assert list(structure(damage(HELD), START)) == said


def test_unsound_and_overlapping_blocks_are_named(town: Town) -> None:
    town.world.put(BlockKey(SOUND.cidr), replace(SOUND, unallocated=(0, 1, 2)))
    town.world.put(AffinityKey("n1", SOUND.cidr), BlockAffinity())
    for text in ("10.65.0.0/28", "10.65.0.8/30"):
        made = new_block(ip_network(text), node="n1", now=START)
        town.world.put(BlockKey(made.cidr), made)
        town.world.put(AffinityKey("n1", made.cidr), BlockAffinity())
    assert sorted(texts(town)) == [
        "block 10.65.0.0/30: 10.65.0.3 is neither free nor allocated",
        "block 10.65.0.0/30: overlaps block 10.65.0.0/28",
        "block 10.65.0.8/30: overlaps block 10.65.0.0/28",
    ]
