"""Which frames are a sign that a VM runs behind its veth. Pure; the bytes are a stranger's.

A freshly resumed guest makes itself heard in four ways:

* RARP (RFC 903, ethertype 0x8035): QEMU sends five in the guest's name at resume. They carry a
  hardware address and no IP address, so the sender hardware address is what must be the VM's.
* A gratuitous ARP (RFC 5227 §3): sender and target protocol address are the same address.
* An unsolicited neighbour advertisement (RFC 4861 §7.2.6): ICMPv6 type 136, S flag clear.
* Any IP packet from its MAC and one of its addresses.

Duplicate address detection, router solicitations and MLD reports leave a bridge or a pod's
network stack before any guest runs: their source is `::` or a link-local address, never one of
the VM's. ARP probes (sender 0.0.0.0) say nothing either.

`classify` never raises, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address

from felix_shim.model import SignKind
from libtortie.model.ipam import IPAddress

ETH_P_IP = 0x0800
ETH_P_ARP = 0x0806
ETH_P_RARP = 0x8035
ETH_P_IPV6 = 0x86DD

ETHERNET_HEADER = 14
ARP_LENGTH = 28
IPV4_HEADER = 20
IPV6_HEADER = 40
ADVERTISEMENT_LENGTH = 24

_ARP_ETHERNET_IPV4 = bytes.fromhex("000108000604")
_ICMPV6 = 58
_NEIGHBOUR_ADVERTISEMENT = 136
_SOLICITED = 0x40
_HOP_LIMIT = 255


def mac_bytes(mac: str) -> bytes:
    """The six bytes of `aa:bb:cc:dd:ee:ff`. Raises ValueError."""
    raw = bytes.fromhex(mac.replace(":", ""))
    if len(raw) != 6 or mac.count(":") != 5:
        raise ValueError(f"{mac!r} is not a MAC address")
    return raw


def classify(frame: bytes, mac: bytes, addresses: Collection[IPAddress]) -> SignKind | None:
    """What sign of the VM with this MAC and these addresses an Ethernet frame is, if any."""
    if len(frame) < ETHERNET_HEADER or frame[6:12] != mac:
        return None
    payload = frame[ETHERNET_HEADER:]
    match int.from_bytes(frame[12:14], "big"):
        case 0x8035:
            return _rarp(payload, mac)
        case 0x0806:
            return _arp(payload, mac, addresses)
        case 0x0800:
            return _ipv4(payload, addresses)
        case 0x86DD:
            return _ipv6(payload, addresses)
    return None


def _rarp(packet: bytes, mac: bytes) -> SignKind | None:
    if len(packet) < ARP_LENGTH or packet[:6] != _ARP_ETHERNET_IPV4 or packet[8:14] != mac:
        return None
    return SignKind.RARP


def _arp(packet: bytes, mac: bytes, addresses: Collection[IPAddress]) -> SignKind | None:
    if len(packet) < ARP_LENGTH or packet[:6] != _ARP_ETHERNET_IPV4 or packet[8:14] != mac:
        return None
    sender, target = packet[14:18], packet[24:28]
    if sender != target or IPv4Address(sender) not in addresses:
        return None
    return SignKind.GRATUITOUS_ARP


def _ipv4(packet: bytes, addresses: Collection[IPAddress]) -> SignKind | None:
    if len(packet) < IPV4_HEADER or packet[0] >> 4 != 4 or packet[0] & 0x0F < 5:
        return None
    return SignKind.IP_FRAME if IPv4Address(packet[12:16]) in addresses else None


def _ipv6(packet: bytes, addresses: Collection[IPAddress]) -> SignKind | None:
    if len(packet) < IPV6_HEADER or packet[0] >> 4 != 6:
        return None
    source = IPv6Address(packet[8:24])
    advertised = _advertised(packet)
    if advertised in addresses and (source in addresses or source.is_link_local):
        return SignKind.NEIGHBOUR_ADVERTISEMENT
    return SignKind.IP_FRAME if source in addresses else None


def _advertised(packet: bytes) -> IPv6Address | None:
    """The target of an unsolicited neighbour advertisement (hop limit 255, RFC 4861 §7.1.2)."""
    body = packet[IPV6_HEADER:]
    if len(body) < ADVERTISEMENT_LENGTH or packet[6] != _ICMPV6 or packet[7] != _HOP_LIMIT:
        return None
    if body[0] != _NEIGHBOUR_ADVERTISEMENT or body[4] & _SOLICITED:
        return None
    return IPv6Address(body[8:24])
