"""BIRD's replies are a stranger's bytes: parsed whole or refused, never anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim.drivers.bird_protocol import (
    BirdRoute,
    Reply,
    ReplyReader,
    Session,
    parse_protocols,
    parse_routes,
)
from libtortie.errors import Malformed

ROUTES = (
    b"1007-Table master4:\n"
    b" 10.65.0.2/32         unicast [mesh_172_31_1_2 17:01:02.123] * (200/0) [i]\n"
    b"1008-\tvia 172.31.1.2 on eth0\n"
    b"1008-\tType: BGP univ\n"
    b"1012-\tBGP.origin: IGP\n"
    b" \tBGP.next_hop: 172.31.1.2\n"
    b" \tBGP.local_pref: 2147483135\n"
    b"1007-                     unreachable [peer_x 2026-11-29 from 172.31.1.3] (100/-) [i]\n"
    b"1012-\tBGP.next_hop: fd00::9 fe80::1\n"
    b"0000 \n"
)
PROTOCOLS = (
    b"2002-Name       Proto      Table      State  Since         Info\n"
    b"1002-device1    Device     ---        up     16:59:21.613  \n"
    b" mesh_172_31_1_2 BGP        ---        up     16:59:21.613  Established   \n"
    b" peer_a     BGP        ---        start  2026-11-29 16:59:21.613  Active        Socket: x\n"
    b"0000 \n"
)


def read(data: bytes) -> list[Reply]:
    return ReplyReader().feed(data)


def test_routes_of_two_peers() -> None:
    (reply,) = read(ROUTES)
    routes = parse_routes(reply)
    assert [(one.protocol, one.next_hop, one.local_pref, one.best) for one in routes] == [
        ("mesh_172_31_1_2", "172.31.1.2", 2147483135, True),
        ("peer_x", "fd00::9", None, False),
    ]
    assert {str(one.address) for one in routes} == {"10.65.0.2"}


def test_protocols_with_either_time_format() -> None:
    (reply,) = read(PROTOCOLS)
    assert parse_protocols(reply) == (
        Session("device1", "Device", "up", ""),
        Session("mesh_172_31_1_2", "BGP", "up", "Established"),
        Session("peer_a", "BGP", "start", "Active Socket: x"),
    )
    assert [one.established for one in parse_protocols(reply)] == [False, True, False]


def test_unasked_messages_are_no_part_of_a_reply() -> None:
    replies = read(b"+shutting down\n0002-Reading\n+more\n0003 Reconfigured\n")
    assert [one.lines for one in replies] == [((2, "Reading"), (3, "Reconfigured"))]


@pytest.mark.parametrize("data", [b" first\n", b"hello\n", b"12 x\n", b"0001x\n", b"\n"])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read(data)


def test_a_reply_without_end_is_given_up() -> None:
    reader = ReplyReader()
    with pytest.raises(Malformed, match="exceeds"):
        for _ in range(40):
            reader.feed(b"1008-" + b"x" * 1_000_000 + b"\n")


@given(st.lists(st.integers(0, len(ROUTES) * 2), max_size=12))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    data = ROUTES + PROTOCOLS
    reader, replies, start = ReplyReader(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        replies += reader.feed(data[start : max(cut, start)])
        start = max(cut, start)
    assert replies == read(data)


words = st.sampled_from(
    b"1007- |0000 |9001 |1002-| |\t|\n|[|]|(200)|*|10.0.0.1/32|::1/128|unicast|p 1|99|+"
    b"|BGP.next_hop: |BGP.local_pref: ".split(b"|")
)


@given(st.one_of(st.binary(max_size=300), st.lists(words, max_size=60).map(b"".join)))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        replies = read(data)
        for reply in replies:
            assert all(isinstance(one, BirdRoute) for one in parse_routes(reply))
            assert all(isinstance(one, Session) for one in parse_protocols(reply))
            assert isinstance(reply.failed, bool)
    except Malformed:
        pass
