"""Which entries of procfs' listing of connections are an address's."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from libtortie.linux.conntrack_listing import listed_flows
from libtortie.linux.flows import ICMP, ICMPV6, SCTP, TCP, UDP, UDPLITE, FlowTuple

VM, OTHER, SERVICE, POD = map(ip_address, ("10.65.0.2", "10.65.0.25", "10.96.0.1", "10.66.0.5"))
VM6, POD6 = ip_address("fd00:65::2"), ip_address("fd00:66::5")
V6 = "fd00:0065:0000:0000:0000:0000:0000:0002", "fd00:0066:0000:0000:0000:0000:0000:0005"
LISTED = f"""\
ipv4     2 tcp      6 117 ESTABLISHED src=10.65.0.2 dst=10.96.0.1 sport=4000 dport=80 \
src=10.66.0.5 dst=10.65.0.2 sport=8080 dport=4000 [ASSURED] mark=7 zone=0 use=2
ipv4     2 tcp      6 src=10.65.0.2 dst=10.66.0.5 sport=4001 dport=80 packets=3 bytes=180 \
src=10.66.0.5 dst=10.65.0.2 sport=80 dport=4001 packets=2 bytes=90 [OFFLOAD] mark=0 use=2
ipv4     2 udp      17 29 src=10.66.0.5 dst=10.96.0.1 sport=53 dport=54 zone-orig=6 [UNREPLIED] \
src=10.65.0.2 dst=10.66.0.5 sport=54 dport=53 mark=0 use=2
ipv4     2 icmp     1 30 src=10.66.0.5 dst=10.65.0.2 type=8 code=0 id=3353 \
src=10.65.0.2 dst=10.66.0.5 type=0 code=0 id=3353 mark=0 secctx=system_u:object_r:x zone=0 use=2
ipv4     2 sctp     132 100 ESTABLISHED src=10.66.0.5 dst=10.96.0.1 sport=5 dport=80 \
src=10.96.0.1 dst=10.65.0.2 sport=80 dport=5 mark=0 zone=0 use=2
ipv4     2 gre      47 29 timeout=30, stream_timeout=180 src=10.65.0.2 dst=10.66.0.5 srckey=0x0 \
dstkey=0x0 [UNREPLIED] src=10.66.0.5 dst=10.65.0.2 srckey=0x0 dstkey=0x0 mark=0 zone=0 use=2
ipv4     2 unknown  50 599 src=10.65.0.2 dst=10.66.0.5 [UNREPLIED] \
src=10.66.0.5 dst=10.65.0.2 mark=0 zone=0 use=2
ipv4     2 udp      17 29 src=10.65.0.25 dst=10.66.0.5 sport=1 dport=2 \
src=10.66.0.5 dst=10.65.0.25 sport=2 dport=1 mark=0 zone=0 use=2
ipv6     10 icmpv6   58 30 src={V6[0]} dst={V6[1]} type=128 code=0 id=7 \
src={V6[1]} dst={V6[0]} type=129 code=0 id=7 mark=0 zone=0 use=2
ipv6     10 udplite  136 30 src={V6[1]} dst={V6[0]} sport=9 dport=10 \
src={V6[0]} dst={V6[1]} sport=10 dport=9 mark=0 zone=0 use=2
"""
OF_VM = {
    FlowTuple(VM, SERVICE, TCP, 4000, 80),
    FlowTuple(VM, POD, TCP, 4001, 80),
    FlowTuple(POD, SERVICE, UDP, 53, 54),
    FlowTuple(POD, VM, ICMP, 3353, 8 << 8),
    FlowTuple(POD, SERVICE, SCTP, 5, 80),
}
OF_VM6 = {FlowTuple(VM6, POD6, ICMPV6, 7, 128 << 8), FlowTuple(POD6, VM6, UDPLITE, 9, 10)}


def test_an_address_is_found_at_each_of_the_four_ends() -> None:
    assert listed_flows(LISTED, [VM]) == OF_VM
    assert listed_flows(LISTED, [VM6]) == OF_VM6
    assert listed_flows(LISTED, [VM, VM6]) == OF_VM | OF_VM6


def test_an_address_is_not_found_in_a_longer_one() -> None:
    assert listed_flows(LISTED, [ip_address("0.65.0.2"), ip_address("fd00:65::")]) == frozenset()
    assert listed_flows(LISTED, [OTHER]) == {FlowTuple(OTHER, POD, UDP, 1, 2)}


@pytest.mark.parametrize(
    "change",
    [
        ("sport=1 ", "sport=99999 "),
        ("src=10.65.0.25 ", "src=fd00::1 "),
        ("src=10.65.0.25 ", "src=10.65.0 "),
        (" 17 ", " 1 "),
        ("sport=1 dport=2", "type=1 code=2 id=3"),
        ("ipv4", "ipx"),
    ],
)
def test_a_line_that_cannot_be_is_passed_over(change: tuple[str, str]) -> None:
    (line,) = (one for one in LISTED.splitlines() if "10.65.0.25" in one)
    old, new = change
    broken = line.replace(old, new, 1)
    assert broken != line
    assert listed_flows(broken, [OTHER]) == frozenset()


@pytest.mark.parametrize("kind", ["type=256 code=0", "type=8 code=256"])
def test_an_icmp_type_has_eight_bits(kind: str) -> None:
    (line,) = (one for one in LISTED.splitlines() if " icmp " in one)
    assert listed_flows(line.replace("type=8 code=0", kind, 1), [VM]) == frozenset()
