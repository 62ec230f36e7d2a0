"""No text crashes the reader of procfs' connections, and what it names the kernel can be asked."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

from hypothesis import given, settings
from hypothesis import strategies as st

from libtortie.linux import conntrack_wire as wire
from libtortie.linux.conntrack_listing import listed_flows
from libtortie.linux.flows import ICMP, ICMPS, ICMPV6, SCTP, TCP, UDP, UDPLITE, FlowTuple

VM, VM6 = ip_address("10.65.0.2"), ip_address("fd00:65::2")
BOTH = (VM, VM6)
SEEDS = (
    "ipv4     2 tcp      6 117 ESTABLISHED src=10.65.0.2 dst=10.96.0.1 sport=4000 dport=80 "
    "src=10.66.0.5 dst=10.65.0.2 sport=8080 dport=4000 [ASSURED] mark=7 zone=0 use=2\n",
    "ipv4     2 icmp     1 30 src=10.66.0.5 dst=10.65.0.2 type=8 code=0 id=3353 "
    "src=10.65.0.2 dst=10.66.0.5 type=0 code=0 id=3353 mark=0 zone=0 use=2\n",
    f"ipv6     10 udp      17 29 src={VM6.exploded} dst={VM6.exploded} sport=5 dport=6 "
    f"src={VM6.exploded} dst={VM6.exploded} sport=6 dport=5 mark=0 zone=5 use=2\n",
)


def judge(text: str) -> frozenset[FlowTuple]:
    found = listed_flows(text, BOTH)
    assert len(found) <= text.count("\n") + 1
    for flow in found:
        wire.flow_name(flow)  # raises when a number does not fit
    return found


@given(st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_text(text: str) -> None:
    judge(text)


@given(
    st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 500), st.sampled_from("0123456789abf .:=\n\0é")), max_size=6),
    st.integers(0, 600),
)
@settings(max_examples=1000, deadline=None)
def test_mutated_lines(lines: list[str], changes: list[tuple[int, str]], length: int) -> None:
    text = list("".join(lines))
    for offset, character in changes:
        if offset < len(text):
            text[offset] = character
    judge("".join(text)[:length])


@given(st.sampled_from(SEEDS), st.integers(0, 12), st.integers(0, 99999))
@settings(max_examples=500, deadline=None)
def test_numbers_that_do_not_fit(line: str, which: int, number: int) -> None:
    places = list(re.finditer(r"(?<==)\d+(?= )| \d+(?= )", line))
    place = places[which % len(places)]
    start = place.end() - len(place.group().strip())
    judge(f"{line[:start]}{number}{line[place.end() :]}")


@given(
    st.sampled_from([ICMP, TCP, UDP, ICMPV6, SCTP, UDPLITE]),
    st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)),
    st.integers(0, 1),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_what_the_kernel_writes_is_read(
    protocol: int, ports: tuple[int, int], version: int, data: st.DataObject
) -> None:
    """A line made as the kernel makes it names the tuple that it was made of."""
    kind = (IPv4Address, IPv6Address)[version]
    other = kind(data.draw(st.integers(0, 2 ** (32, 128)[version] - 1)))
    flow = FlowTuple(BOTH[version], other, protocol, *ports)
    answer = flow.inverse()
    line = f"ipv{(4, 6)[version]} {(2, 10)[version]} name {protocol} 30 " + " ".join(
        map(_written, (flow, answer))
    )
    assert judge(f"{line} mark=0 zone=0 use=2\n") == {flow}


def _written(one: FlowTuple) -> str:
    ends = f"src={one.source.exploded} dst={one.destination.exploded}"
    if one.protocol not in ICMPS:
        return f"{ends} sport={one.source_port} dport={one.destination_port}"
    kind, code = divmod(one.destination_port, 256)
    return f"{ends} type={kind} code={code} id={one.source_port}"
