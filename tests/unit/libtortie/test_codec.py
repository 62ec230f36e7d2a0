"""Stored bytes are Calico's, both ways; bytes that are not are refused by path and field."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from libtortie.datastore.codec import decode, encode
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
from libtortie.model.keys import (
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
    parse_path,
    path_of,
)
from libtortie.model.resources import (
    BGPConfiguration,
    BGPPeer,
    ClusterInformation,
    GenericResource,
    IPPool,
    Node,
    Resource,
    WorkloadEndpoint,
)

GOLDEN = Path(__file__).parent / "golden" / "calico_etcd.txt"
PAIRS = [entry.split("\n", 1) for entry in GOLDEN.read_text().strip().split("\n\n")]

CIDR = ip_network("10.250.0.4/30")
BLOCK = BlockKey(CIDR)
AFFINITY = AffinityKey("node-1", CIDR)
HANDLE = HandleKey("k8s-pod-network.9f3c")
USED = Block(CIDR, None, (0, 0, 0, 1), (), (Attribute("h"), Attribute()))


def golden(path_part: str) -> bytes:
    return next(text for path, text in PAIRS if path_part in path).encode()


def altered(path_part: str, **fields: Any) -> bytes:
    return json.dumps({**json.loads(golden(path_part)), **fields}).encode()


def test_golden_file_has_every_kind() -> None:
    kinds = {key.kind for path, _ in PAIRS if isinstance(key := parse_path(path), ResourceKey)}
    assert kinds == set(Kind)
    assert len(PAIRS) == len(Kind) + 4  # block, affinity, handle, config


@pytest.mark.parametrize(("path", "text"), PAIRS, ids=[path for path, _ in PAIRS])
def test_golden_bytes_survive_both_ways(path: str, text: str) -> None:
    key = parse_path(path)
    assert path_of(key) == path
    value = decode(key, text.encode())
    assert encode(key, value).decode() == text
    assert decode(key, encode(key, value)) == value


@pytest.mark.parametrize(("path", "text"), PAIRS, ids=[path for path, _ in PAIRS])
def test_any_key_order_and_nulls_of_older_writers_are_read(path: str, text: str) -> None:
    key = parse_path(path)
    wire = json.loads(text)
    backwards = dict(reversed(wire.items()))
    assert decode(key, json.dumps(backwards).encode()) == decode(key, text.encode())
    if isinstance(key, ResourceKey):
        wire["metadata"]["creationTimestamp"] = None
        value = decode(key, json.dumps(wire).encode())
        assert isinstance(value, Resource)
        assert value.metadata.creation_timestamp is None
        assert b"creationTimestamp" not in encode(key, value)


def test_block_means_what_it_says() -> None:
    block = decode(BLOCK, golden("assignment"))
    assert isinstance(block, Block)
    assert block.node == "node-1"
    assert block.allocations == (0, 1, 2, None)
    assert block.unallocated == (3,)
    assert block.affinity_claim_time == datetime(2026, 8, 22, 13, 30, tzinfo=UTC)
    assert block.sequence_number == 1787405400000000004
    assert block.sequence_numbers[1] == 1787405400000000001
    assert block.attributes[1].active["timestamp"] == "2026-08-22 13:33:20.123456789 +0000 UTC"
    assert block.attributes[2] == Attribute(
        released_at=datetime(2026, 8, 22, 13, 40, 1, tzinfo=UTC)
    )


def fresh_block(**fields: Any) -> Block:
    return replace(Block(CIDR, "host:n", (None,) * 4, (0, 1, 2, 3)), **fields)


def test_block_omissions() -> None:
    text = encode(BLOCK, fresh_block(affinity=None)).decode()
    assert text == (
        '{"cidr":"10.250.0.4/30","affinity":null,"allocations":[null,null,null,null],'
        '"unallocated":[0,1,2,3],"attributes":null,"sequenceNumber":0,'
        '"sequenceNumberForAllocation":{},"deleted":false}'
    )
    emptied = encode(BLOCK, fresh_block(unallocated=(1, 2, 3, 0)))
    assert b'"attributes":[]' in emptied
    full = fresh_block(
        allocations=(0, 0, 0, 0), unallocated=(), attributes=(Attribute(handle_id="h"),)
    )
    assert b'"unallocated":[]' in encode(BLOCK, full)


def test_block_keeps_unknown_fields_and_orders_ordinals_as_text() -> None:
    cidr = ip_network("10.250.0.0/28")
    block = Block(
        cidr,
        None,
        (0,) * 16,
        (),
        (Attribute(handle_id="h", extra={"future": [1]}),),
        sequence_number=2**64 - 1,
        sequence_numbers={2: 5, 10: 2**64 - 1, 0: 1},
        extra={"hostAffinity": "n", "new": {"b": 1, "a": 2}},
    )
    text = encode(BlockKey(cidr), block).decode()
    assert '"sequenceNumberForAllocation":{"0":1,"10":18446744073709551615,"2":5}' in text
    assert '"attributes":[{"handle_id":"h","future":[1]}]' in text
    assert text.endswith('"deleted":false,"hostAffinity":"n","new":{"b":1,"a":2}}')
    assert decode(BlockKey(cidr), text.encode()) == block


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"cidr": "10.250.0.8/30"}, "cidr"),
        ({"allocations": [0, 1, 2]}, "allocations: 3 entries for 4"),
        ({"allocations": [0, 1, 9, None]}, r"allocations\[2\]: there is no attribute 9"),
        ({"allocations": [0, 1, True, None]}, r"allocations\[2\]"),
        ({"allocations": {"0": 1}}, "allocations: not a list"),
        ({"unallocated": [4]}, r"unallocated\[0\]: there is no ordinal 4"),
        ({"unallocated": [-1]}, r"unallocated\[0\]"),
        ({"attributes": [1, 2, 3]}, r"attributes\[0\]: not an object"),
        ({"affinity": 7}, "affinity: 7 is not a string"),
        ({"affinity_claim_time": "yesterday"}, "affinity_claim_time: 'yesterday'"),
        ({"affinity_claim_time": "2026-08-22"}, "affinity_claim_time: '2026-08-22'"),
        ({"affinity_claim_time": "2026-08-22T13:30:00"}, "affinity_claim_time"),
        ({"sequenceNumber": 1.5}, "sequenceNumber: 1.5"),
        ({"sequenceNumber": 2**64}, "sequenceNumber"),
        ({"sequenceNumberForAllocation": {"x": 1}}, "sequenceNumberForAllocation: 'x'"),
        ({"sequenceNumberForAllocation": {"4": 1}}, "sequenceNumberForAllocation: there is no"),
        ({"sequenceNumberForAllocation": {"1": 2, "": 1}}, "sequenceNumberForAllocation: ''"),
        ({"sequenceNumberForAllocation": {"1": 2, "1_0": 1}}, ".*: '1_0'"),
        ({"sequenceNumberForAllocation": {"1": 2, "\u0663": 1}}, ".*: '\u0663'"),
        ({"sequenceNumberForAllocation": {"1": 2, "9" * 5000: 1}}, f".*: '{'9' * 40}'"),
        ({"sequenceNumberForAllocation": {"1": -2}}, r"sequenceNumberForAllocation\[1\]: -2"),
        ({"sequenceNumberForAllocation": {"1": True}}, r"sequenceNumberForAllocation\[1\]: True"),
        ({"deleted": "false"}, "deleted: 'false' is not a boolean"),
    ],
)
def test_malformed_block_names_path_and_field(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(Malformed, match=f"^/calico/ipam/v2/assignment/.*10.250.0.4-30: {names}"):
        decode(BLOCK, altered("assignment", **fields))


NO_TEXT: dict[str, Any] = {"pod": None}
ODD_VALUES: list[tuple[Key, Value, str]] = [
    (BLOCK, replace(USED, allocations=(True, 0, 0, 0)), r"allocations\[0\]: .* True"),
    (BLOCK, replace(USED, allocations=(0, 0, 0, 2)), r"allocations\[3\]: .* 2"),
    (BLOCK, replace(USED, unallocated=(0, -1)), r"unallocated\[1\]: .* -1"),
    (BLOCK, replace(USED, sequence_number=2**64), "sequenceNumber: 1844"),
    (BLOCK, replace(USED, sequence_numbers={0: -1}), "sequenceNumberForAllocation.*-1"),
    (BLOCK, replace(USED, sequence_numbers={4: 1}), "sequenceNumberForAllocation.*4"),
    (
        BLOCK,
        replace(USED, attributes=(Attribute("h", NO_TEXT), Attribute())),
        "'pod' is None",
    ),
    (HANDLE, Handle({CIDR: -1}), r"block\[10.250.0.4/30\]: -1"),
    (HANDLE, Handle({CIDR: True}), r"block\[.*: True"),
    (HANDLE, Handle({CIDR: 2**63}), r"block\["),
    (IPAMConfigKey(), IPAMConfig(max_blocks_per_host=-1), "maxBlocksPerHost: -1"),
    (IPAMConfigKey(), IPAMConfig(cooldown_seconds=2**63), "ipCooldownSeconds: "),
]


@pytest.mark.parametrize(("key", "value", "named"), ODD_VALUES)
def test_what_would_not_be_read_again_is_not_written(key: Key, value: Value, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        encode(key, value)


def test_nesting_without_end_is_refused() -> None:
    extra: dict[str, Any] = {}
    extra["again"] = extra
    with pytest.raises(InvalidInput, match="nested too deeply"):
        encode(HANDLE, Handle({}, extra={"x": extra}))


def test_malformed_attribute_names_its_place() -> None:
    with pytest.raises(Malformed, match=r"30: attributes\[0\]: secondary\[pod\]: 5 is not a str"):
        decode(BLOCK, altered("assignment", attributes=[{"secondary": {"pod": 5}}, {}, {}]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xff{}", "not JSON"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":1e999}', "out of range"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bytes_that_are_no_object_are_malformed(data: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=rf"^/calico/ipam/v2/handle/k8s.*: .*{reason}"):
        decode(HANDLE, data)


def test_go_escapes_and_raw_text() -> None:
    handle = Handle({}, extra={"t": 'a<b>&c\u2028\u2029 \u00e9\u20ac\U0001f408 "\\\n\x01\x7f'})
    expected = (
        '{"block":{},"deleted":false,"t":"a\\u003cb\\u003e\\u0026c\\u2028\\u2029 '
        '\u00e9\u20ac\U0001f408 \\"\\\\\\n\\u0001\x7f"}'
    )
    assert encode(HANDLE, handle).decode() == expected
    assert decode(HANDLE, expected.encode()) == handle


def test_a_lone_surrogate_becomes_the_replacement_character_as_in_go() -> None:
    handle = decode(HANDLE, b'{"block":{},"deleted":false,"t":"x\\ud800y"}')
    assert encode(HANDLE, handle) == '{"block":{},"deleted":false,"t":"x\ufffdy"}'.encode()


def test_numbers_are_written_as_go_writes_them() -> None:
    extra = {"a": 1.0, "b": 10.5, "c": 1e6, "d": [2.0, {"e": 3.0}], "f": 2**63, "g": 1e21}
    assert encode(HANDLE, Handle({}, extra=extra)).endswith(
        b'"a":1,"b":10.5,"c":1000000,"d":[2,{"e":3}],"f":9223372036854775808,"g":1e+21}'
    )


def test_times_are_utc_in_whole_seconds() -> None:
    there = timezone(timedelta(hours=2))
    block = fresh_block(affinity_claim_time=datetime(2026, 8, 22, 15, 30, 0, 999999, there))
    assert b'"affinity_claim_time":"2026-08-22T13:30:00Z"' in encode(BLOCK, block)
    with pytest.raises(InvalidInput, match="no time zone"):
        encode(BLOCK, fresh_block(affinity_claim_time=datetime(2026, 8, 22)))


@pytest.mark.parametrize("state", list(AffinityState))
def test_affinity_states(state: AffinityState) -> None:
    text = encode(AFFINITY, BlockAffinity(state))
    assert text == f'{{"state":"{state}","deleted":false}}'.encode()
    assert decode(AFFINITY, text) == BlockAffinity(state)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"state":""}', b'{"state":null}'])
def test_legacy_affinity_reads_as_confirmed(data: bytes) -> None:
    assert decode(AFFINITY, data) == BlockAffinity(AffinityState.CONFIRMED)


def test_unknown_affinity_state_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"node-1/ipv4/block/10\.250\.0\.4-30: state: 'maybe'"):
        decode(AFFINITY, b'{"state":"maybe"}')


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b'{"block":{"10.250.0.5/30":1}}', r"block\[10.250.0.5/30\]"),
        (b'{"block":{"10.250.0.4/30":-1}}', r"block\[10.250.0.4/30\]: -1"),
        (b'{"block":[]}', "block: not an object"),
        (b'{"block":{},"deleted":1}', "deleted"),
    ],
)
def test_malformed_handle(data: bytes, names: str) -> None:
    with pytest.raises(Malformed, match=f"9f3c: {names}"):
        decode(HANDLE, data)


def test_handle_blocks_are_in_key_order() -> None:
    v6, v4 = ip_network("fd00::/122"), ip_network("10.0.0.0/26")
    handle = Handle({v6: 1, v4: 2})
    assert encode(HANDLE, handle) == b'{"block":{"10.0.0.0/26":2,"fd00::/122":1},"deleted":false}'


def test_stored_config_without_auto_allocate_means_false() -> None:
    config = decode(IPAMConfigKey(), b'{"strict_affinity":true}')
    assert config == IPAMConfig(strict_affinity=True, auto_allocate_blocks=False)
    assert IPAMConfig().auto_allocate_blocks  # nothing stored at all


def test_config_keys_and_omissions() -> None:
    off = IPAMConfig(auto_allocate_blocks=False, kubevirt_persistence=Persistence.DISABLED)
    assert encode(IPAMConfigKey(), off) == b'{"kubeVirtVMAddressPersistence":"Disabled"}'
    kept = decode(IPAMConfigKey(), b'{"auto_allocate_blocks":true,"newKey":{"x":1}}')
    assert encode(IPAMConfigKey(), kept) == (
        b'{"auto_allocate_blocks":true,"kubeVirtVMAddressPersistence":"Enabled","newKey":{"x":1}}'
    )


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"kubeVirtVMAddressPersistence":"enabled"}', "kubeVirtVMAddressPersistence"),
        (b'{"kubeVirtVMAddressPersistence":true}', "kubeVirtVMAddressPersistence"),
        (b'{"strict_affinity":"true"}', "strict_affinity"),
        (b'{"ipCooldownSeconds":"30"}', "ipCooldownSeconds"),
    ],
)
def test_config_is_never_guessed(data: bytes, field: str) -> None:
    with pytest.raises(Malformed, match=f"^/calico/ipam/v2/config: {field}: "):
        decode(IPAMConfigKey(), data)


def test_value_under_the_wrong_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Handle is not stored under a BlockKey"):
        encode(BLOCK, Handle({}))
    with pytest.raises(InvalidInput, match=r"the value is block 10\.250\.0\.4/30"):
        encode(BlockKey(ip_network("10.250.0.8/30")), fresh_block())
    node = Node.model_validate({"metadata": {"name": "node-2"}})
    with pytest.raises(InvalidInput, match="node-2"):
        encode(ResourceKey(Kind.NODE, "node-1"), node)
    with pytest.raises(InvalidInput, match="cannot be stored"):
        encode(AffinityKey("a/b", CIDR), BlockAffinity())
    with pytest.raises(InvalidInput, match="cannot be stored"):
        encode(HandleKey(""), Handle({}))


def test_block_with_a_dangling_index_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="there is no attribute 0"):
        encode(BLOCK, fresh_block(allocations=(0, None, None, None)))


def test_resource_that_calls_itself_otherwise_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"nodes/other: metadata\.name: .*'node-1"):
        decode(ResourceKey(Kind.NODE, "other"), golden("/nodes/"))


@pytest.mark.parametrize(
    ("key", "data", "field"),
    [
        (ResourceKey(Kind.IP_POOL, "p"), b'{"kind":"IPPool","metadata":{"name":"p"}}', "spec"),
        (
            ResourceKey(Kind.IP_POOL, "p"),
            b'{"kind":"IPPool","metadata":{"name":"p"},"spec":{"cidr":null}}',
            r"spec\.cidr",
        ),
        (ResourceKey(Kind.IP_POOL, "p"), b'{"kind":"Node","metadata":{"name":"p"}}', "kind"),
        (ResourceKey(Kind.IP_POOL, "p"), b'{"kind":"IPPool"}', "metadata"),
        (ResourceKey(Kind.TIER, "p"), b'{"kind":"Tier","metadata":[]}', "metadata"),
        (
            ResourceKey(Kind.NODE, "p"),
            b'{"kind":"Node","metadata":{"name":"p","labels":{"a":1}}}',
            r"metadata\.labels\.a",
        ),
    ],
)
def test_malformed_resource_names_path_and_field(key: ResourceKey, data: bytes, field: str) -> None:
    with pytest.raises(Malformed, match=f"^{path_of(key)}: .*{field}"):
        decode(key, data)


def test_store_owned_metadata_is_neither_stored_nor_returned() -> None:
    key = ResourceKey(Kind.PROFILE, "r")
    data = (
        b'{"kind":"Profile","metadata":'
        b'{"name":"r","resourceVersion":"7","selfLink":"/x"},"spec":{}}'
    )
    value = decode(key, data)
    assert isinstance(value, GenericResource)
    assert not value.metadata.model_extra
    meant = GenericResource.model_validate(json.loads(data))
    assert b"resourceVersion" not in encode(key, meant)
    assert b"selfLink" not in encode(key, meant)


def test_policy_name_annotation_is_added_and_taken_out() -> None:
    key = ResourceKey(Kind.GLOBAL_NETWORK_POLICY, "deny")
    policy = GenericResource.model_validate(
        {
            "kind": "GlobalNetworkPolicy",
            "metadata": {
                "name": "deny",
                "annotations": {"z": "1", "a": "2"},
                "finalizers": ["f"],
            },
        }
    )
    text = encode(key, policy).decode()
    assert (
        '"annotations":{"a":"2","projectcalico.org/metadata":"{\\"name\\":\\"deny\\"}","z":"1"},'
        '"finalizers":["f"]' in text
    )
    assert decode(key, text.encode()) == policy
    broken = text.replace('{\\"name\\"', "{")
    with pytest.raises(Malformed, match=r"metadata\.annotations"):
        decode(key, broken.encode())


def roundtrip(value: Resource) -> dict[str, Any]:
    wire: dict[str, Any] = json.loads(encode(value.key, value))
    return wire


def test_explicit_false_of_a_pointer_is_written() -> None:
    mesh_off = BGPConfiguration.model_validate(
        {"metadata": {"name": "default"}, "spec": {"nodeToNodeMeshEnabled": False}}
    )
    assert roundtrip(mesh_off)["spec"] == {"nodeToNodeMeshEnabled": False}
    not_ready = ClusterInformation.model_validate(
        {"metadata": {"name": "default"}, "spec": {"datastoreReady": False}}
    )
    assert roundtrip(not_ready)["spec"] == {"datastoreReady": False}
    assert (
        roundtrip(ClusterInformation.model_validate({"metadata": {"name": "default"}}))["spec"]
        == {}
    )


def test_omitted_and_always_written_fields() -> None:
    pool = IPPool.model_validate({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16"}})
    assert roundtrip(pool)["spec"] == {
        "cidr": "10.0.0.0/16",
        "vxlanMode": "Never",
        "ipipMode": "Never",
        "blockSize": 26,
        "nodeSelector": "all()",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }
    assert roundtrip(Node.model_validate({"metadata": {"name": "n"}})) == {
        "kind": "Node",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "n"},
        "spec": {},
        "status": {},
    }


def test_unknown_fields_of_a_modelled_kind_survive() -> None:
    data = altered("/workloadendpoints/")
    wire = json.loads(data)
    wire["spec"]["qosControls"] = {"ingressBandwidth": 9007199254740993}
    wire["spec"]["ports"][0]["protocol"] = 6
    key = ResourceKey(Kind.WORKLOAD_ENDPOINT, "node--1-k8s-web--0-eth0", "shop")
    value = decode(key, json.dumps(wire).encode())
    assert isinstance(value, WorkloadEndpoint)
    assert roundtrip(value) == wire


@pytest.mark.parametrize(("stored", "number"), [(64512, 64512), ("64512", 64512), ("1.10", 65546)])
def test_as_numbers_are_read_in_three_spellings(stored: Any, number: int) -> None:
    peer = decode(
        ResourceKey(Kind.BGP_PEER, "rack1"),
        altered("/bgppeers/", spec={"peerIP": "192.0.2.1", "asNumber": stored}),
    )
    assert isinstance(peer, BGPPeer)
    assert peer.spec.as_number == number


@pytest.mark.parametrize("stored", ["x", "1.65536", "65536.0", -1, 2**32])
def test_other_as_numbers_are_malformed(stored: Any) -> None:
    spec = {"peerIP": "192.0.2.1", "asNumber": stored}
    with pytest.raises(Malformed, match=r"spec\.asNumber"):
        decode(ResourceKey(Kind.BGP_PEER, "rack1"), altered("/bgppeers/", spec=spec))
