"""IPAM's objects in Kubernetes, byte for byte as Calico writes them, both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any, NamedTuple

import pytest

from libtortie.datastore.crd_ipam_shapes import AffinityShape, BlockShape, HandleShape
from libtortie.datastore.crd_names import Group
from libtortie.datastore.crd_shapes import ConfigShape, CrdShape
from libtortie.datastore.port import Value
from libtortie.errors import InvalidInput, Malformed
from libtortie.model.ipam import (
    AffinityState,
    Attribute,
    Block,
    BlockAffinity,
    Handle,
    IPAMConfig,
    Persistence,
)
from libtortie.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, Key

NOW = "2026-08-22T13:30:00Z"
CIDR = ip_network("10.250.0.4/30")
SEED = 1787405400000000000
HASH = "A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA"
LABELS = (
    '{"projectcalico.org/affinity-type":"host",'
    f'"projectcalico.org/hostname-hash":"{HASH}","projectcalico.org/ip-version":"4"}}'
)
PACKED = json.dumps(f'{{"labels":{LABELS}}}')

BLOCK = Block(
    CIDR,
    "host:node-1",
    (0, None, None, None),
    (1, 2, 3),
    (Attribute("ipip-tunnel-addr-node-1", {"node": "node-1", "type": "ipipTunnelAddress"}),),
    affinity_claim_time=datetime(2026, 8, 22, 13, 30, tzinfo=UTC),
    sequence_number=SEED + 1,
    sequence_numbers={0: SEED},
)
BLOCK_SPEC = (
    '{"cidr":"10.250.0.4/30","affinity":"host:node-1","affinityClaimTime":"2026-08-22T13:30:00Z",'
    '"allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{"handle_id":'
    '"ipip-tunnel-addr-node-1","secondary":{"node":"node-1","type":"ipipTunnelAddress"}}],'
    '"sequenceNumber":1787405400000000001,"sequenceNumberForAllocation":{"0":1787405400000000000},'
    '"deleted":false,"strictAffinity":false}'
)
HANDLE_SPEC = '{"handleID":"ipip-tunnel-addr-node-1","block":{"10.250.0.4/30":1},"deleted":false}'
AFFINITY_SPEC = (
    '{"state":"confirmed","node":"node-1","type":"host","cidr":"10.250.0.4/30","deleted":%s}'
)
CONFIG_SPEC = (
    '{"strictAffinity":false,"autoAllocateBlocks":true,"kubeVirtVMAddressPersistence":"Enabled"}'
)
EMPTY = '"annotations":{"projectcalico.org/metadata":"{}"}'


class Golden(NamedTuple):
    """A value, and by group the text of its object's metadata (but for the name) and spec."""

    shape: type[CrdShape]
    key: Key
    value: Value
    name: str
    meta: dict[Group, str]
    spec: dict[Group, str]


GOLDEN = [
    Golden(
        BlockShape,
        BlockKey(CIDR),
        BLOCK,
        "10-250-0-4-30",
        {Group.V1: EMPTY, Group.V3: ""},
        {Group.V1: BLOCK_SPEC, Group.V3: BLOCK_SPEC},
    ),
    Golden(
        AffinityShape,
        AffinityKey("node-1", CIDR),
        BlockAffinity(),
        "node-1-10-250-0-4-30",
        {
            Group.V1: f'"labels":{LABELS},"annotations":{{"projectcalico.org/metadata":{PACKED}}}',
            Group.V3: f'"labels":{LABELS}',
        },
        {Group.V1: AFFINITY_SPEC % '"false"', Group.V3: AFFINITY_SPEC % "false"},
    ),
    Golden(
        HandleShape,
        HandleKey("ipip-tunnel-addr-node-1"),
        Handle({CIDR: 1}),
        "ipip-tunnel-addr-node-1",
        {Group.V1: EMPTY, Group.V3: ""},
        {Group.V1: HANDLE_SPEC, Group.V3: HANDLE_SPEC},
    ),
    Golden(
        ConfigShape,
        IPAMConfigKey(),
        IPAMConfig(),
        "default",
        {Group.V1: EMPTY, Group.V3: ""},
        {Group.V1: CONFIG_SPEC, Group.V3: CONFIG_SPEC},
    ),
]


def shaped(golden: Golden, group: Group) -> CrdShape:
    shape: Any = golden.shape
    made: CrdShape = shape(group)
    return made


@pytest.mark.parametrize("group", list(Group))
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.shape.__name__)
def test_objects_are_calicos(group: Group, golden: Golden) -> None:
    shape = shaped(golden, group)
    parts = ",".join(part for part in (golden.meta[group], f'"name":"{golden.name}"') if part)
    text = f'{{"metadata":{{{parts}}},"spec":{golden.spec[group]}}}'
    body = shape.body(golden.key, golden.value, None, NOW)
    assert json.dumps(body, separators=(",", ":")) == text
    assert shape.place(golden.key).name == golden.name
    read = json.loads(text)
    assert shape.key(read) == golden.key
    assert shape.value(golden.key, read) == golden.value


def test_what_the_two_stores_write_differently() -> None:
    shape, key = BlockShape(Group.V1), BlockKey(CIDR)
    free = Block(CIDR, None, (None,) * 4, (0, 1, 2, 3))
    spec = shape.body(key, free, None, NOW)["spec"]
    assert spec["attributes"] == []
    assert not {"affinity", "affinityClaimTime"} & spec.keys()
    assert shape.value(key, {"metadata": {"name": "10-250-0-4-30"}, "spec": spec}) == free


def test_fields_we_do_not_use_come_back() -> None:
    for golden in GOLDEN:
        shape = shaped(golden, Group.V3)
        spec = json.loads(golden.spec[Group.V3]) | {"newer": [1]}
        again = shape.value(golden.key, {"metadata": {"name": golden.name}, "spec": spec})
        assert again != golden.value
        assert shape.body(golden.key, again, None, NOW)["spec"]["newer"] == [1]


@pytest.mark.parametrize("deleted", ["true", True])
def test_a_mark_of_either_group_is_read(deleted: object) -> None:
    for group in Group:
        spec = json.loads(AFFINITY_SPEC % '"false"') | {"deleted": deleted, "state": ""}
        body = {"metadata": {"name": "node-1-10-250-0-4-30"}, "spec": spec}
        found = AffinityShape(group).value(AffinityKey("node-1", CIDR), body)
        assert found == BlockAffinity(AffinityState.CONFIRMED, deleted=True)


def test_a_handle_is_who_its_spec_says() -> None:
    shape, key = HandleShape(Group.V1), HandleKey("lb-AbC")
    body = shape.body(key, Handle({CIDR: 1}), None, NOW)
    assert (body["metadata"]["name"], body["spec"]["handleID"]) == ("lb-abc", "lb-AbC")
    assert shape.key(body) == key
    body["metadata"]["name"] = "lb-abd"
    with pytest.raises(Malformed, match=r"ipamhandles\.crd\.projectcalico\.org/lb-abd: its spec"):
        shape.key(body)


def test_what_kubernetes_cannot_store_is_refused() -> None:
    shape = HandleShape(Group.V1)
    for handle_id in ("my_net.c1", "x" * 254, ".", "a/b"):
        with pytest.raises(InvalidInput, match="Kubernetes cannot store"):
            shape.body(HandleKey(handle_id), Handle({CIDR: 1}), None, NOW)
    assert shape.place(HandleKey("x" * 253)).name == "x" * 253


def test_a_value_that_is_not_the_keys_is_refused() -> None:
    for golden in GOLDEN:
        for other in GOLDEN:
            if other is not golden:
                with pytest.raises(InvalidInput):
                    shaped(golden, Group.V1).body(golden.key, other.value, None, NOW)
    moved = replace(BLOCK, cidr=ip_network("10.250.0.8/30"))
    with pytest.raises(InvalidInput):
        BlockShape(Group.V1).body(BlockKey(CIDR), moved, None, NOW)
    with pytest.raises(InvalidInput, match=r"allocations\[1\]"):
        dangling = replace(BLOCK, allocations=(0, 7, None, None))
        BlockShape(Group.V1).body(BlockKey(CIDR), dangling, None, NOW)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("affinityClaimTime", "yesterday", "affinityClaimTime"),
        ("cidr", "10.250.0.8/30", "cidr"),
        ("allocations", [9, None, None, None], r"allocations\[0\]"),
        ("deleted", "true", "deleted"),
        ("unallocated", {}, "unallocated"),
    ],
)
def test_a_malformed_block_names_object_and_field(field: str, value: object, named: str) -> None:
    body = {"metadata": {"name": "10-250-0-4-30"}, "spec": json.loads(BLOCK_SPEC) | {field: value}}
    pattern = rf"^ipamblocks\.projectcalico\.org/10-250-0-4-30: {named}"
    with pytest.raises(Malformed, match=pattern):
        BlockShape(Group.V3).value(BlockKey(CIDR), body)


def test_a_config_without_a_flag_says_false_and_an_unknown_word_is_malformed() -> None:
    shape = ConfigShape(Group.V1)

    def read(**spec: object) -> Value:
        return shape.value(IPAMConfigKey(), {"metadata": {"name": "default"}, "spec": spec})

    assert read() == IPAMConfig(auto_allocate_blocks=False)
    off = IPAMConfig(kubevirt_persistence=Persistence.DISABLED, cooldown_seconds=5)
    spec = {"kubeVirtVMAddressPersistence": "Disabled", "ipCooldownSeconds": 5}
    assert read(autoAllocateBlocks=True, **spec) == off
    for field, value in {
        "kubeVirtVMAddressPersistence": "disabled",
        "strictAffinity": "true",
        "maxBlocksPerHost": "4",
    }.items():
        with pytest.raises(Malformed, match=f"ipamconfigs.*/default: {field}"):
            read(**{field: value})
    assert shape.key({"metadata": {"name": "other"}, "spec": {}}) is None
