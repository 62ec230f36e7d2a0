"""CRDs that Calico's own programs wrote, in an API server: read, understood, rewritten."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from felix_shim.claims import label_claims
from lab.apiserver.server import ApiServer
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.port import Op, Record, Update
from libtortie.errors import Conflict
from libtortie.model.ipam import AffinityState, Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import (
    Affinities,
    AffinityKey,
    BlockKey,
    Blocks,
    HandleKey,
    Handles,
    IPAMConfigKey,
    Kind,
    Resources,
    Scope,
)
from libtortie.model.resources import Resource
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.kube import FakeKube
from tests.fakes.kubernetes_store import kubernetes_api, put_object, stores_of
from tests.fakes.starting_node import Machine

GOLDEN = Path(__file__).parents[1] / "unit/libtortie/golden/calico_crds_written_by_v3_28.txt"
OBJECTS: dict[str, dict[str, Any]] = {
    path: json.loads(text)
    for path, text in (
        entry.split("\n", 1)
        for entry in GOLDEN.read_text().strip().split("\n\n")
        if not entry.startswith("#")
    )
}
RENAMED = {Kind.NETWORK_POLICY, Kind.GLOBAL_NETWORK_POLICY}
"""Stored as `default.<name>` by this release, and found by that name only in lists."""
KINDS = sorted({Kind(body["kind"]) for body in OBJECTS.values() if body["kind"] in set(Kind)})


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with kubernetes_api() as running:
        for path, body in OBJECTS.items():
            put_object(running, path.partition("/")[0], json.loads(json.dumps(body)))
        yield running


@pytest.fixture
def store(server: ApiServer) -> Iterator[KubernetesDatastore]:
    with stores_of(server) as (opened,):
        yield opened


def listed(store: KubernetesDatastore, *scopes: Scope) -> list[Record]:
    listings = [store.list(scope) for scope in scopes]
    assert [one.malformed for one in listings] == [()] * len(scopes)
    return [record for one in listings for record in one.records]


def object_at(server: ApiServer, path: str) -> dict[str, Any]:
    resource, _, place = path.partition("/")
    namespace, _, name = place.rpartition("/")
    found = server.api.store.get(resource, (namespace, name))
    assert found is not None
    return found


def test_every_object_is_seen(store: KubernetesDatastore) -> None:
    scopes = (Blocks(4), Blocks(6), Affinities(), Handles(), IPAMConfigKey())
    records = listed(store, *scopes, *(Resources(kind) for kind in KINDS))
    assert len(records) == len(OBJECTS)


def test_blocks_handles_and_affinities_mean_what_calico_did(store: KubernetesDatastore) -> None:
    block = store.get(BlockKey(ip_network("10.250.238.240/29"))).value
    assert isinstance(block, Block)
    assert (block.node, block.affinity_claim_time) == ("node-1", None)
    assert block.allocations == (0, 1, 1) + (None,) * 5
    assert block.unallocated == (4, 5, 6, 7, 3)
    first = block.sequence_numbers[0]
    assert block.sequence_numbers == {0: first, 1: first + 1, 2: first + 1, 3: first + 2}
    assert block.address(0) == ip_address("10.250.238.240")
    handle = store.get(HandleKey("k8s-pod-network.9f3C")).value
    assert isinstance(handle, Handle)
    assert sum(handle.blocks.values()) == 2
    claimed = {record.key for record in listed(store, Affinities())}
    blocks = listed(store, Blocks(4), Blocks(6))
    keys = [one.key for one in blocks if isinstance(one.key, BlockKey)]
    assert claimed == {AffinityKey("node-1", key.cidr) for key in keys}
    assert store.get(IPAMConfigKey()).value == IPAMConfig(strict_affinity=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resource_keeps_its_spec_and_metadata_over_a_rewrite(
    server: ApiServer, store: KubernetesDatastore, kind: Kind
) -> None:
    (path, *more) = [path for path, body in OBJECTS.items() if body["kind"] == kind]
    assert len(more) == (kind is Kind.IP_POOL)
    record = listed(store, Resources(kind))[0]
    assert isinstance(record.value, Resource)
    told = json.loads(OBJECTS[path]["metadata"]["annotations"]["projectcalico.org/metadata"])
    assert record.value.metadata.labels == told.get("labels", {})
    stamp = record.value.metadata.to_wire()["creationTimestamp"]
    assert stamp == told["creationTimestamp"]
    assert record.value.metadata.name == OBJECTS[path]["metadata"]["name"].removeprefix("default.")
    if kind in RENAMED:
        return
    store.update(record.key, record.value, record.revision)
    found = object_at(server, path)
    before = OBJECTS[path]["spec"]
    assert {name: found["spec"].get(name) for name in before} == before
    assert found["metadata"]["uid"] == OBJECTS[path]["metadata"]["uid"]
    after = json.loads(found["metadata"]["annotations"]["projectcalico.org/metadata"])
    assert {name: after.get(name) for name in told} == told


@pytest.mark.parametrize(
    "path", [path for path in OBJECTS if path.startswith(("ipamblocks", "ipamhandles"))]
)
def test_a_record_of_ipam_keeps_its_spec_over_a_rewrite(
    server: ApiServer, store: KubernetesDatastore, path: str
) -> None:
    before = OBJECTS[path]["spec"]
    key = (
        HandleKey(before["handleID"])
        if "handleID" in before
        else BlockKey(ip_network(before["cidr"]))
    )
    record = store.get(key)
    store.update(key, record.value, record.revision)
    assert object_at(server, path)["spec"] == before


def test_a_node_that_starts_finds_the_blocks_that_an_older_release_claimed_for_it(
    server: ApiServer, store: KubernetesDatastore, tmp_path: Path
) -> None:
    """That release wrote no labels; what an affinity says, and others' affinities, stay."""
    server.api.bootstrap_kind("nodes", ({"metadata": {"name": "node-1"}},))
    other = AffinityKey("node-2", ip_network("10.250.9.0/29"))
    store.create(other, BlockAffinity())
    assert listed(store, Affinities("node-1")) == []
    before = {record.key: record.value for record in listed(store, Affinities())}
    machine = Machine(tmp_path, store, options="datastore_type: kubernetes", kube=FakeKube())
    assert machine.boot().complete
    assert machine.complaints() == []
    found = {record.key: record.value for record in listed(store, Affinities("node-1"))}
    assert found == {key: value for key, value in before.items() if key != other}
    assert len(found) == 6
    revisions = {record.key: record.revision for record in listed(store, Affinities())}
    assert label_claims(store, "node-1") == 0
    assert revisions == {record.key: record.revision for record in listed(store, Affinities())}


def test_a_claim_that_changes_meanwhile_is_not_overwritten(store: KubernetesDatastore) -> None:
    given_up = BlockAffinity(AffinityState.PENDING_DELETION)
    changed: list[AffinityKey] = []

    def interlope(ops: Sequence[Op]) -> None:
        (op,) = ops
        assert isinstance(op, Update)
        assert isinstance(op.key, AffinityKey)
        store.update(op.key, given_up, op.revision)
        changed.append(op.key)

    with pytest.raises(Conflict):
        label_claims(FaultyStore(store, before_commit=interlope), "node-1")
    assert [store.get(key).value for key in changed] == [given_up]


def test_a_claim_that_is_gone_meanwhile_stays_so(store: KubernetesDatastore) -> None:
    def interlope(ops: Sequence[Op]) -> None:
        (op,) = ops
        assert isinstance(op, Update)
        store.delete(op.key, op.revision)

    with pytest.raises(Conflict):
        label_claims(FaultyStore(store, before_commit=interlope), "node-1")
    assert label_claims(store, "node-1") == len(listed(store, Affinities())) == 5
