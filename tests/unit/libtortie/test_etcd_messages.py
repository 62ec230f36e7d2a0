"""What is sent to etcd and read from it, against etcd3's generated classes."""

from __future__ import annotations

import contextlib
from ipaddress import ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libtortie.datastore import etcd_messages as messages
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_answers import Header, Outcome, Page, header_of, outcome_of, range_of
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.datastore.etcd_rpc import pb
from libtortie.datastore.etcd_wire import fields, number, text
from libtortie.datastore.port import Check, Create, Delete, Op, Unchanged, Update
from libtortie.datastore.records import Stored
from libtortie.errors import Conflict, Malformed, Unavailable
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey, Handles

H = Handle({ip_network("10.0.0.0/30"): 1})
ROOT = b"/calico/ipam/v2/handle/"


def test_a_transaction_is_what_etcds_own_classes_would_say() -> None:
    ops: list[Op] = [
        Create(HandleKey("new"), H),
        Update(HandleKey("old"), H, str(2**62)),
        Delete(HandleKey("x" * 300), "7"),
        Check(HandleKey("absent"), None),
        Check(HandleKey("stale"), "0"),
    ]
    data = messages.transaction(ops, [b"{}" * 100, b"", None, None, None])
    mod = {"target": pb.Compare.MOD, "result": pb.Compare.EQUAL}
    absent = {"target": pb.Compare.VERSION, "result": pb.Compare.EQUAL, "version": 0}
    keys = [ROOT + name for name in (b"new", b"old", b"x" * 300, b"absent", b"stale")]
    assert pb.TxnRequest.FromString(data) == pb.TxnRequest(
        compare=[
            pb.Compare(key=keys[0], **absent),
            pb.Compare(key=keys[1], mod_revision=2**62, **mod),
            pb.Compare(key=keys[2], mod_revision=7, **mod),
            pb.Compare(key=keys[3], **absent),
            pb.Compare(key=keys[4], mod_revision=-1, **mod),
        ],
        success=[
            pb.RequestOp(request_put=pb.PutRequest(key=keys[0], value=b"{}" * 100)),
            pb.RequestOp(request_put=pb.PutRequest(key=keys[1])),
            pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=keys[2])),
        ],
        failure=[
            pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=True)) for key in keys
        ],
    )


def test_a_removal_and_a_reading() -> None:
    removal = pb.TxnRequest.FromString(messages.removal("/a"))
    assert removal == pb.TxnRequest(
        compare=[
            pb.Compare(key=b"/a", target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0)
        ],
        success=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"/a"))],
    )
    reads = [messages.scan(b"/a", b""), messages.scan(b"/b/", b"/b0", 7, revision=9)]
    assert pb.TxnRequest.FromString(messages.reading(reads)) == pb.TxnRequest(
        success=[
            pb.RequestOp(request_range=pb.RangeRequest(key=b"/a")),
            pb.RequestOp(
                request_range=pb.RangeRequest(key=b"/b/", range_end=b"/b0", limit=7, revision=9)
            ),
        ]
    )


def test_a_read_of_one_key_has_no_end_not_even_an_empty_one() -> None:
    assert 2 not in dict(fields(messages.scan(b"/a", b"")))


def test_a_scope_that_must_be_unchanged() -> None:
    data = messages.transaction([Unchanged(Handles(), "41")], [None])
    low, high = ROOT, ROOT[:-1] + b"0"
    assert pb.TxnRequest.FromString(data) == pb.TxnRequest(
        compare=[
            pb.Compare(
                key=low,
                range_end=high,
                target=pb.Compare.MOD,
                result=pb.Compare.LESS,
                mod_revision=42,
            )
        ],
        failure=[
            pb.RequestOp(
                request_range=pb.RangeRequest(
                    key=low, range_end=high, limit=1, keys_only=True, min_mod_revision=42
                )
            )
        ],
    )


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**63 - 1), st.binary())),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
def test_a_range_is_what_etcds_own_classes_would_read(
    written: list[tuple[bytes, int, bytes]], more: bool, revision: int
) -> None:
    header = pb.ResponseHeader(cluster_id=2**64 - 1, revision=revision, raft_term=3)
    kvs = [
        {"key": key, "create_revision": 1, "mod_revision": at, "version": 2, "value": value}
        for key, at, value in written
    ]
    answer = pb.RangeResponse(header=header, kvs=kvs, more=more, count=len(kvs))
    response = pb.ResponseOp(response_range=answer)
    whole = pb.TxnResponse(header=header, succeeded=True, responses=[response, response])
    rows = tuple(Stored(path_of_key(key), at, value) for (key, at, value) in written)
    page = Page(rows, written[-1][0] if written else b"", more)
    assert range_of(answer.SerializeToString()) == Outcome(True, revision, (page,))
    assert outcome_of(whole.SerializeToString()) == Outcome(True, revision, (page, page))


def path_of_key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"{key!r} (not UTF-8)"


@given(st.booleans(), st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_an_outcome(succeeded: bool, revision: int, member: int, puts: int) -> None:
    header = pb.ResponseHeader(
        cluster_id=member, member_id=member, revision=revision, raft_term=member
    )
    put = pb.ResponseOp(response_put=pb.PutResponse(header=pb.ResponseHeader(revision=5)))
    answer = pb.TxnResponse(header=header, succeeded=succeeded, responses=[put] * puts)
    outcome = outcome_of(answer.SerializeToString())
    assert outcome == Outcome(succeeded, revision)


def test_an_answer_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    for data in (b"\x0a\xff", b"\x18\x01", b"\x08\x01"):
        with pytest.raises(Unavailable, match="outcome unknown"):
            outcome_of(data)
    for data in (b"\x0a\xff", b"\x10\x01", b"\x12\x02\x08\x01"):
        with pytest.raises(Unavailable, match="outcome unknown"):
            range_of(data)


HEADER = text(1, number(1, 7) + number(3, 100) + number(4, 3))
RANGE = HEADER + text(2, text(1, b"/a") + number(3, 9) + text(5, b"{}")) + number(4, 1)
ANSWERS = (RANGE, HEADER + number(2, 1) + text(3, text(1, RANGE)) + text(3, text(2, HEADER)))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An answer with some bytes that are others, or missing."""
    answer = bytearray(draw(st.sampled_from(ANSWERS)))
    for place in draw(st.lists(st.integers(0, len(answer) - 1), min_size=1, max_size=3)):
        answer[place : place + draw(st.integers(0, 1))] = draw(st.binary(max_size=2))
    return bytes(answer)


@given(damaged())
@example(text(1, number(1, 7) + text(3, b"no number")))
@example(text(1, number(1, 7) + text(4, b"no number")) + RANGE)
@example(ANSWERS[0].replace(number(3, 9), text(3, b"")))
def test_a_damaged_answer_is_read_as_it_is_or_leaves_the_outcome_unknown(answer: bytes) -> None:
    for read in (range_of, outcome_of):
        with contextlib.suppress(Unavailable):
            read(answer)
    assert header_of(answer).revision >= 0
    assert header_of(answer, transaction=True).revision >= 0


def test_a_header_that_cannot_be_read_whole_says_nothing() -> None:
    """Least of all that the term is a lower one: that would be an etcd that was put back."""
    assert header_of(text(1, number(1, 7) + number(3, 100) + b"\x20\xff")) == Header()
    assert header_of(text(1, number(1, 7) + number(3, 100) + text(4, b"x"))) == Header()


class Curt:
    """Answers a transaction, without what was read."""

    def require_open(self) -> None:
        pass

    def read(self, method: str, request: bytes) -> bytes:
        return HEADER + number(2, 1)

    def write(self, request: bytes) -> bytes:
        return HEADER


def test_an_answer_without_what_was_asked_for_is_an_error_of_ours() -> None:
    store = EtcdDatastore(EtcdConfig("http://127.0.0.1:1"))
    store._cluster = Curt()  # type: ignore[assignment]  # what it uses of one
    with pytest.raises(Unavailable, match="0 of 2 reads"):
        store.snapshot([HandleKey("a"), HandleKey("b")])
    with pytest.raises(Conflict, match="try again"):
        store.commit([Create(HandleKey("a"), H)])


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(-(2**63), 2**64 - 1) | st.binary())))
def test_fields_are_read_as_they_are_written(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(
        number(field, value) if isinstance(value, int) else text(field, value)
        for field, value in written
    )
    assert list(fields(data)) == [
        (field, value % 2**64 if isinstance(value, int) else value) for field, value in written
    ]


@given(st.binary(max_size=40))
def test_nonsense_is_malformed_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        list(fields(data))


def test_a_message_cut_short_is_malformed() -> None:
    whole = number(1, 2**40) + text(2, b"abc")
    for length in range(1, len(whole)):
        if length != len(number(1, 2**40)):
            with pytest.raises(Malformed):
                list(fields(whole[:length]))
