"""Watch streams from hostile or broken servers: only events or typed errors come out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import Malformed, TortieError
from libtortie.kube.lines import LineSplitter, RawEvent, decode_line
from libtortie.kube.objects import KubeObject, Pod, VirtualMachineInstance
from libtortie.kube.replies import decode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["metadata", "spec", "status", "name", "labels", "nodeName", "networks", "podIPs", "phase"]
)
SHAPED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "added", ""]) | JSON
EVENTS = st.fixed_dictionaries({"type": TYPES, "object": SHAPED | JSON})


def read(chunks: Iterable[bytes]) -> list[RawEvent]:
    splitter = LineSplitter()
    return [decode_line(line, "c") for chunk in chunks for line in splitter.feed(chunk)]


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_any_bytes_give_events_or_typed_errors(chunks: list[bytes]) -> None:
    try:
        read(chunks)
    except TortieError:
        return


@given(EVENTS)
def test_any_json_gives_an_event_or_a_typed_error(event: dict[str, Any]) -> None:
    try:
        (found,) = read([json.dumps(event).encode() + b"\n"])
    except TortieError:
        return
    assert found.type == event["type"] != "ERROR"
    assert found.object == event["object"]
    assert isinstance(found.resource_version, str)


@given(SHAPED, st.sampled_from([Pod, VirtualMachineInstance]))
def test_any_object_decodes_or_is_malformed(body: Any, model: type[KubeObject]) -> None:
    body = body if isinstance(body, dict) else {"status": body, "spec": body}
    before = json.dumps(body)
    try:
        found = decode(model, body, "c")
    except Malformed:
        return
    finally:
        assert json.dumps(body) == before
    assert isinstance(found.metadata.name, str)


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3), max_size=5),
    st.data(),
)
def test_chunk_borders_mean_nothing(objects: list[dict[str, str]], data: st.DataObject) -> None:
    lines = [json.dumps({"type": "ADDED", "object": body}).encode() for body in objects]
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [event.object for event in read(chunks)] == objects


@given(st.binary(min_size=1, max_size=40).filter(lambda b: b"\n" not in b), st.integers(1, 60))
def test_a_line_is_bounded(part: bytes, times: int) -> None:
    splitter = LineSplitter(limit=100)
    held = 0
    try:
        for _ in range(times):
            held += len(part)
            assert list(splitter.feed(part)) == []
            assert held <= 100
    except Malformed:
        assert held > 100
    assert splitter.pending
