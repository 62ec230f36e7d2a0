"""Whatever a value holds, its bytes give it back, and no bytes do worse than `Malformed`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import IPv4Network, ip_network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libtortie.datastore import gojson
from libtortie.datastore.codec import as_read, decode, encode
from libtortie.datastore.ipam_codec import block_to_wire
from libtortie.datastore.port import Value
from libtortie.errors import Malformed
from libtortie.model.ipam import Attribute, Block, BlockAffinity, Handle, IPAMConfig
from libtortie.model.keys import (
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    Key,
    Kind,
    ResourceKey,
)

CIDR = ip_network("10.250.0.0/29")
SIZE = 8
TEXT = st.text(max_size=8)
UINT64 = st.integers(0, 2**64 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
EXTRA = st.dictionaries(TEXT.map(lambda name: "x-" + name), JSON, max_size=2)
TIMES = st.none() | st.datetimes(
    datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)
).map(lambda time: time.replace(microsecond=0))
ATTRIBUTES = st.builds(
    Attribute,
    handle_id=st.none() | TEXT,
    active=st.dictionaries(TEXT, TEXT, max_size=3),
    alternate=st.dictionaries(TEXT, TEXT, max_size=3),
    released_at=TIMES,
    extra=EXTRA,
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    attributes = tuple(draw(st.lists(ATTRIBUTES, max_size=3)))
    index = st.none() | st.integers(0, len(attributes) - 1) if attributes else st.none()
    return Block(
        CIDR,
        draw(st.none() | TEXT),
        tuple(draw(st.lists(index, min_size=SIZE, max_size=SIZE))),
        tuple(draw(st.lists(st.integers(0, SIZE - 1), max_size=SIZE))),
        attributes,
        draw(TIMES),
        draw(UINT64),
        draw(st.dictionaries(st.integers(0, SIZE - 1), UINT64, max_size=3)),
        draw(st.booleans()),
        draw(EXTRA),
    )


@given(blocks())
def test_blocks_come_back(block: Block) -> None:
    data = encode(BlockKey(CIDR), block)
    assert decode(BlockKey(CIDR), data) == block
    assert encode(BlockKey(CIDR), decode(BlockKey(CIDR), data)) == data
    assert data == gojson.dumps(block_to_wire(block))


@given(
    st.dictionaries(
        st.integers(0, 2**24 - 1).map(lambda n: IPv4Network((n << 8, 24))), st.integers(0, 256)
    ),
    st.booleans(),
    EXTRA,
)
def test_handles_come_back(counts: dict[Any, int], deleted: bool, extra: dict[str, Any]) -> None:
    handle = Handle(counts, deleted, extra)
    assert decode(HandleKey("h"), encode(HandleKey("h"), handle)) == handle


@given(
    blocks().map(lambda block: (BlockKey(CIDR), block))
    | st.builds(
        lambda count, extra: (HandleKey("h"), Handle({CIDR: count}, extra=extra)),
        st.integers(0, 9),
        EXTRA,
    )
    | st.builds(lambda extra: (AffinityKey("n", CIDR), BlockAffinity(extra=extra)), EXTRA)
    | st.builds(lambda extra: (IPAMConfigKey(), IPAMConfig(extra=extra)), EXTRA)
)
def test_what_is_written_need_not_be_read_to_be_known(pair: tuple[Key, Value]) -> None:
    key, value = pair
    data = encode(key, value)
    known = as_read(key, value, data)
    assert known == decode(key, data)


ZONES = st.just(UTC) | st.just(timezone(timedelta(hours=2)))
SURROGATES = st.text(st.characters(categories=["Cs", "Lu"]), max_size=2)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=ZONES), SURROGATES)
def test_what_storage_changes_is_read_again(time: datetime, text: str) -> None:
    """Fractions of seconds, half characters: what is returned is what is stored."""
    attributes = (Attribute(text, {"a": text}, released_at=time),)
    block = Block(CIDR, "host:" + text, (None,) * SIZE, (), attributes, time)
    data = encode(BlockKey(CIDR), block)
    known = as_read(BlockKey(CIDR), block, data)
    assert known == decode(BlockKey(CIDR), data)


@given(JSON)
def test_go_text_is_json_and_escapes_what_go_escapes(value: Any) -> None:
    data = gojson.dumps(value)
    assert gojson.loads(data) == json.loads(data) == value
    text = data.decode()
    assert not set("<>&\u2028\u2029") & set(text)
    assert gojson.dumps(gojson.loads(data)) == data


KEYS: list[Key] = [
    BlockKey(CIDR),
    AffinityKey("n", CIDR),
    HandleKey("h"),
    IPAMConfigKey(),
    ResourceKey(Kind.NODE, "n"),
    ResourceKey(Kind.NETWORK_POLICY, "n", "ns"),
    ResourceKey(Kind.TIER, "n"),
]
FIELDS = {"kind", "metadata", "spec", "status", "order", "name", "annotations"} | {
    *("cidr", "affinity", "affinity_claim_time", "allocations", "unallocated", "attributes"),
    *("sequenceNumber", "sequenceNumberForAllocation", "deleted", "state", "block"),
    *("strict_affinity", "maxBlocksPerHost", "kubeVirtVMAddressPersistence"),
}
OBJECTS = st.dictionaries(
    st.sampled_from(sorted(FIELDS)) | TEXT,
    JSON | st.sampled_from(["Node", "NetworkPolicy", "Tier", str(CIDR), {"name": "n"}]),
)


BODIES = OBJECTS.map(lambda body: json.dumps(body).encode())


@given(st.sampled_from(KEYS), st.binary(max_size=40) | BODIES)
def test_foreign_bytes_are_read_or_malformed(key: Key, data: bytes) -> None:
    try:
        value = decode(key, data)
    except Malformed as error:
        assert str(error).startswith("/calico/")
        return
    again = encode(key, value)
    assert encode(key, decode(key, again)) == again
