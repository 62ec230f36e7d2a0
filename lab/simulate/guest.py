"""The frames of a simulated guest's veth: the guest's own, and what is none of its doing."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

MAC, IPV4, IPV6 = "02:aa:bb:cc:dd:01", "10.65.0.2", "2001:db8:65::2"
STRANGER_MAC, STRANGER = "02:aa:bb:cc:dd:99", "10.65.0.9"


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ethernet(source: str, ethertype: int, payload: bytes) -> bytes:
    return b"\xff" * 6 + _mac(source) + ethertype.to_bytes(2, "big") + payload


def _arp(mac: str, operation: int, sender: str, target: str, *, ethertype: int = 0x0806) -> bytes:
    addresses = (IPv4Address(sender).packed, IPv4Address(target).packed)
    head = bytes.fromhex("000108000604") + operation.to_bytes(2, "big")
    body = head + _mac(mac) + addresses[0] + bytes(6) + addresses[1]
    return _ethernet(mac, ethertype, body)


def _ipv4(mac: str, source: str) -> bytes:
    head = bytes.fromhex("4500001c0000000040110000") + IPv4Address(source).packed
    return _ethernet(mac, 0x0800, head + IPv4Address(STRANGER).packed + bytes(8))


def _neighbour(mac: str, source: str, kind: int, flags: int) -> bytes:
    body = bytes((kind, 0, 0, 0, flags, 0, 0, 0)) + IPv6Address(IPV6).packed
    head = bytes.fromhex("60000000") + len(body).to_bytes(2, "big") + bytes((58, 255))
    return _ethernet(
        mac, 0x86DD, head + IPv6Address(source).packed + IPv6Address("ff02::1").packed + body
    )


def _rarp(mac: str) -> bytes:
    body = bytes.fromhex("0001080006040003") + _mac(mac) + bytes(4) + _mac(mac) + bytes(4)
    return _ethernet(mac, 0x8035, body)


SIGNS = (_rarp(MAC), _arp(MAC, 1, IPV4, IPV4), _ipv4(MAC, IPV4))
SIGNS6 = (_neighbour(MAC, IPV6, 136, 0x20),)
"""What a guest that resumes sends: any one of them must do."""

NOISE = (
    _rarp(STRANGER_MAC),
    _arp(STRANGER_MAC, 1, IPV4, IPV4),
    _ipv4(STRANGER_MAC, IPV4),
    _ipv4(MAC, STRANGER),
    _arp(MAC, 1, "0.0.0.0", IPV4),
    _arp(MAC, 2, IPV4, STRANGER),
    _neighbour(MAC, "::", 135, 0),
    _neighbour(MAC, "fe80::1", 136, 0x60),
    b"",
)
"""Forged ones, and those that a bridge, a probe or a neighbour makes before any guest runs."""
