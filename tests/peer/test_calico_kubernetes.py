"""Calico's programs and ours on one Kubernetes API server, in `crd.projectcalico.org/v1`.

The server is the lab's: it takes JSON only, so Node resources, which Calico's client writes as
protobuf, are not written here.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from felix_shim.claims import label_claims
from ipam.client import AddressRequest, IPAMClient
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import hostname_hash
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.model.ipam import IPAddress, IPAMConfig
from libtortie.model.keys import (
    Affinities,
    IPAMConfigKey,
    Kind,
    ResourceKey,
    Resources,
)
from libtortie.model.resources import IPPool, Resource, parse_resource
from tests.fakes.calico import Calicoctl, CalicoError, CalicoNode, Place, on_kubernetes
from tests.fakes.ipam_world import World, check_block, plain_pod, pool, vm_pod
from tests.fakes.kubernetes_store import kubernetes_api, put_object, stores_of
from tests.peer import story
from tests.peer.shared import BOTH, NODES, OURS, PATIENT, THEIRS, V4, distinct

KINDS = (
    Kind.IP_POOL,
    Kind.IP_RESERVATION,
    Kind.BGP_CONFIGURATION,
    Kind.BGP_PEER,
    Kind.BGP_FILTER,
    Kind.FELIX_CONFIGURATION,
    Kind.GLOBAL_NETWORK_SET,
    Kind.HOST_ENDPOINT,
    Kind.KUBE_CONTROLLERS_CONFIGURATION,
    Kind.NETWORK_SET,
)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        nodes = tuple({"metadata": {"name": name}} for name in NODES)
        running.api.bootstrap_kind("nodes", nodes)
        yield running


@pytest.fixture
def place(server: ApiServer, tmp_path: Path) -> Place:
    return on_kubernetes(server.url, tmp_path)


@pytest.fixture
def store(server: ApiServer) -> Iterator[KubernetesDatastore]:
    with stores_of(server) as (opened,):
        yield opened


@pytest.fixture
def calicoctl(place: Place) -> Calicoctl:
    return Calicoctl(place)


@pytest.fixture
def theirs(place: Place) -> Iterator[CalicoNode]:
    with CalicoNode(place, THEIRS) as node:
        yield node


@pytest.fixture
def world(store: KubernetesDatastore, calicoctl: Calicoctl) -> World:
    """Two pools that calicoctl has applied, and a cluster that is ready."""
    calicoctl.apply(
        json.dumps(
            [
                {"apiVersion": "projectcalico.org/v3", **one.to_wire()}
                for one in (
                    pool("a", "10.0.0.0/26", blockSize=29),
                    pool("b", "fd00::/112", blockSize=125),
                )
            ]
        ).replace('"assignmentMode": "Automatic"', '"disabled": false')
    )
    made = World(store)
    made.resource(Kind.CLUSTER_INFORMATION, "default", {"datastoreReady": True})
    return made


def ours(store: KubernetesDatastore, node: str = OURS) -> IPAMClient:
    return IPAMClient(store, node, now=lambda: datetime.now(UTC), retry=PATIENT)


def attrs(pod: str) -> dict[str, str]:
    return {"namespace": "shop", "node": THEIRS, "pod": pod}


def held(world: World) -> dict[IPAddress, str]:
    """Address → handle."""
    return {
        block.address(ordinal): block.attributes[index].handle_id or ""
        for block in world.blocks()
        for ordinal, index in enumerate(block.allocations)
        if index is not None
    }


def audit(world: World, calicoctl: Calicoctl, server: ApiServer) -> None:
    """Blocks, handles and affinities agree, as we and as Calico's own check read them."""
    assert calicoctl.allocations() == held(world)
    counted = Counter(held(world).values())
    recorded = {name: sum(one.blocks.values()) for name, one in world.handles().items()}
    assert recorded == dict(counted)
    claims = {(one.node, one.cidr) for one in world.affinities()}
    assert claims == {(block.node, block.cidr) for block in world.blocks()}
    for number, address in enumerate(held(world)):
        metadata = {"name": f"p{number}", "namespace": "shop"}
        status = {"phase": "Running", "podIP": str(address), "podIPs": [{"ip": str(address)}]}
        spec = {"nodeName": OURS, "containers": [{"name": "c", "image": "i"}]}
        put_object(server, "pods", {"metadata": metadata, "spec": spec, "status": status})
    assert calicoctl.problems() == []


def test_what_calicoctl_applied_is_read_and_rewritten_without_loss(
    store: KubernetesDatastore, calicoctl: Calicoctl
) -> None:
    with pytest.raises(CalicoError, match="applied the first"):  # its Nodes are protobuf
        calicoctl.apply((story.HERE / "resources.yaml").read_text())
    seen = set()
    for kind in KINDS:
        for record in store.list(Resources(kind)).records:
            assert isinstance(record.key, ResourceKey)
            before = calicoctl.get(kind.value, record.key.name, record.key.namespace)
            store.update(record.key, record.value, record.revision)
            after = calicoctl.get(kind.value, record.key.name, record.key.namespace)
            assert after["spec"] == before["spec"]
            assert _own(after) == _own(before)
            seen.add(kind)
    assert seen == set(KINDS)


@pytest.mark.parametrize("kind", [Kind.NETWORK_POLICY, Kind.GLOBAL_NETWORK_POLICY])
def test_policies_are_listed_without_the_prefix_that_this_release_stores(
    store: KubernetesDatastore, calicoctl: Calicoctl, kind: Kind
) -> None:
    """And are read by that name, too."""
    with pytest.raises(CalicoError, match="applied the first"):
        calicoctl.apply((story.HERE / "resources.yaml").read_text())
    (record,) = store.list(Resources(kind)).records
    assert isinstance(record.key, ResourceKey)
    assert isinstance(record.value, Resource)
    assert record.key.name == record.value.metadata.name
    assert store.get(record.key) == record
    theirs = calicoctl.get(kind.value, record.key.name, record.key.namespace)
    assert record.value.to_wire()["spec"] == theirs["spec"]
    wire = record.value.to_wire()
    changed = parse_resource(kind, {**wire, "spec": {**wire["spec"], "order": 4242}})
    store.update(record.key, changed, record.revision)
    seen = calicoctl.get(kind.value, record.key.name, record.key.namespace)
    assert seen["spec"] == {**theirs["spec"], "order": 4242}
    store.delete(record.key)
    assert store.list(Resources(kind)).records == ()
    with pytest.raises(CalicoError, match="does not exist"):
        calicoctl.get(kind.value, record.key.name, record.key.namespace)


def _own(resource: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "namespace", "uid", "creationTimestamp", "labels")
    return {name: resource["metadata"].get(name) for name in kept}


def test_a_pool_of_ours_is_calicoctls_to_read_and_to_change(
    store: KubernetesDatastore, calicoctl: Calicoctl
) -> None:
    key = ResourceKey(Kind.IP_POOL, "a")
    made = store.create(key, pool("a", "10.1.0.0/16", natOutgoing=True)).value
    assert isinstance(made, IPPool)
    found = calicoctl.get("ippool", "a")
    assert found["metadata"]["uid"] == made.metadata.uid
    assert found["spec"]["natOutgoing"] is True
    calicoctl.run("patch", "ippool", "a", "-p", '{"spec": {"disabled": true}}')
    changed = store.get(key).value
    assert isinstance(changed, IPPool)
    assert changed.spec.disabled
    assert changed.metadata.uid == made.metadata.uid
    calicoctl.run("delete", "ippool", "a")
    assert store.list(Resources(Kind.IP_POOL)).records == ()


def test_allocations_are_read_and_released_across(
    server: ApiServer,
    world: World,
    store: KubernetesDatastore,
    calicoctl: Calicoctl,
    theirs: CalicoNode,
) -> None:
    """Handle ids in both cases of letters, deletions in two steps, both ways."""
    mine = [one.address for one in ours(store).assign("Net.Ab1", plain_pod("web"), BOTH)]
    other = theirs.assign("Net.Cd2", attrs("db"), ipv4=2, ipv6=1)
    assert set(theirs.addresses("Net.Ab1")) == set(mine)
    assert {one.address for one in ours(store).by_handle("Net.Cd2")} == set(other)
    assert "pod: web" in calicoctl.run("ipam", "show", f"--ip={mine[0]}")
    audit(world, calicoctl, server)
    theirs.release("Net.Ab1")
    assert ours(store).by_handle("Net.Ab1") == ()
    assert set(ours(store).release("Net.Cd2")) == set(other)
    with pytest.raises(CalicoError, match="resource does not exist: IPAMHandle"):
        theirs.addresses("Net.Cd2")
    assert world.handles() == {}
    assert held(world) == {}


@pytest.mark.parametrize("same_node", [False, True], ids=["two nodes", "one node"])
def test_both_allocate_and_release_at_once(
    server: ApiServer,
    world: World,
    calicoctl: Calicoctl,
    theirs: CalicoNode,
    same_node: bool,
) -> None:
    given: dict[str, list[IPAddress]] = {}
    errors: list[BaseException] = []
    node = THEIRS if same_node else OURS

    def work(
        name: str,
        assign: Callable[[str], list[IPAddress]],
        release: Callable[[str], object],
    ) -> None:
        try:
            for number in range(12):
                handle = f"{name}-{number}"
                given[handle] = assign(handle)
                if number % 4 == 3:
                    release(f"{name}-{number - 2}")
                    del given[f"{name}-{number - 2}"]
        except BaseException as error:
            errors.append(error)

    with ExitStack() as stack:
        (store,) = stack.enter_context(stores_of(server))
        client = ours(store, node)
        threads = [
            threading.Thread(
                target=work,
                args=(
                    "o",
                    lambda h: [
                        one.address for one in client.assign(h, plain_pod(h, node=node), BOTH)
                    ],
                    client.release,
                ),
            ),
            threading.Thread(
                target=work,
                args=("t", lambda h: theirs.assign(h, attrs(h), ipv6=1), theirs.release),
            ),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(given) == 18
    assert distinct(given.values()) == set(held(world))
    audit(world, calicoctl, server)


def test_a_vm_and_its_migration_target_are_calicos_to_read(
    world: World, store: KubernetesDatastore, theirs: CalicoNode, calicoctl: Calicoctl
) -> None:
    handle = "k8s-pod-network.vmi.shop.db"
    (got,) = ours(store).claim_vm(handle, vm_pod("one", node=OURS), V4)
    target = vm_pod("two", node=THEIRS, vmim_uid="m")
    ours(store, THEIRS).claim_vm_target(handle, target)
    assert theirs.addresses(handle) == [got.address]
    assert "pod: one" in calicoctl.run("ipam", "show", f"--ip={got.address}")
    assert ours(store, THEIRS).promote(handle, target)
    assert "pod: two" in calicoctl.run("ipam", "show", f"--ip={got.address}")
    for block in world.blocks():
        check_block(block)


@pytest.mark.parametrize("strict", [True, False])
def test_ipam_configure_is_seen(
    store: KubernetesDatastore, calicoctl: Calicoctl, strict: bool
) -> None:
    calicoctl.run("ipam", "configure", f"--strictaffinity={str(strict).lower()}")
    record = store.get(IPAMConfigKey())
    assert record.value == IPAMConfig(strict_affinity=strict)
    store.update(record.key, IPAMConfig(strict_affinity=not strict), record.revision)
    shown = calicoctl.run("ipam", "show", "--show-configuration")
    assert f"| StrictAffinity     | {str(not strict).lower():<5} |" in shown


def test_affinities_of_this_release_get_their_labels_when_our_node_starts(
    server: ApiServer, world: World, store: KubernetesDatastore, theirs: CalicoNode
) -> None:
    """Until then a list of the node's own does not show them, and it would claim other blocks."""
    (first,) = theirs.assign("net.c1", attrs("web"))
    ((key, value),) = world.affinities().items()
    assert store.list(Affinities(THEIRS)).records == ()
    assert label_claims(store, THEIRS) == 1
    (found,) = store.list(Affinities(THEIRS)).records
    assert (found.key, found.value) == (key, value)
    name = f"{THEIRS}-{str(key.cidr).replace('.', '-').replace('/', '-')}"
    stored = server.api.store.get("blockaffinities.crd.projectcalico.org", ("", name))
    assert stored is not None
    labels = stored["metadata"]["labels"]
    assert labels["projectcalico.org/hostname-hash"] == hostname_hash(THEIRS)
    (mine,) = ours(store, THEIRS).assign("net.c2", plain_pod("x", node=THEIRS), V4)
    (second,) = theirs.assign("net.c3", attrs("db"))
    assert {first, mine.address, second} <= set(key.cidr)
    assert len(world.affinities()) == 1


def test_an_explicit_address_is_held_against_the_other(
    world: World, store: KubernetesDatastore, theirs: CalicoNode
) -> None:
    (mine,) = ours(store).assign("net.c1", plain_pod("web"), V4)
    with pytest.raises(CalicoError, match=f"resource already exists: {mine.address}"):
        theirs.claim("net.c2", str(mine.address), attrs("db"))
    theirs.release("net.c1")
    theirs.claim("net.c2", str(mine.address), attrs("db"))
    want = AddressRequest(addresses=(mine.address,))
    theirs.release("net.c2")
    assert ours(store).assign("net.c3", plain_pod("x"), want)[0].address == mine.address
    assert held(world) == {mine.address: "net.c3"}


def test_the_golden_file_is_what_it_writes(tmp_path: Path) -> None:
    with story.api_server() as server:
        told = story.tell_kubernetes(server, tmp_path)
    golden = story.read(story.CRDS.read_text())
    assert [path for path, _ in told] == [path for path, _ in golden]
    for (path, text), (_, expected) in zip(told, golden, strict=True):
        assert story.masked(text) == story.masked(expected), path
