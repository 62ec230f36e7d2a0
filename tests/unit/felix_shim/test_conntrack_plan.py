"""Which of two connection-table entries holds, and which can move at all."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from felix_shim.drivers.conntrack import Copy, Outcome, Step, forget, plan, portable
from felix_shim.flow_codec import decode_flow, encode_flow
from libtortie.errors import Malformed
from libtortie.linux.flows import (
    ICMP,
    ICMPV6,
    SCTP,
    TCP,
    TRACKED,
    UDP,
    Flow,
    FlowTuple,
    SctpTracking,
    Status,
    TcpFlag,
    TcpState,
    TcpTracking,
)
from tests.fakes.conntrack import FakeTable, indexed

VM, POD, OTHER_POD, SERVICE, NODE, CLIENT = (
    ip_address(one)
    for one in ("10.65.0.2", "10.66.0.5", "10.66.0.6", "10.96.0.1", "172.31.0.11", "192.0.2.7")
)
ADDRESSES = frozenset({VM})
SEEN = Status.SEEN_REPLY | Status.ASSURED
OUT = FlowTuple(VM, SERVICE, TCP, 40000, 80)
TO_POD = FlowTuple(POD, VM, TCP, 8080, 40000)


def tcp(state: TcpState = TcpState.ESTABLISHED) -> TcpTracking:
    return TcpTracking(state).liberal()


def flow(
    original: FlowTuple = OUT,
    reply: FlowTuple | None = None,
    state: TcpState = TcpState.ESTABLISHED,
    timeout: int = 1000,
) -> Flow:
    return Flow(original, reply or original.inverse(), timeout, SEEN, tcp(state))


def decided(incoming: Flow, *present: Flow, arrived: bool = False) -> Step:
    return plan(incoming, indexed(*present), ADDRESSES, arrived=arrived)


# -- what can move ---------------------------------------------------------------------------


def test_what_the_vm_opened_moves_with_its_rewriting() -> None:
    assert portable(flow(OUT, TO_POD), ADDRESSES) == flow(OUT, TO_POD)


def test_what_left_under_the_nodes_address_stays_with_the_node() -> None:
    answer = FlowTuple(CLIENT, NODE, TCP, 80, 61000)
    masqueraded = flow(FlowTuple(VM, CLIENT, TCP, 40000, 80), answer)
    assert portable(masqueraded, ADDRESSES) is None


def test_what_reaches_the_vm_through_a_service_moves_as_it_arrives() -> None:
    answer = FlowTuple(VM, CLIENT, TCP, 8080, 50000)
    served = flow(FlowTuple(CLIENT, SERVICE, TCP, 50000, 80), answer)
    assert portable(served, ADDRESSES) == flow(answer.inverse(), answer)


def test_what_only_passes_does_not_move() -> None:
    assert portable(flow(FlowTuple(POD, CLIENT, TCP, 1, 2)), ADDRESSES) is None


def test_windows_are_not_judged_after_a_move() -> None:
    strict = replace(flow(), tcp=TcpTracking(TcpState.ESTABLISHED, (7, 7)))
    moved = portable(strict, ADDRESSES)
    assert moved is not None and moved.tcp is not None
    assert moved.tcp.flags == (TcpFlag.BE_LIBERAL, TcpFlag.BE_LIBERAL)


# -- which of two holds ----------------------------------------------------------------------


def test_a_new_entry_is_made() -> None:
    assert decided(flow()) == Step(made=flow())


@pytest.mark.parametrize("arrived", [False, True])
def test_the_same_entry_is_left_alone(arrived: bool) -> None:
    assert decided(flow(timeout=1050), flow(), arrived=arrived) == Step()


@pytest.mark.parametrize("arrived", [False, True])
def test_the_further_state_of_one_connection_holds(arrived: bool) -> None:
    opening, open_, ending = (
        flow(state=state, timeout=left)
        for state, left in (
            (TcpState.SYN_SENT2, 60),
            (TcpState.ESTABLISHED, 1000),
            (TcpState.FIN_WAIT, 100),
        )
    )
    assert decided(open_, opening, arrived=arrived) == Step(changed=open_)
    assert decided(opening, open_, arrived=arrived) == Step()
    assert decided(ending, open_, arrived=arrived) == Step(changed=ending)


def test_an_ended_connection_comes_back_only_where_the_vm_is_not_yet() -> None:
    """The port was used again at the source; at the target the end is newer."""
    ended = flow(state=TcpState.TIME_WAIT, timeout=60)
    assert decided(flow(), ended) == Step(changed=flow())
    assert decided(flow(), ended, arrived=True) == Step()


def test_a_udp_flow_keeps_what_either_node_saw() -> None:
    one = FlowTuple(VM, POD, UDP, 1, 2)
    silent, answered = (Flow(one, one.inverse(), 30, status) for status in (Status.NONE, SEEN))
    assert decided(answered, silent, arrived=True) == Step(changed=answered)
    assert decided(silent, answered, arrived=True) == Step()


def test_time_that_is_worth_it_is_given() -> None:
    assert decided(flow(timeout=2000), flow()) == Step(changed=flow(timeout=2000))


@pytest.mark.parametrize("arrived", [False, True])
def test_directions_guessed_from_the_middle_give_way(arrived: bool) -> None:
    plain = FlowTuple(VM, POD, TCP, 40000, 80)
    guessed = flow(plain.inverse(), plain)
    assert decided(flow(plain), guessed, arrived=arrived) == Step((guessed,), made=flow(plain))


def test_the_vms_own_old_entry_gives_way_until_it_speaks_here() -> None:
    old = flow(OUT, FlowTuple(OTHER_POD, VM, TCP, 8080, 40000))
    fresh = flow(OUT, TO_POD)
    assert decided(fresh, old) == Step((old,), made=fresh)
    assert decided(fresh, old, arrived=True) == Step()


def test_two_old_entries_in_the_way_both_go() -> None:
    one = flow(OUT, FlowTuple(OTHER_POD, VM, TCP, 8080, 40000))
    other = flow(TO_POD.inverse(), TO_POD)
    step = decided(flow(OUT, TO_POD), one, other)
    assert set(step.gone) == {one, other} and step.made == flow(OUT, TO_POD)


def test_a_client_of_this_nodes_own_keeps_its_rewriting() -> None:
    """It reaches the VM by a Service's address, which was and is rewritten here."""
    answer = FlowTuple(VM, CLIENT, TCP, 8080, 50000)
    here = flow(FlowTuple(CLIENT, SERVICE, TCP, 50000, 80), answer)
    assert decided(flow(answer.inverse(), answer), here) == Step()


# -- a whole copy ----------------------------------------------------------------------------


def numbered(count: int) -> list[Flow]:
    return [flow(FlowTuple(VM, POD, TCP, 1000 + one, 80)) for one in range(count)]


def test_a_copy_is_taken_whole_and_again_without_effect() -> None:
    table = FakeTable()
    copy = Copy(table, ADDRESSES)
    assert copy.take(numbered(3), arrived=False) == Outcome(made=3)
    assert copy.take(numbered(3), arrived=False) == Outcome(kept=3)
    assert list(table.entries.values()) == numbered(3)


def test_what_ended_at_the_source_goes_until_the_vm_is_here() -> None:
    own = flow(FlowTuple(CLIENT, VM, TCP, 9, 80))
    table = FakeTable({own.original: own})
    copy = Copy(table, ADDRESSES)
    copy.take(numbered(3), arrived=False)
    assert copy.take(numbered(2), arrived=False) == Outcome(kept=2, gone=1)
    assert copy.take(numbered(1), arrived=True) == Outcome(kept=1)
    assert set(table.entries) == {own.original, *(one.original for one in numbered(2))}


def test_one_refused_entry_stops_no_other() -> None:
    flows = numbered(3)
    table = FakeTable(refuses={flows[1].original})
    outcome = Copy(table, ADDRESSES).take(flows, arrived=False)
    assert outcome == Outcome(made=2, failed=1, error="no memory")


def test_a_source_cannot_make_entries_of_others() -> None:
    table = FakeTable()
    strangers = [
        flow(FlowTuple(CLIENT, POD, TCP, 1, 22)),
        flow(FlowTuple(CLIENT, VM, TCP, 1, 22), FlowTuple(POD, CLIENT, TCP, 22, 1)),
    ]
    assert Copy(table, ADDRESSES).take(strangers, arrived=False) == Outcome(foreign=2)
    assert not table.entries


def test_an_address_is_forgotten_wherever_it_stands() -> None:
    stays = flow(FlowTuple(POD, CLIENT, TCP, 1, 2))
    served = flow(
        FlowTuple(CLIENT, SERVICE, TCP, 50000, 80), FlowTuple(VM, CLIENT, TCP, 8080, 50000)
    )
    table = FakeTable({one.original: one for one in (stays, served, *numbered(2))})
    assert forget(table, [VM]) == 3
    assert list(table.entries.values()) == [stays]


# -- the codec -------------------------------------------------------------------------------

PORTS = st.integers(0, 0xFFFF)
V4 = st.ip_addresses(v=4)
V6 = st.ip_addresses(v=6)


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    addresses = draw(st.sampled_from([V4, V6]))
    protocol = draw(st.sampled_from(sorted(TRACKED)))
    original, reply = (
        FlowTuple(draw(addresses), draw(addresses), protocol, draw(PORTS), draw(PORTS))
        for _ in range(2)
    )
    flags = st.integers(0, 15).map(TcpFlag)
    scales = st.integers(0, 14)
    tracking = st.builds(
        TcpTracking,
        st.sampled_from(TcpState),
        st.tuples(scales, scales),
        st.tuples(flags, flags),
    )
    tags = st.integers(0, 0xFFFFFFFF)
    association = st.builds(SctpTracking, st.integers(0, 255), st.tuples(tags, tags))
    return Flow(
        original,
        reply,
        draw(st.integers(0, 432000)),
        draw(st.sampled_from([Status.NONE, Status.SEEN_REPLY, SEEN])),
        tcp=draw(st.none() | tracking) if protocol == TCP else None,
        sctp=draw(st.none() | association) if protocol == SCTP else None,
        mark=draw(st.integers(0, 0xFFFFFFFF)),
        labels=draw(st.binary(max_size=16)),
    )


@given(flows())
def test_an_entry_survives_the_way(one: Flow) -> None:
    assert decode_flow(encode_flow(one)) == one


@given(flows(), st.data())
def test_a_broken_entry_is_malformed_or_another_entry(one: Flow, data: st.DataObject) -> None:
    """Whatever one field becomes, nothing else is raised."""
    junk = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats()
    item = encode_flow(one)
    index = data.draw(st.integers(0, len(item) - 1))
    inner = item[index]
    if isinstance(inner, list) and data.draw(st.booleans()):
        inner[data.draw(st.integers(0, len(inner) - 1))] = data.draw(junk)
    else:
        item[index] = data.draw(junk | st.lists(junk, max_size=6))
    try:
        decoded = decode_flow(item)
    except Malformed:
        return
    assert encode_flow(decoded)


@pytest.mark.parametrize("item", [None, [], {}, [[], []], [1] * 8, "x" * 8])
def test_no_entry_at_all(item: object) -> None:
    with pytest.raises(Malformed):
        decode_flow(item)


@pytest.mark.parametrize(("protocol", "request_type", "answer"), [(ICMP, 8, 0), (ICMPV6, 128, 129)])
def test_the_answer_to_an_echo_request(protocol: int, request_type: int, answer: int) -> None:
    one = FlowTuple(VM, POD, protocol, 77, request_type << 8)
    assert one.inverse() == FlowTuple(POD, VM, protocol, 77, answer << 8)
    assert one.inverse().inverse() == one
