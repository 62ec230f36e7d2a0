"""Addresses and networks as others write them, and nothing but those. Pure.

An IPv6 address may carry a zone (`fe80::1%eth0`), which `ipaddress` takes in any characters and
gives back with the text. Whatever is read here is text of rules, routes and routing daemons later,
for root; so a zone, which means nothing outside its own machine, is refused.
"""

from __future__ import annotations

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)


def plain_address(text: str) -> IPv4Address | IPv6Address:
    """The address. Raises ValueError."""
    _refuse_zone(text)
    return ip_address(text)


def plain_network(text: str, *, strict: bool = False) -> IPv4Network | IPv6Network:
    """The network; `strict` allows no bits behind the prefix length. Raises ValueError."""
    _refuse_zone(text)
    return ip_network(text, strict=strict)


def can_be_reached(address: IPv4Address | IPv6Address) -> bool:
    """Whether others can send to the address: it is one host's, and means the same everywhere."""
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
        return False
    nobodys = address.is_unspecified or address.is_multicast or str(address) == "255.255.255.255"
    return not (nobodys or address.is_loopback or address.is_link_local)


def _refuse_zone(text: str) -> None:
    if "%" in text:
        raise ValueError(f"{text!r} has a zone: want an address or network alone")
