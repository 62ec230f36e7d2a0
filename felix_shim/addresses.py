"""Which of this node's addresses the other nodes know it by.

A *method* is what the configuration says under `ip`, or `ip6`, with Calico's words:

* `172.31.1.2/24`: this one, on whichever link has it;
* `autodetect`: the first of an uplink, the default route's link before the others;
* `interface=<regex>[,<regex>]`: the first of a link whose name one of them is found in;
* `skip-interface=<regex>[,…]`: as `autodetect`, without these links;
* `cidr=<cidr>[,<cidr>]`: the first within one of these;
* `can-reach=<address>`: the one the kernel would use to get there;
* `kubernetes-internal-ip`: the InternalIP of the Node in the API.

Links are looked at in the order of their index. Never: a link-local address, one of
127.0.0.0/8, or one of a link that is down.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Interface,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from typing import TypeVar

from libtortie.errors import InvalidInput, NotFound
from libtortie.linux.port import IPNetwork, Kernel, Link
from libtortie.model.ipam import IPAddress
from libtortie.model.names import INTERFACE_PREFIX
from libtortie.model.plain_ip import plain_address, plain_network

AUTODETECT = "autodetect"
_KEYS = {4: "ip", 6: "ip6"}
INTERNAL_IP = "kubernetes-internal-ip"
_KNOWN = (
    "known are autodetect, <address>/<prefixlen>, interface=, skip-interface=, cidr=, can-reach=, "
    f"{INTERNAL_IP}"
)
_NOT_UPLINKS = re.compile(
    rf"lo$|{INTERFACE_PREFIX}|docker|cni|cbr|br-[0-9a-f]{{12}}$|veth|virbr|lxcbr|flannel|kube-|"
    r"tunl|vxlan\.calico|vxlan-v6\.calico|wireguard\.cali|wg-v6\.cali|dummy|nodelocaldns"
)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The node's address and the link it is on; `link` is empty when no link has it."""

    address: IPv4Interface
    link: str


@dataclass(frozen=True, slots=True)
class NodeAddress6:
    """The same for IPv6."""

    address: IPv6Interface
    link: str


Interface = IPv4Interface | IPv6Interface


@dataclass(frozen=True, slots=True)
class Fixed:
    """This address."""

    address: Interface


@dataclass(frozen=True, slots=True)
class ByName:
    """The first address of a link that `only` is found in the name of, and `never` is not."""

    only: re.Pattern[str] | None = None
    never: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class Within:
    """The first address in one of these networks."""

    cidrs: tuple[IPNetwork, ...]


@dataclass(frozen=True, slots=True)
class CanReach:
    """The kernel's source address towards a destination."""

    destination: IPAddress


@dataclass(frozen=True, slots=True)
class InternalIP:
    """What the Node in the API has as InternalIP."""


_Candidate = tuple[Interface, str]
"""An address with the prefix length it has on its link, and the link."""
V = TypeVar("V", IPv4Interface | IPv6Interface, IPNetwork, IPAddress)
Method = Fixed | ByName | Within | CanReach | InternalIP


def parse_method(text: str, version: int = 4) -> Method:
    """The method that the text names. Raises ValueError saying what is wrong with it."""
    try:
        return _parsed(text, version)
    except ValueError as error:
        raise ValueError(f"{_KEYS[version]}: {error}") from error


def _parsed(text: str, version: int) -> Method:
    word, equals, argument = text.strip().partition("=")
    if not equals:
        return _plain_method(word, version)
    parts = [part.strip() for part in argument.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r}: nothing after the equals sign or a comma")
    match word:
        case "interface":
            return ByName(only=_pattern(parts))
        case "skip-interface":
            return ByName(never=_pattern(parts))
        case "cidr":
            return Within(tuple(_of(version, plain_network(part, strict=True)) for part in parts))
        case "can-reach":
            return CanReach(_of(version, plain_address(argument.strip())))
    raise ValueError(f"{text!r}: {_KNOWN}")


def _of(version: int, found: V) -> V:
    if found.version != version:
        raise ValueError(f"{found} is not IPv{version}")
    return found


def _plain_method(word: str, version: int) -> Method:
    if word in (AUTODETECT, "first-found"):
        return ByName()
    if word == INTERNAL_IP:
        return InternalIP()
    try:
        plain_network(word)
        address = ip_interface(word)
    except ValueError as error:
        raise ValueError(f"{word!r}: {_KNOWN}") from error
    if "/" not in word:
        raise ValueError(f"{word} needs its prefix length, e.g. 172.31.1.2/24")
    return Fixed(_of(version, address))


def _pattern(parts: list[str]) -> re.Pattern[str]:
    try:
        return re.compile("|".join(f"(?:{part})" for part in parts))
    except re.error as error:
        raise ValueError(f"{','.join(parts)!r} is no regular expression: {error}") from error


def source_towards(destination: IPAddress) -> IPAddress | None:
    """The address the kernel would send from, by its own routing; None: no way there.

    Connecting a datagram socket looks the route up and sends nothing.
    """
    family = socket.AF_INET if destination.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(destination), 9))
        except OSError:
            return None
        return ip_address(probe.getsockname()[0])


def nobody() -> tuple[IPAddress, ...]:
    """Internal addresses where there is no API to ask."""
    raise InvalidInput(f"ip: {INTERNAL_IP} needs kubeconfig or k8s_api_root")


@dataclass(frozen=True, slots=True)
class Outside:
    """What two of the methods ask beside the kernel's links. May raise as the API client does."""

    source_towards: Callable[[IPAddress], IPAddress | None] = source_towards
    internal_ips: Callable[[], tuple[IPAddress, ...]] = field(default=nobody)


def find_address(kernel: Kernel, configured: str, outside: Outside | None = None) -> NodeAddress:
    """The IPv4 address that a method in words means now.

    Raises `InvalidInput` when there is none to be found, and what `outside` raises.
    """
    address, link = _find(kernel, configured, 4, outside or Outside())
    assert isinstance(address, IPv4Interface), "a method of IPv4 finds no other"
    return NodeAddress(address, link)


def find_address6(kernel: Kernel, configured: str, outside: Outside | None = None) -> NodeAddress6:
    """The same for IPv6."""
    address, link = _find(kernel, configured, 6, outside or Outside())
    assert isinstance(address, IPv6Interface), "a method of IPv6 finds no other"
    return NodeAddress6(address, link)


def _find(kernel: Kernel, configured: str, version: int, outside: Outside) -> _Candidate:
    method = parse_method(configured, version)
    candidates = list(_all(kernel, version))
    match method:
        case Fixed(address):
            found = next((one for one in candidates if one[0].ip == address.ip), None)
            return address, found[1] if found else ""
        case ByName():
            routes = kernel.routes(version=version)
            default = {route.ifname for route in routes if route.dst.prefixlen == 0}
            found = next(_named(candidates, method, default), None)
        case Within(cidrs):
            found = next((one for one in candidates if _inside(one, cidrs)), None)
        case CanReach(destination):
            source = outside.source_towards(destination)
            found = next((one for one in candidates if one[0].ip == source), None)
        case InternalIP():
            internal = outside.internal_ips()
            by_address = {one[0].ip: one for one in reversed(candidates)}
            found = next((by_address[one] for one in internal if one in by_address), None)
    if found is None:
        seen = ", ".join(f"{one} on {link}" for one, link in candidates) or "none at all"
        way_out = "" if version == 6 else " (a node of IPv6 alone says `ip: none`)"
        raise InvalidInput(
            f"{_KEYS[version]}: {configured} finds no IPv{version} address; "
            f"links that are up have {seen}{way_out}"
        )
    return found


def uplink_mtu(kernel: Kernel, uplinks: tuple[str, ...]) -> int:
    """The smallest MTU of these links, in bytes; 0 when none of them is there."""
    found = (kernel.link(name) for name in uplinks)
    return min((link.mtu for link in found if link is not None), default=0)


def interfaces(kernel: Kernel) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Uplinks that are up, by name, with their addresses (no prefix length, no link-local ones)."""
    found = []
    for link in sorted(_up(kernel), key=lambda one: one.name):
        addresses = tuple(str(one.ip) for one in _addresses(kernel, link))
        if addresses and not _NOT_UPLINKS.match(link.name):
            found.append((link.name, addresses))
    return tuple(found)


def _named(candidates: list[_Candidate], method: ByName, default: set[str]) -> Iterator[_Candidate]:
    """Candidates by link name. Links of containers count only when asked for by name."""

    def wanted(name: str) -> bool:
        if method.never is not None and method.never.search(name):
            return False
        if method.only is not None:
            return method.only.search(name) is not None
        return not _NOT_UPLINKS.match(name)

    found = [one for one in candidates if wanted(one[1])]
    return iter(sorted(found, key=lambda one: one[1] not in default))  # the sort is stable


def _inside(candidate: _Candidate, cidrs: tuple[IPNetwork, ...]) -> bool:
    return any(candidate[0].ip in cidr for cidr in cidrs)


def _all(kernel: Kernel, version: int) -> Iterator[_Candidate]:
    for link in sorted(_up(kernel), key=lambda one: one.ifindex):
        for address in _addresses(kernel, link):
            if address.version == version:
                yield address, link.name


def _up(kernel: Kernel) -> list[Link]:
    return [link for link in kernel.links() if link.up]


def _addresses(kernel: Kernel, link: Link) -> list[IPv4Interface | IPv6Interface]:
    try:
        found = kernel.addresses(link.name)
    except NotFound:
        return []
    return [one for one in found if not one.ip.is_link_local and not one.ip.is_loopback]
