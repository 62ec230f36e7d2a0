"""The TCP side: which address to listen on, listeners of a port range, dialling with a deadline.

Every connection has keepalive and TCP_USER_TIMEOUT: a peer that is gone, or takes nothing, is
given up after a known time. With a migration network nothing ever listens on the wildcard.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from libtortie.errors import InvalidInput, NotFound, Unavailable
from libtortie.linux.port import IPInterface
from migration_proxy.model import IPAddress

BACKLOG = 256
KEEPALIVE_PROBES = 4
_DISABLE_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")


@dataclass(frozen=True, slots=True)
class Network:
    """How to reach interfaces; `links` are their names, `addresses` those of one of them."""

    links: Callable[[], Sequence[str]]
    addresses: Callable[[str], Sequence[IPInterface]]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: for a connect, for a peer that takes nothing, between keepalives."""

    connect: float = 10.0
    stall: float = 120.0
    keepalive: int = 15


def wildcard(disable_ipv6: Path = _DISABLE_IPV6) -> IPAddress:
    """All addresses of both families, or of IPv4 where IPv6 is off."""
    try:
        off = disable_ipv6.read_text().startswith("1")
    except OSError:
        off = True
    return ipaddress.ip_address("0.0.0.0" if off else "::")


def bind_address(listen: str, network: Network) -> IPAddress:
    """The address that `listen` means now. Raises `InvalidInput` naming the cause."""
    return bind_addresses(listen, network)[0]


def bind_addresses(listen: str, network: Network) -> tuple[IPAddress, ...]:
    """All of this node's addresses that fit `listen`, at least one; the first one is meant.

    Raises `InvalidInput` naming the cause.
    """
    if not listen:
        return (wildcard(),)
    try:
        wanted = ipaddress.ip_interface(listen)
    except ValueError:
        return _of_link(listen, network)
    if wanted.version == 6 and wanted.ip.is_link_local:
        raise InvalidInput(
            f"listen {listen}: a link-local address is of one link alone, and the source cannot "
            "be told which: give the network global addresses"
        )
    if "/" not in listen:
        return (wanted.ip,)
    found = tuple(
        address.ip
        for link in network.links()
        for address in _addresses(link, network)
        if address.version == wanted.version and address.ip in wanted.network
    )
    if not found:
        raise InvalidInput(f"listen {listen}: this node has no address in it")
    return found


def _addresses(name: str, network: Network) -> Sequence[IPInterface]:
    """Those of a link that was there a moment ago: pods' links come and go."""
    try:
        return network.addresses(name)
    except NotFound:
        return ()


def _of_link(name: str, network: Network) -> tuple[IPAddress, ...]:
    try:
        there = [address.ip for address in network.addresses(name)]
    except NotFound:
        raise InvalidInput(f"listen {name}: there is no such interface on this node") from None
    found = tuple(ip for ip in there if not (ip.is_link_local or ip.is_loopback or ip.is_multicast))
    if not found:
        raise InvalidInput(f"listen {name}: the interface has no global address yet")
    return found


def listen(address: IPAddress, ports: range, taken: frozenset[int] = frozenset()) -> socket.socket:
    """A listening socket on a port of the range, or of the kernel's choice.

    Raises `Unavailable` when all of the range are in use, `InvalidInput` for a foreign address.
    """
    for port in ports or (0,):
        if port in taken:
            continue
        try:
            return _listen(address, port)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidInput(f"listen {address}: this node does not have it") from error
            if not (ports and error.errno == errno.EADDRINUSE):
                raise
    raise Unavailable(
        f"no free port in {ports.start}-{ports.stop - 1} on {address}: "
        f"{len(taken)} are this proxy's; widen port_range, or stop old migrations' listeners"
    )


def _listen(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only = int(not address.is_unspecified)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        sock.bind((str(address), port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def dial(
    address: IPAddress, port: int, patience: Patience, note: Callable[[socket.socket], None]
) -> socket.socket:
    """A connection to a peer; `note` gets the socket before.

    Raises `Unavailable` that says what stands there.
    """
    where = endpoint(address, port)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    note(sock)
    try:
        sock.settimeout(patience.connect)
        sock.connect((str(address), port))
        prepare(sock, patience)
    except OSError as error:
        sock.close()
        raise Unavailable(f"{where}: {_why(error, patience)}") from error
    return sock


def prepare(sock: socket.socket, patience: Patience) -> None:
    """A connection's options. Raises OSError when it is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, patience.keepalive)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, patience.keepalive)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience.stall * 1000))


def endpoint(address: IPAddress, port: int) -> str:
    """`address:port`, with brackets for IPv6."""
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def peer_address(sock: socket.socket) -> tuple[IPAddress, int]:
    """Who is at the other end; IPv4 on a socket of both families is IPv4. Raises OSError."""
    host, port, *_ = sock.getpeername()
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = None if isinstance(address, IPv4Address) else address.ipv4_mapped
    return mapped or address, int(port)


def _why(error: OSError, patience: Patience) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"no answer within {patience.connect:g} s: a firewall or policy between the nodes, "
            "or a wrong migration network"
        )
    if error.errno == errno.ECONNREFUSED:
        return "nobody listens there: the target's listener was stopped, or its ports are old"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{error.strerror}: no route to the target's migration network from here"
    return error.strerror or str(error)
