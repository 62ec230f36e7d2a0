"""Frames between agents: what is written is read, and nothing else is taken for a message."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim.peer_messages import (
    BODY_MAX,
    FLOWS_IN_FRAME,
    HEADER,
    VERSION,
    Batch,
    End,
    Kind,
    Message,
    Moved,
    Refused,
    Request,
    Unknown,
    batches,
    decode,
    encode,
    parse_header,
)
from libtortie.errors import Malformed
from libtortie.linux.flows import TCP, Flow, FlowTuple, TcpFlag, TcpState, TcpTracking

V6 = ip_address("fd00:65:1234:5678:9abc:def0:1234:5678")
FLAGS = TcpFlag(15)
LARGEST = Flow(
    FlowTuple(V6, V6, TCP, 65535, 65535),
    FlowTuple(V6, V6, TCP, 65535, 65535),
    2_000_000,
    tcp=TcpTracking(TcpState.ESTABLISHED, (14, 14), (FLAGS, FLAGS)),
    mark=0xFFFFFFFF,
    labels=b"\xff" * 16,
)


def read(frame: bytes) -> Message:
    length, kind = parse_header(frame[: HEADER.size])
    assert length == len(frame) - HEADER.size
    assert isinstance(kind, Kind)
    return decode(kind, frame[HEADER.size :])


@pytest.mark.parametrize(
    "message",
    [
        Request("mig", "vmi", (V6, ip_address("10.65.0.2"))),
        Request("mig", "vmi", (V6,), cut_over=True),
        Batch(()),
        Batch((LARGEST,) * FLOWS_IN_FRAME),
        Moved("mig", (V6, ip_address("10.65.0.2"))),
        End(0),
        Refused("no such migration"),
    ],
)
def test_a_message_survives_the_way(message: Message) -> None:
    assert read(encode(message)) == message


def test_many_connections_go_in_several_frames() -> None:
    sent = [LARGEST] * (2 * FLOWS_IN_FRAME + 1)
    *full, end = batches(sent)
    assert [len(one.flows) for one in full if isinstance(one, Batch)] == [200, 200, 1]
    assert end == End(len(sent))
    assert list(batches([])) == [End(0)]


def test_what_is_too_large_is_not_sent() -> None:
    with pytest.raises(Malformed, match="at most"):
        encode(Request("m" * BODY_MAX, "vmi", (V6,)))


def test_a_long_reason_is_cut() -> None:
    assert read(encode(Refused("x" * 1000))) == Refused("x" * 200)


@pytest.mark.parametrize(
    "header",
    [(1, VERSION + 1, 1), (1, 0, 1), (BODY_MAX + 1, VERSION, 1), (BODY_MAX + 1, VERSION, 99)],
)
def test_another_header_is_malformed(header: tuple[int, int, int]) -> None:
    with pytest.raises(Malformed):
        parse_header(HEADER.pack(*header))


def test_a_kind_that_a_newer_agent_knows_is_read_past() -> None:
    assert parse_header(HEADER.pack(7, VERSION, 99)) == (7, Unknown(99))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.WANTED, b'["m","v",[]]'),
        (Kind.WANTED, b'["m","v",["10.65.0.300"]]'),
        (Kind.WANTED, b'["m",7,["10.65.0.3"]]'),
        (Kind.CUT_OVER, b'{"m":1}'),
        (Kind.MOVED, b'["m"]'),
        (Kind.MOVED, b'["m",[]]'),
        (Kind.MOVED, b'[7,["10.65.0.3"]]'),
        (Kind.END, b"-1"),
        (Kind.END, b"true"),
        (Kind.FLOWS, b"{}"),
        (Kind.REFUSED, b"[]"),
        (Kind.FLOWS, b"\xff"),
        (Kind.END, b"9" * 6000),
    ],
)
def test_another_body_is_malformed(kind: Kind, body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(kind, body)


@given(st.sampled_from(Kind), st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_body_is_a_message_or_malformed(kind: Kind, body: bytes) -> None:
    try:
        message = decode(kind, body)
    except Malformed:
        return
    assert read(encode(message)) == message
