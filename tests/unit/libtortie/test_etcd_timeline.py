"""Whether an etcd went back, by the headers of its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from libtortie.datastore.etcd_answers import Header, header_of
from libtortie.datastore.etcd_rpc import pb
from libtortie.datastore.etcd_timeline import Timeline

NOW = Header(cluster=7, revision=100, term=3)


@dataclass(eq=False)
class Line:
    """What answers come over."""

    over: bool = False


LASTING = Line()


def told(timeline: Timeline, *headers: Header, line: Line = LASTING) -> int:
    """What it counts after answers one after another."""
    for header in headers:
        timeline.learn(header, timeline.moment(), line)
    return timeline.rewinds


@pytest.mark.parametrize(
    "later",
    [
        NOW,
        Header(7, 101, 3),
        Header(7, 101, 3, wrote=True),
        Header(7, 100, 4),
        Header(7, 2**62, 9),
        Header(),
    ],
    ids=["the same", "another's write", "a write", "an election", "much later", "without a header"],
)
def test_what_an_etcd_may_say_next(later: Header) -> None:
    assert told(Timeline(), Header(7, 1, 1, wrote=True), NOW, later) == 0


@pytest.mark.parametrize(
    "later",
    [
        Header(7, 99, 3),
        Header(7, 100, 3, wrote=True),
        Header(7, 100, 2),
        Header(8, 100, 3),
        Header(8, 500, 9),
    ],
    ids=[
        "a lower revision",
        "a write without a new one",
        "a lower term",
        "another cluster",
        "another one that is ahead",
    ],
)
def test_what_only_one_that_was_put_back_says(later: Header) -> None:
    timeline = Timeline()
    assert told(timeline, NOW, later) == 1
    assert told(timeline, replace(later, wrote=False)) == 1, "from then on that is how it is"
    assert told(timeline, NOW if later.cluster == 7 else Header(8, 501, 9)) == 1


def test_an_answer_to_what_was_asked_before_another_was_answered_may_be_older() -> None:
    timeline = Timeline()
    sent = timeline.moment()
    told(timeline, NOW)
    timeline.learn(Header(7, 60, 3), sent, LASTING)
    assert timeline.rewinds == 0
    assert told(timeline, Header(7, 99, 3)) == 1, "it is the latest that counts"


def test_two_answers_on_their_way_tell_of_one_restore_once() -> None:
    timeline = Timeline()
    told(timeline, NOW)
    first, second = timeline.moment(), timeline.moment()
    timeline.learn(Header(7, 50, 3), first, LASTING)
    timeline.learn(Header(7, 51, 3), second, LASTING)
    assert timeline.rewinds == 1


def test_what_came_over_a_connection_counts_as_long_as_it_lasts() -> None:
    timeline, first, second = Timeline(), Line(), Line()
    assert told(timeline, NOW, NOW, line=first) == 0
    first.over = True
    assert timeline.rewinds == 1, "before anything more is asked"
    assert told(timeline, NOW, Header(7, 101, 3), line=second) == 1, "and once only"
    assert told(timeline, NOW, line=LASTING) == 2, "by another way: the first may last, or not"
    assert told(timeline, NOW, line=second) == 3


def test_an_answer_over_what_ended_meanwhile_may_have_come_over_something_else() -> None:
    timeline, line = Timeline(), Line()
    told(timeline, NOW, line=line)
    sent = timeline.moment()
    line.over = True
    timeline.learn(Header(7, 200, 3), sent, line)
    assert timeline.rewinds == sent.rewinds + 1


def test_an_answer_from_before_the_end_of_a_connection_is_not_of_the_next() -> None:
    timeline, old, new = Timeline(), Line(), Line()
    told(timeline, NOW, line=old)
    late = timeline.moment()
    old.over = True
    before = told(timeline, NOW, line=new)
    timeline.learn(NOW, late, old)
    assert told(timeline, NOW, line=new) > before


def test_the_header_of_an_answer() -> None:
    header = pb.ResponseHeader(cluster_id=2**64 - 5, member_id=9, revision=12, raft_term=3)
    wanted = Header(2**64 - 5, 12, 3)
    for message in (pb.RangeResponse, pb.TxnResponse):
        assert header_of(message(header=header).SerializeToString()) == wanted
        assert header_of(message().SerializeToString()) == Header()
    looked, put, gone = (
        pb.ResponseOp(response_range=pb.RangeResponse()),
        pb.ResponseOp(response_put=pb.PutResponse()),
        pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse()),
    )
    for found, wrote in (([looked], False), ([], False), ([put], True), ([looked, gone], True)):
        answer = pb.TxnResponse(header=header, succeeded=True, responses=found)
        said = header_of(answer.SerializeToString(), transaction=True)
        assert said == Header(2**64 - 5, 12, 3, wrote)
    assert header_of(b"\xff\xff\xff") == Header()
