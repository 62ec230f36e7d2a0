"""Netlink message bodies, packed and walked by hand.

Pure. With pyroute2's classes building one costs 60 to 500 µs, of which a pod's ADD has fifteen,
and reading a route 34 µs, too much on a node with thousands of BIRD's routes; here it is a tenth
and a seventh. Layouts: linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/neighbour.h. An
attribute is (length, type, value), padded to 4 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from socket import AF_INET, AF_INET6, AF_UNSPEC
from typing import Any

from libtortie.linux.port import IPInterface, Link
from libtortie.model.ipam import IPAddress

AF_BRIDGE = 7
IFF_UP = 0x1
_RTEXT_FILTER_SKIP_STATS = 8
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 1, 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_EXT_MASK, _IFLA_LINK_NETNSID, _IFLA_INFO_KIND = 18, 29, 37, 1
_IFLA_IFALIAS, _IFLA_NET_NS_FD, _IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 20, 28, 31, 32
_IFLA_INFO_DATA, _VETH_INFO_PEER = 2, 1
_VXLAN_ID, _VXLAN_LOCAL, _VXLAN_LEARNING, _VXLAN_PORT = 1, 4, 7, 15
_VXLAN_LOCAL6, _VXLAN_ZERO_CSUM6_TX, _VXLAN_ZERO_CSUM6_RX = 17, 19, 20
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 0x02
_NETNSA_NSID, _NETNSA_FD = 1, 3
ATTRIBUTE = struct.Struct("=HH")
_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")
_SCOPE_LINK = 253
U32 = struct.Struct("=I")


def attributes(body: memoryview, offset: int) -> dict[int, memoryview]:
    """Attributes by type (without the flag bits) from `offset`; a broken tail is dropped."""
    found: dict[int, memoryview] = {}
    end = len(body)
    unpack = ATTRIBUTE.unpack_from
    while offset + 4 <= end:
        length, kind = unpack(body, offset)
        if length < 4 or offset + length > end:
            break
        found[kind & 0x3FFF] = body[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return ATTRIBUTE.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    """An attribute with a 32-bit number."""
    return ATTRIBUTE.pack(8, kind) + U32.pack(value)


def text(kind: int, value: str) -> bytes:
    """An attribute with a text."""
    return attribute(kind, value.encode() + b"\0")


def _hardware_address(kind: int, value: str) -> bytes:
    """An attribute with a hardware address. ValueError for what is none."""
    packed = bytes.fromhex(value.replace(":", ""))
    if len(packed) != 6:
        raise ValueError(f"{value!r} is no hardware address")
    return attribute(kind, packed)


def encode(kind: Any, fields: dict[str, Any], attrs: list[tuple[str, Any]]) -> bytes:
    """The body, after the netlink header, of a message of one of pyroute2's classes; slow."""
    message = kind()
    message.update(fields)
    message["attrs"] = attrs
    message.encode()
    return bytes(message.data[16:])


# Links


@dataclass(frozen=True, slots=True)
class VethEnd:
    """One end of a veth to be made; `netns_fd` None is the namespace of the request."""

    name: str
    mac: str = ""
    netns_fd: int | None = None


def link_query(*, name: str = "", ifindex: int = 0) -> bytes:
    """RTM_GETLINK for one link, or for all in a dump, without counters."""
    header = _IFINFOMSG.pack(AF_UNSPEC, 0, ifindex, 0, 0)
    mask = ATTRIBUTE.pack(8, _IFLA_EXT_MASK) + U32.pack(_RTEXT_FILTER_SKIP_STATS)
    return header + mask + (text(_IFLA_IFNAME, name) if name else b"")


def link_change(
    ifindex: int,
    *,
    up: bool | None = None,
    mtu: int | None = None,
    mac: str | None = None,
    master: int | None = None,
    name: str | None = None,
    netns_fd: int | None = None,
    alias: str | None = None,
) -> bytes:
    """RTM_NEWLINK on an existing link: only what is given changes."""
    numbers = {_IFLA_MTU: mtu, _IFLA_MASTER: master, _IFLA_NET_NS_FD: netns_fd}
    texts = {_IFLA_IFNAME: name, _IFLA_IFALIAS: alias}
    body = [_link(ifindex, up)]
    body += [number(kind, value) for kind, value in numbers.items() if value is not None]
    body += [text(kind, value) for kind, value in texts.items() if value is not None]
    if mac is not None:
        body.append(_hardware_address(_IFLA_ADDRESS, mac))
    return b"".join(body)


def link_deletion(ifindex: int) -> bytes:
    """RTM_DELLINK."""
    return _link(ifindex)


def bridge_creation(name: str, mac: str, up: bool) -> bytes:
    """RTM_NEWLINK for a bridge device."""
    address = _hardware_address(_IFLA_ADDRESS, mac) if mac else b""
    info = attribute(_IFLA_LINKINFO, text(_IFLA_INFO_KIND, "bridge"))
    return _link(0, up) + text(_IFLA_IFNAME, name) + address + info


def veth_creation(near: VethEnd, far: VethEnd, *, mtu: int, queues: int) -> bytes:
    """RTM_NEWLINK for both ends at once, each in its namespace, the near one up.

    The far one can't be: the kernel would open it before it knows its peer (ENOTCONN).
    """
    peer = attribute(_VETH_INFO_PEER, _link(0) + _veth_end(far, mtu, queues))
    info = text(_IFLA_INFO_KIND, "veth") + attribute(_IFLA_INFO_DATA, peer)
    return _link(0, True) + _veth_end(near, mtu, queues) + attribute(_IFLA_LINKINFO, info)


def _veth_end(end: VethEnd, mtu: int, queues: int) -> bytes:
    parts = [text(_IFLA_IFNAME, end.name)]
    if mtu:
        parts.append(number(_IFLA_MTU, mtu))
    if end.mac:
        parts.append(_hardware_address(_IFLA_ADDRESS, end.mac))
    if queues > 1:
        parts += [number(_IFLA_NUM_TX_QUEUES, queues), number(_IFLA_NUM_RX_QUEUES, queues)]
    if end.netns_fd is not None:
        parts.append(number(_IFLA_NET_NS_FD, end.netns_fd))
    return b"".join(parts)


def _link(ifindex: int, up: bool | None = None) -> bytes:
    """`struct ifinfomsg`: which link, and whether it shall be up; None leaves that alone."""
    change = 0 if up is None else IFF_UP
    return _IFINFOMSG.pack(AF_UNSPEC, 0, ifindex, IFF_UP if up else 0, change)


@dataclass(frozen=True, slots=True)
class Tunnel:
    """What the kernel cannot change of a VXLAN device: identifier, port, own outer address."""

    vni: int
    port: int
    local: IPAddress


def vxlan_creation(name: str, tunnel: Tunnel, *, mac: str, mtu: int) -> bytes:
    """RTM_NEWLINK for a VXLAN device, up, that learns nothing.

    Over IPv6 without outer UDP checksums, as Calico's nodes send and expect it.
    """
    four = tunnel.local.version == 4
    data = number(_VXLAN_ID, tunnel.vni) + attribute(_VXLAN_LEARNING, b"\0")
    data += attribute(_VXLAN_PORT, struct.pack("!H", tunnel.port))
    data += attribute(_VXLAN_LOCAL if four else _VXLAN_LOCAL6, tunnel.local.packed)
    if not four:
        data += attribute(_VXLAN_ZERO_CSUM6_TX, b"\1") + attribute(_VXLAN_ZERO_CSUM6_RX, b"\1")
    info = text(_IFLA_INFO_KIND, "vxlan") + attribute(_IFLA_INFO_DATA, data)
    body = _link(0, True) + text(_IFLA_IFNAME, name) + _hardware_address(_IFLA_ADDRESS, mac)
    return body + (number(_IFLA_MTU, mtu) if mtu else b"") + attribute(_IFLA_LINKINFO, info)


def parse_vxlan(body: memoryview) -> Tunnel | None:
    """Of a VXLAN device; None for another kind of link, or a device without an own address."""
    info = attributes(attributes(body, _IFINFOMSG.size).get(_IFLA_LINKINFO, memoryview(b"")), 0)
    if _text(info.get(_IFLA_INFO_KIND)) != "vxlan":
        return None
    data = attributes(info.get(_IFLA_INFO_DATA, memoryview(b"")), 0)
    four, six = data.get(_VXLAN_LOCAL), data.get(_VXLAN_LOCAL6)
    port = data.get(_VXLAN_PORT)
    local: IPAddress
    if four is not None:
        local = IPv4Address(bytes(four))
    elif six is not None:
        local = IPv6Address(bytes(six))
    else:
        return None
    number_of_port = 0 if port is None else int.from_bytes(port, "big")
    return Tunnel(u32(data.get(_VXLAN_ID)), number_of_port, local)


def nsid_query(netns_fd: int) -> bytes:
    """RTM_GETNSID: the local number of another namespace."""
    return bytes(4) + number(_NETNSA_FD, netns_fd)


def parse_nsid(body: memoryview) -> int:
    """The number RTM_GETNSID answers; negative when the namespace has none here."""
    value = attributes(body, 4).get(_NETNSA_NSID)
    return -1 if value is None else int(struct.unpack("=i", value)[0])


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """A link, and the local number of its peer's namespace when that is another one."""

    link: Link
    peer_nsid: int | None


def parse_link(body: memoryview) -> LinkAnswer | None:
    """A link; None for a bridge's message about its port (family AF_BRIDGE), which is no link."""
    family, _, ifindex, flags, _ = _IFINFOMSG.unpack_from(body)
    if family != AF_UNSPEC:
        return None
    found = attributes(body, _IFINFOMSG.size)
    info = attributes(found.get(_IFLA_LINKINFO, memoryview(b"")), 0)
    kind = _text(info.get(_IFLA_INFO_KIND))
    link = Link(
        ifindex=ifindex,
        name=_text(found.get(_IFLA_IFNAME)),
        mac=bytes(found.get(_IFLA_ADDRESS, b"")).hex(":"),
        mtu=u32(found.get(_IFLA_MTU)),
        up=bool(flags & IFF_UP),
        kind=kind,
        master=u32(found.get(_IFLA_MASTER)),
        peer_ifindex=u32(found.get(_IFLA_LINK)) if kind == "veth" else 0,
        alias=_text(found.get(_IFLA_IFALIAS)),
    )
    nsid = found.get(_IFLA_LINK_NETNSID)
    return LinkAnswer(link, None if nsid is None else struct.unpack("=i", nsid)[0])


# Addresses


def address_query(ifindex: int) -> bytes:
    """RTM_GETADDR dump of one link."""
    return _IFADDRMSG.pack(AF_UNSPEC, 0, 0, 0, ifindex)


def address_change(ifindex: int, address: IPInterface) -> bytes:
    """RTM_NEWADDR or RTM_DELADDR. IPv6 without duplicate address detection: IPAM did that.

    An IPv4 address of 169.254.0.0/16 is of its link alone: none that the kernel chooses for
    packets to elsewhere. (The scope of an IPv6 address the kernel knows itself.)
    """
    scope = _SCOPE_LINK if address.version == 4 and address.ip.is_link_local else 0
    flags = _IFA_F_NODAD if address.version == 6 else 0
    family, prefixlen = family_of(address.version), address.network.prefixlen
    packed = address.ip.packed
    header = _IFADDRMSG.pack(family, prefixlen, flags, scope, ifindex)
    return header + attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)


def parse_address(body: memoryview) -> tuple[int, IPInterface] | None:
    """The link's index and the address; None for families other than IP."""
    family, prefixlen, _, _, ifindex = _IFADDRMSG.unpack_from(body)
    found = attributes(body, _IFADDRMSG.size)
    value = found.get(_IFA_LOCAL, found.get(_IFA_ADDRESS))
    if value is None or family not in (AF_INET, AF_INET6):
        return None
    if family == AF_INET:
        return ifindex, IPv4Interface((bytes(value), prefixlen))
    return ifindex, IPv6Interface((bytes(value), prefixlen))


def family_of(version: int) -> int:
    """AF_INET or AF_INET6."""
    return int(AF_INET if version == 4 else AF_INET6)


def u32(value: memoryview | None) -> int:
    return 0 if value is None else int(U32.unpack(value)[0])


def _text(value: memoryview | None) -> str:
    return "" if value is None else bytes(value).split(b"\0", 1)[0].decode(errors="replace")
