"""What Calico's own programs wrote is read, means the same, and is written back without loss."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from libtortie.datastore.codec import NAME_ANNOTATION, decode, encode
from libtortie.model.ipam import AffinityState, Attribute, Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import (
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    IPNetwork,
    ResourceKey,
    parse_path,
    path_of,
)
from libtortie.model.resources import IPPool, Resource

GOLDEN = Path(__file__).parent / "golden" / "calico_written_by_v3_28.txt"
PAIRS = [
    (path, text)
    for path, text in (
        entry.split("\n", 1)
        for entry in GOLDEN.read_text().strip().split("\n\n")
        if not entry.startswith("#")
    )
]
ADDED = {
    ("spec", "assignmentMode"): "Automatic",
    ("kubeVirtVMAddressPersistence",): "Enabled",
}
"""Defaults of fields that this release does not know; a policy's name is another such addition."""


NO_OWNER = ',"secondary":null'
"""This release's way to say what younger ones say by silence: an allocation without attributes."""


def without_additions(before: Any, after: Any, path: tuple[str, ...] = ()) -> Any:
    """`after` less what a rewrite by a younger release adds to `before`."""
    if isinstance(before, dict) and isinstance(after, dict):
        return {
            name: without_additions(before.get(name), value, (*path, name))
            for name, value in after.items()
            if name in before or not (ADDED.get((*path, name)) == value or _names_policy(value))
        }
    return after


def _names_policy(value: Any) -> bool:
    if isinstance(value, dict):  # `annotations`, where there were none
        return set(value) == {NAME_ANNOTATION}
    return isinstance(value, str) and value.startswith('{"name":"default.')


def golden(path: str) -> tuple[str, str]:
    return next(pair for pair in PAIRS if pair[0].endswith(path))


def block(cidr: str) -> Block:
    path, text = golden(f"/block/{cidr.replace('/', '-')}")
    value = decode(parse_path(path), text.encode())
    assert isinstance(value, Block)
    return value


def test_golden_file_has_every_key_of_ipam_and_most_kinds() -> None:
    keys = [parse_path(path) for path, _ in PAIRS]
    assert {type(key) for key in keys} == {
        AffinityKey,
        BlockKey,
        HandleKey,
        IPAMConfigKey,
        ResourceKey,
    }
    assert len({key.kind for key in keys if isinstance(key, ResourceKey)}) == 16


@pytest.mark.parametrize(("path", "text"), PAIRS, ids=[path for path, _ in PAIRS])
def test_nothing_is_lost_by_a_rewrite(path: str, text: str) -> None:
    key = parse_path(path)
    assert path_of(key) == path
    value = decode(key, text.encode())
    written = encode(key, value)
    assert decode(key, written) == value
    before = json.loads(text.replace(NO_OWNER, ""))
    assert without_additions(before, json.loads(written)) == before


@pytest.mark.parametrize(
    ("path", "text"), [p for p in PAIRS if "/ipam/" in p[0] and "/config" not in p[0]]
)
def test_records_of_ipam_keep_their_bytes(path: str, text: str) -> None:
    key = parse_path(path)
    assert encode(key, decode(key, text.encode())).decode() == text.replace(NO_OWNER, "")


def test_a_block_means_what_calico_did() -> None:
    found = block("10.250.238.240/29")
    assert (found.node, found.affinity_claim_time) == ("node-1", None)
    assert found.allocations == (0, 1, 1) + (None,) * 5
    assert found.unallocated == (4, 5, 6, 7, 3)
    web = found.attribute(0)
    assert web is not None
    assert web.handle_id == "k8s-pod-network.9f3C"
    assert web.active["timestamp"] == "2026-08-22 13:33:20.123456789 +0000 UTC"
    first = found.sequence_numbers[0]
    assert found.sequence_numbers == {0: first, 1: first + 1, 2: first + 1, 3: first + 2}
    assert found.sequence_number == first + 4  # one for each of three assignments and a release


def test_full_and_emptied_blocks() -> None:
    full = block("10.250.4.0/29")
    assert full.unallocated == ()
    assert set(full.allocations) == {0}
    emptied = block("10.250.5.0/29")
    assert emptied.attributes == ()
    assert emptied.allocations == (None,) * 8
    assert emptied.unallocated == (0, 2, 3, 4, 5, 6, 7, 1)


def test_an_allocation_without_attributes() -> None:
    assert NO_OWNER in golden("/block/10.250.6.0-29")[1]
    assert block("10.250.6.0/29").attribute(1) == Attribute(handle_id="bare")


def test_handles_affinities_and_settings() -> None:
    def value(path: str) -> object:
        found, text = golden(path)
        return decode(parse_path(found), text.encode())

    counted: dict[IPNetwork, int] = {
        ip_network("10.250.238.240/29"): 1,
        ip_network("fd00:10:244:0:94fa:7820:5b81:7500/122"): 1,
    }
    assert value("/handle/k8s-pod-network.9f3C") == Handle(counted)
    assert value("/host/node-1/ipv4/block/10.250.4.0-29") == BlockAffinity(AffinityState.CONFIRMED)
    assert value("/ipam/v2/config") == IPAMConfig(strict_affinity=True)
    pool = value("/ippools/pool-b")
    assert isinstance(pool, IPPool)
    assert pool.spec.block_size == 122
    policy = value("/networkpolicies/shop/default.allow-web")
    assert isinstance(policy, Resource)
    assert policy.metadata.name == "default.allow-web"
