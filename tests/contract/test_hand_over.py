"""Connections on their way between two agents: real TLS, tables in memory."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest

from felix_shim import hand_over
from felix_shim.exchange import Exchange, Permit, Wish
from felix_shim.hand_over import HandOver, Pace
from felix_shim.model import EndpointId
from felix_shim.peer_credentials import Credentials, Files
from felix_shim.peer_messages import FLOWS_IN_FRAME, Batch, End, Message, Request, batches
from felix_shim.peers import Limits, Link, PeerServer, dial
from libtortie.errors import KernelError, Unauthorized
from libtortie.linux.flows import TCP, Flow, FlowTuple, Status, TcpState, TcpTracking
from libtortie.metrics import Counter
from libtortie.model.ipam import IPAddress
from tests.fakes.agent_world import RecordingLog
from tests.fakes.certificates import Authority
from tests.fakes.conntrack import FakeTable
from tests.fakes.node_process import until
from tests.fakes.patience import PATIENCE
from tests.fakes.tcp_proxy import TcpProxy

VM, POD = ip_address("10.65.0.2"), ip_address("10.66.0.5")
TARGET = EndpointId("default", "target")
LIMITS = Limits(step=PATIENCE, idle=PATIENCE)
PACE = Pace(
    interval=0.02,
    first_pause=0.01,
    longest_pause=0.05,
    late=PATIENCE,
    answer=PATIENCE,
    settle=0.01,
)
HERE = IPv4Address("127.0.0.1")
PERMIT = Permit("target", "vmi-1", frozenset({VM}))
WISH = Wish("mig-1", "vmi-1", (VM,), "source", HERE)


def flow(port: int) -> Flow:
    one = FlowTuple(VM, POD, TCP, port, 80)
    tcp = TcpTracking(TcpState.ESTABLISHED).liberal()
    return Flow(one, one.inverse(), 1000, Status.SEEN_REPLY | Status.ASSURED, tcp)


def spawn(name: str, body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


@dataclass
class Node:
    """An agent's part in this."""

    name: str
    log: RecordingLog = field(default_factory=RecordingLog)
    table: FakeTable = field(default_factory=FakeTable)
    hand_over: HandOver = field(init=False)


@dataclass
class Pair:
    """A source that serves and a target that asks, through a relay that can be cut."""

    directory: Path
    stack: ExitStack
    pace: Pace = PACE
    source: Node = field(default_factory=lambda: Node("source"))
    target: Node = field(default_factory=lambda: Node("target"))
    server: PeerServer = field(init=False)
    proxy: TcpProxy = field(init=False)
    dialled: int = 0

    def __post_init__(self) -> None:
        self.authority = Authority(self.directory, "peers")
        for node in (self.source, self.target):
            node.hand_over = HandOver(
                node.table, self.dial, spawn, node.log, time.monotonic, self.pace
            )
            thread = spawn("hand-over", node.hand_over.run)
            self.stack.callback(thread.join)
            self.stack.callback(node.hand_over.stop)
        self.server = PeerServer(
            "127.0.0.1",
            0,
            self.credentials("source"),
            self.source.hand_over.answer,
            spawn,
            self.source.log,
            LIMITS,
        )
        thread = spawn("server", self.server.run)
        self.stack.callback(thread.join)
        self.stack.callback(self.server.stop)
        until("the source listens", lambda: self.server.port)
        self.proxy = TcpProxy(self.server.port)
        self.stack.callback(self.proxy.close)

    def credentials(self, node: str) -> Credentials:
        pair = self.authority.node(node)
        files = Files(self.authority.cert, pair.cert, pair.key)
        return Credentials(files, node, RecordingLog(), time.time)

    def dial(self, wish: Wish) -> Link:
        if self.dialled == 0:
            self.caller = self.credentials("target")
        self.dialled += 1
        return dial(wish.source, str(wish.source_address), self.proxy.port, self.caller, LIMITS)

    def permit(self, permit: Permit | None = PERMIT) -> None:
        self.source.hand_over.want(Exchange(permits={"mig-1": permit} if permit else {}))

    def want(self, wish: Wish | None) -> None:
        self.target.hand_over.want(Exchange(wishes={TARGET: wish} if wish else {}))

    def at_source(self, *flows: Flow) -> None:
        self.source.table.entries = {one.original: one for one in flows}

    def at_target(self) -> set[Flow]:
        return set(self.target.table.entries.values())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def test_connections_come_before_the_vm_and_keep_up(pair: Pair) -> None:
    pair.at_source(flow(1), flow(2))
    pair.permit()
    pair.want(WISH)
    until("both are here", lambda: pair.at_target() == {flow(1), flow(2)})
    pair.at_source(flow(2), flow(3))
    until("a new one comes, an old one goes", lambda: pair.at_target() == {flow(2), flow(3)})
    assert pair.source.log.of("cut_over_noticed") == []


def test_the_last_copy_is_taken_when_the_vm_was_heard(tmp_path: Path) -> None:
    """Between two copies there is an hour: it is the notice that fetches the last one."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, replace(PACE, interval=3600.0))
        pair.at_source(flow(1))
        pair.permit()
        pair.want(WISH)
        until("the first is here", lambda: pair.at_target() == {flow(1)})
        pair.at_source(flow(1), flow(2))
        pair.want(replace(WISH, arrived=True))
        until("the last came", lambda: pair.at_target() == {flow(1), flow(2)})
        until("it is over", lambda: _ended(pair, "whole"))
        assert len(pair.source.log.of("cut_over_noticed")) == 1
        assert [line["last"] for line in pair.target.log.of("conntrack_copied")] == [False, True]
        pair.want(replace(WISH, arrived=True))
        assert pair.dialled == 1


def test_the_source_knows_at_once_and_reads_its_table_later(tmp_path: Path) -> None:
    """A reading holds up what the node forwards: the routes go first."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, replace(PACE, interval=3600.0, settle=0.3))
        noticed: list[float] = []
        pair.server.notice = lambda *_: noticed.append(time.monotonic())
        pair.permit()
        pair.want(WISH)
        until("the first copy was asked for", lambda: pair.source.table.read_at)
        pair.want(replace(WISH, arrived=True))
        until("the last came", lambda: _ended(pair, "whole"))
        assert pair.source.table.read_at[-1] - noticed[0] >= 0.3
        assert len(pair.source.table.read_at) == 2


def test_who_stops_does_not_wait_for_the_routes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, replace(PACE, settle=3600.0))
        pair.permit()
        pair.want(replace(WISH, arrived=True))
        until("the source was told", lambda: pair.source.log.of("cut_over_noticed"))
        pair.source.hand_over.stop()
        until("it has read", lambda: pair.source.table.read_at)


def _ended(pair: Pair, result: str) -> float:
    _, ended = pair.target.hand_over.metrics()
    assert isinstance(ended, Counter)
    return ended.value(result)


def test_a_source_that_is_not_named_any_more_is_still_the_source(pair: Pair) -> None:
    """After the cut-over the VMI says that it is here."""
    pair.at_source(flow(1))
    pair.permit()
    pair.want(WISH)
    until("it is here", lambda: pair.at_target() == {flow(1)})
    pair.want(replace(WISH, source="", source_address=None, arrived=True))
    until("the last came", lambda: _ended(pair, "whole"))


def test_a_lost_channel_is_made_again(pair: Pair) -> None:
    pair.at_source(flow(1))
    pair.permit()
    pair.want(WISH)
    until("it is here", lambda: pair.at_target() == {flow(1)})
    pair.proxy.cut()
    pair.at_source(flow(1), flow(2))
    until("the next came, too", lambda: pair.at_target() == {flow(1), flow(2)})
    assert pair.dialled > 1


def test_nobody_waits_for_a_silent_source(pair: Pair) -> None:
    """What the reconciler calls returns although the source never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pair.proxy.port = silent.getsockname()[1]
        pair.want(WISH)
        until("it is asked", lambda: pair.dialled)
        pair.want(replace(WISH, arrived=True))
        pair.want(None)


def test_what_cannot_be_had_in_time_is_given_up_and_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, replace(PACE, late=0.05))
        pair.proxy.close()
        pair.want(replace(WISH, arrived=True))
        until("it is told", lambda: pair.target.log.of("conntrack_not_copied"))
        assert _ended(pair, "lost") == 1
        assert pair.target.log.of("hand_over_waits")


def test_a_source_that_knows_of_no_migration_yet_is_asked_again(pair: Pair) -> None:
    pair.at_source(flow(1))
    pair.want(WISH)
    until("it is refused", lambda: pair.target.log.of("hand_over_waits"))
    assert pair.at_target() == set()
    pair.permit()
    until("it is here", lambda: pair.at_target() == {flow(1)})


@pytest.mark.parametrize(
    "permit",
    [
        None,
        replace(PERMIT, node="another"),
        replace(PERMIT, vmi_uid="vmi-2"),
        replace(PERMIT, addresses=frozenset({POD})),
    ],
)
def test_a_node_gets_nothing_of_a_vm_that_does_not_come_to_it(
    pair: Pair, permit: Permit | None
) -> None:
    pair.at_source(flow(1))
    pair.permit(permit)
    pair.want(WISH)
    until("it is refused", lambda: pair.target.log.of("hand_over_waits"))
    assert "mig-1" in str(pair.target.log.of("hand_over_waits")[0]["reason"])
    assert pair.at_target() == set()
    until("and told there", lambda: pair.source.log.of("peer_refused"))


def test_a_vm_that_does_not_come_is_asked_for_no_longer(pair: Pair) -> None:
    pair.at_source(flow(1))
    pair.permit()
    pair.want(WISH)
    until("it is here", lambda: pair.at_target() == {flow(1)})
    pair.want(None)
    another = replace(WISH, migration_uid="mig-2")
    pair.source.hand_over.want(Exchange(permits={"mig-2": PERMIT}))
    pair.at_source(flow(9))
    pair.want(another)
    until("the other migration's is here", lambda: flow(9) in pair.at_target())


def test_a_table_that_cannot_be_read_is_told_to_the_other_side(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(addresses: object) -> tuple[Flow, ...]:
        raise KernelError("table on fire")

    monkeypatch.setattr(pair.source.table, "flows", broken)
    pair.permit()
    pair.want(WISH)

    def told() -> bool:
        return any("on fire" in str(one) for one in pair.target.log.of("hand_over_waits"))

    until("it is told", told)


def test_what_the_kernel_refuses_is_told(pair: Pair) -> None:
    pair.at_source(flow(1), flow(2))
    pair.target.table.refuses = {flow(1).original}
    pair.permit()
    pair.want(WISH)
    until("the other is here", lambda: pair.at_target() == {flow(2)})
    (line, *_) = until("it is told", lambda: pair.target.log.of("conntrack_incomplete"))
    assert (line["failed"], line["reason"]) == (1, "no memory")


def test_an_answer_without_a_permit_is_never_begun(pair: Pair) -> None:
    with pytest.raises(Unauthorized):
        next(pair.source.hand_over.answer("target", Request("mig-1", "vmi-1", (VM,))))


# -- sources that are large, slow or hostile ---------------------------------------------------


def whole(*flows: Flow) -> Iterator[Message]:
    yield from batches(flows)


def reason(pair: Pair, words: str) -> bool:
    """Whether the target told of trouble in these words."""
    return any(words in str(one["reason"]) for one in pair.target.log.of("hand_over_waits"))


def test_of_a_huge_table_the_most_is_sent_and_the_rest_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "MOST_FLOWS", 3)
    pair.at_source(*map(flow, range(1, 6)))
    pair.permit()
    pair.want(WISH)
    until("three are here", lambda: pair.at_target() == {flow(1), flow(2), flow(3)})
    assert pair.source.log.of("conntrack_cut_short")


def test_a_large_table_comes_whole(pair: Pair) -> None:
    """In many frames, through a relay that cuts them anywhere."""
    flows = [flow(port) for port in range(1, 5 * FLOWS_IN_FRAME)]
    pair.at_source(*flows)
    pair.permit()
    pair.want(WISH)
    until("all are here", lambda: len(pair.target.table.entries) == len(flows))
    assert pair.at_target() == set(flows)


def endless() -> Iterator[Message]:
    for start in itertools.count(1):
        yield Batch((flow(start % 60000 + 1),))


HOSTILE: dict[str, Callable[[], Iterator[Message]]] = {
    "more than there can be": endless,
    "another number than came": lambda: iter([Batch((flow(1),)), End(7)]),
    "an end without a beginning": lambda: iter([End(1)]),
    "a question": lambda: iter([Request("mig-1", "vmi-1", (VM,))]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_of_an_answer_that_cannot_be_nothing_is_taken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And what the next honest answer brings is."""
    monkeypatch.setattr(hand_over, "MOST_FLOWS", 100)
    honest = pair.server.answer
    pair.server.answer = lambda node, request: HOSTILE[kind]()
    pair.at_source(flow(5))
    pair.permit()
    pair.want(WISH)
    until("it is told", lambda: reason(pair, "answers what was not asked"))
    assert pair.at_target() == set()
    pair.server.answer = honest
    until("the honest one is here", lambda: pair.at_target() == {flow(5)})


def test_a_source_that_never_comes_to_an_end_is_left(tmp_path: Path) -> None:
    """Each of its words comes in time; the answer as a whole does not."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, replace(PACE, answer=0.1))
        over = threading.Event()
        stack.callback(over.set)

        def dripping(node: str, request: Request) -> Iterator[Message]:
            for start in itertools.count(1):
                yield Batch((flow(start % 60000 + 1),))
                over.wait(0.01)

        honest, pair.server.answer = pair.server.answer, dripping
        pair.at_source(flow(5))
        pair.permit()
        pair.want(WISH)
        until("it is told", lambda: reason(pair, "no answer in time"))
        assert pair.at_target() == set()
        pair.server.answer = honest


def test_connections_of_others_are_told_and_not_made(pair: Pair) -> None:
    stranger = FlowTuple(ip_address("10.99.0.1"), POD, TCP, 1, 80)
    foreign = replace(flow(1), original=stranger, reply=stranger.inverse())
    pair.server.answer = lambda node, request: whole(foreign, flow(2))
    pair.want(WISH)
    until("its own is here", lambda: pair.at_target() == {flow(2)})
    (line, *_) = until("it is told", lambda: pair.target.log.of("conntrack_incomplete"))
    assert line["foreign"] == 1


def test_a_large_table_is_asked_for_less_often(tmp_path: Path) -> None:
    """A copy that takes a second is not begun again a second later."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, replace(PACE, interval=0.0))
        asked: list[float] = []
        real = pair.target.table.flows

        def slow(addresses: Iterable[IPAddress]) -> tuple[Flow, ...]:
            asked.append(time.monotonic())
            threading.Event().wait(0.05)
            return real(addresses)

        pair.target.table.flows = slow  # type: ignore[method-assign]  # one table of this test
        pair.at_source(flow(1))
        pair.permit()
        pair.want(WISH)
        until("it is asked again", lambda: len(asked) > 4)
        assert all(b - a > 3 * 0.05 for a, b in itertools.pairwise(asked))
