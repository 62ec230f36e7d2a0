"""Every way a VM makes itself heard, and everything that must not be taken for it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from felix_shim.frames import classify, mac_bytes
from felix_shim.model import SignKind
from tests.fakes.frames import (
    OTHER_MAC,
    VM_IP,
    VM_IP6,
    VM_MAC,
    arp,
    ethernet,
    ipv4,
    ipv6,
    neighbour_advertisement,
    neighbour_solicitation,
    rarp,
)

ADDRESSES = (IPv4Address(VM_IP), IPv6Address(VM_IP6))
LINK_LOCAL = "fe80::1"


def heard(frame: bytes) -> SignKind | None:
    return classify(frame, mac_bytes(VM_MAC), ADDRESSES)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (rarp(VM_MAC), SignKind.RARP),
        (rarp(VM_MAC) + bytes(18), SignKind.RARP),
        (arp(VM_MAC, VM_IP, VM_IP), SignKind.GRATUITOUS_ARP),
        (arp(VM_MAC, VM_IP, VM_IP, operation=2), SignKind.GRATUITOUS_ARP),
        (neighbour_advertisement(VM_MAC, VM_IP6, VM_IP6), SignKind.NEIGHBOUR_ADVERTISEMENT),
        (neighbour_advertisement(VM_MAC, LINK_LOCAL, VM_IP6), SignKind.NEIGHBOUR_ADVERTISEMENT),
        (ipv4(VM_MAC, VM_IP, "192.0.2.1"), SignKind.IP_FRAME),
        (ipv6(VM_MAC, VM_IP6, "2001:db8::9"), SignKind.IP_FRAME),
    ],
)
def test_signs(frame: bytes, kind: SignKind) -> None:
    assert heard(frame) is kind


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(rarp(OTHER_MAC), id="another VM's RARP"),
        pytest.param(rarp(OTHER_MAC, source=VM_MAC), id="RARP about another MAC"),
        pytest.param(arp(VM_MAC, "0.0.0.0", VM_IP), id="ARP probe"),
        pytest.param(arp(VM_MAC, VM_IP, "169.254.1.1"), id="who has the gateway"),
        pytest.param(arp(VM_MAC, "10.9.9.9", "10.9.9.9"), id="somebody else's address"),
        pytest.param(arp(OTHER_MAC, VM_IP, VM_IP), id="somebody else's MAC"),
        pytest.param(arp(OTHER_MAC, VM_IP, VM_IP, source=VM_MAC), id="sender MAC differs"),
        pytest.param(ipv4(VM_MAC, "0.0.0.0", "255.255.255.255"), id="DHCP discover"),
        pytest.param(ipv4(VM_MAC, "10.9.9.9", "192.0.2.1"), id="spoofed source"),
        pytest.param(ipv6(VM_MAC, "::", "ff02::16"), id="MLD from unspecified"),
        pytest.param(ipv6(VM_MAC, LINK_LOCAL, "ff02::16"), id="MLD from link-local"),
        pytest.param(ipv6(VM_MAC, LINK_LOCAL, "ff02::2"), id="router solicitation"),
        pytest.param(neighbour_solicitation(VM_MAC, "::", VM_IP6), id="DAD"),
        pytest.param(neighbour_advertisement(VM_MAC, "2001:db8::bad", VM_IP6), id="NA, bad source"),
        pytest.param(neighbour_advertisement(VM_MAC, LINK_LOCAL, "2001:db8::5"), id="NA, other"),
        pytest.param(
            neighbour_advertisement(VM_MAC, LINK_LOCAL, VM_IP6, solicited=True), id="solicited NA"
        ),
        pytest.param(
            neighbour_advertisement(VM_MAC, LINK_LOCAL, VM_IP6, hop_limit=64), id="routed NA"
        ),
        pytest.param(ethernet(VM_MAC, 0x88CC, bytes(46)), id="LLDP"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_not_signs(frame: bytes) -> None:
    assert heard(frame) is None


@pytest.mark.parametrize(
    "frame",
    [
        rarp(VM_MAC),
        arp(VM_MAC, VM_IP, VM_IP),
        ipv4(VM_MAC, VM_IP, "192.0.2.1"),
        ipv6(VM_MAC, VM_IP6, "2001:db8::9"),
    ],
)
def test_a_truncated_frame_is_no_sign(frame: bytes) -> None:
    """Cut anywhere in its headers, no frame counts and none raises."""
    header = 14 + {0x0800: 20, 0x86DD: 40}.get(int.from_bytes(frame[12:14], "big"), 28)
    for length in range(header):
        assert heard(frame[:length]) is None


def test_a_vm_without_ipv6_has_no_ipv6_signs() -> None:
    only = (ip_address(VM_IP),)
    frame = neighbour_advertisement(VM_MAC, VM_IP6, VM_IP6)
    assert classify(frame, mac_bytes(VM_MAC), only) is None


@pytest.mark.parametrize("text", ["", "02:00:00:00:00", "02-00-00-00-00-01", "zz:00:00:00:00:00"])
def test_a_bad_mac_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"MAC|hexadecimal"):
        mac_bytes(text)
