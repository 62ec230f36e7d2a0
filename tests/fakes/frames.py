"""Frames a guest, QEMU or a bystander puts on a veth, built field by field."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

VM_MAC = "02:aa:bb:cc:dd:01"
OTHER_MAC = "02:aa:bb:cc:dd:99"
VM_IP = "10.65.0.2"
VM_IP6 = "2001:db8:65::2"

_BROADCAST = "ff:ff:ff:ff:ff:ff"


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def ethernet(
    source: str, ethertype: int, payload: bytes, *, destination: str = _BROADCAST
) -> bytes:
    return _mac(destination) + _mac(source) + ethertype.to_bytes(2, "big") + payload


def rarp(mac: str, *, source: str = "") -> bytes:
    """QEMU's announcement: RARP request, no addresses in it."""
    body = bytes.fromhex("0001080006040003") + _mac(mac) + bytes(4) + _mac(mac) + bytes(4)
    return ethernet(source or mac, 0x8035, body)


def arp(mac: str, sender: str, target: str, *, operation: int = 1, source: str = "") -> bytes:
    body = (
        bytes.fromhex("000108000604")
        + operation.to_bytes(2, "big")
        + _mac(mac)
        + IPv4Address(sender).packed
        + bytes(6)
        + IPv4Address(target).packed
    )
    return ethernet(source or mac, 0x0806, body)


def ipv4(mac: str, source: str, destination: str, *, payload: bytes = bytes(8)) -> bytes:
    header = (
        bytes.fromhex("4500")
        + (20 + len(payload)).to_bytes(2, "big")
        + bytes.fromhex("0000000040110000")
        + IPv4Address(source).packed
        + IPv4Address(destination).packed
    )
    return ethernet(mac, 0x0800, header + payload, destination="ee:ee:ee:ee:ee:ee")


def ipv6(
    mac: str,
    source: str,
    destination: str,
    *,
    next_header: int = 17,
    hop_limit: int = 64,
    payload: bytes = bytes(8),
) -> bytes:
    header = (
        bytes.fromhex("60000000")
        + len(payload).to_bytes(2, "big")
        + bytes((next_header, hop_limit))
        + IPv6Address(source).packed
        + IPv6Address(destination).packed
    )
    return ethernet(mac, 0x86DD, header + payload, destination="33:33:00:00:00:01")


def neighbour_advertisement(
    mac: str, source: str, target: str, *, solicited: bool = False, hop_limit: int = 255
) -> bytes:
    flags = 0x60 if solicited else 0x20
    body = bytes((136, 0, 0, 0, flags, 0, 0, 0)) + IPv6Address(target).packed
    body += bytes((2, 1)) + _mac(mac)
    return ipv6(mac, source, "ff02::1", next_header=58, hop_limit=hop_limit, payload=body)


def neighbour_solicitation(mac: str, source: str, target: str) -> bytes:
    body = bytes((135, 0, 0, 0, 0, 0, 0, 0)) + IPv6Address(target).packed
    return ipv6(mac, source, "ff02::1:ff00:2", next_header=58, hop_limit=255, payload=body)
