"""Whether an etcd connection is the one that it was, by a stream that lasts as long."""

from __future__ import annotations

from typing import Any

import grpc  # noqa: TID251  # its codes, as its streams end with them
import pytest

from libtortie.datastore.etcd_config import Timing
from libtortie.datastore.etcd_rpc import IN_VAIN, Channel


class Lasting:
    """A stream; `ended` is how."""

    def __init__(self) -> None:
        self.ended: grpc.StatusCode | None = None

    def is_active(self) -> bool:
        return self.ended is None

    def code(self) -> grpc.StatusCode | None:
        return self.ended


def end(stream: Lasting) -> None:
    stream.ended = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Lasting]:
    """Those that a channel opened."""
    opened: list[Lasting] = []

    def open_one(*_: object, **__: object) -> Any:
        opened.append(Lasting())
        return opened[-1]

    monkeypatch.setattr(
        "grpc._channel.Channel.unary_stream", lambda *_, **__: open_one, raising=True
    )
    return opened


@pytest.fixture
def channel(streams: list[Lasting]) -> Channel:
    return Channel("127.0.0.1:1", None, Timing(), None)


def test_it_is_another_one_when_the_stream_broke(channel: Channel, streams: list[Lasting]) -> None:
    first = channel.connection()
    assert channel.connection() is first
    assert not first.over
    end(streams[0])
    second = channel.connection()
    assert second is not first
    assert [first.over, second.over] == [True, False]


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED]
)
def test_a_server_that_offers_no_such_stream_tells_of_nothing(
    channel: Channel, streams: list[Lasting], code: grpc.StatusCode
) -> None:
    first = channel.connection()
    streams[0].ended = code
    assert not first.over
    assert channel.connection() is first
    assert len(streams) == 1


def test_streams_that_always_break_beside_answers_are_not_opened_for_ever(
    channel: Channel, streams: list[Lasting]
) -> None:
    """A proxy's: else no answer would count for longer than itself."""
    for _ in range(IN_VAIN + 2):
        line = channel.connection()
        streams[-1].ended = grpc.StatusCode.UNAVAILABLE
        channel.served(line)
    assert len(streams) == IN_VAIN
    assert not line.over, "it is taken for one that lasts"


def test_one_that_broke_once_is_looked_at_again(channel: Channel, streams: list[Lasting]) -> None:
    """A server's that is killed now and then."""
    for number in range(3 * IN_VAIN):
        line = channel.connection()
        channel.served(line)
        streams[-1].ended = grpc.StatusCode.UNAVAILABLE
        channel.served(line)
        assert len(streams) == number + 1
