"""Netlink message bodies: changes built with pyroute2's classes, answers read by hand.

Pure. Building one costs 60 to 200 µs, so the look-up every change begins with is packed here.
Reading with pyroute2 costs 34 µs a route, too much on a node with thousands of BIRD's routes, so
answers are walked here; that costs a seventh. Layouts:
linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/neighbour.h. An attribute is (length,
type, value), padded to 4 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv6Interface
from socket import AF_INET, AF_INET6, AF_UNSPEC
from typing import Any

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.nsidmsg import nsidmsg

from libtortie.linux.port import IPInterface, Link

AF_BRIDGE = 7
IFF_UP = 0x1
_RTEXT_FILTER_SKIP_STATS = 8
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 1, 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_EXT_MASK, _IFLA_LINK_NETNSID, _IFLA_INFO_KIND = 18, 29, 37, 1
_IFLA_IFALIAS = 20
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 0x02
_NETNSA_NSID = 1
ATTRIBUTE = struct.Struct("=HH")
_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")
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


def encode(kind: Any, fields: dict[str, Any], attrs: list[tuple[str, Any]]) -> bytes:
    """The body, after the netlink header, of a message of one of pyroute2's classes."""
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
    text = name.encode() + b"\0"
    wanted = ATTRIBUTE.pack(4 + len(text), _IFLA_IFNAME) + text + bytes(-len(text) % 4)
    return header + mask + (wanted if name else b"")


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
    wanted = {
        "IFLA_MTU": mtu,
        "IFLA_ADDRESS": mac,
        "IFLA_MASTER": master,
        "IFLA_IFNAME": name,
        "IFLA_NET_NS_FD": netns_fd,
        "IFLA_IFALIAS": alias,
    }
    attrs = [(key, value) for key, value in wanted.items() if value is not None]
    return encode(ifinfmsg, {"index": ifindex, **_up(up)}, attrs)


def link_deletion(ifindex: int) -> bytes:
    """RTM_DELLINK."""
    return encode(ifinfmsg, {"index": ifindex}, [])


def bridge_creation(name: str, mac: str, up: bool) -> bytes:
    """RTM_NEWLINK for a bridge device."""
    attrs: list[tuple[str, Any]] = [("IFLA_IFNAME", name)]
    if mac:
        attrs.append(("IFLA_ADDRESS", mac))
    attrs.append(("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", "bridge")]}))
    return encode(ifinfmsg, _up(up), attrs)


def veth_creation(near: VethEnd, far: VethEnd, *, mtu: int, queues: int) -> bytes:
    """RTM_NEWLINK for both ends at once, each in its namespace, the near one up.

    The far one can't be: the kernel would open it before it knows its peer (ENOTCONN).
    """
    peer = {"attrs": _veth_attributes(far, mtu, queues)}
    data = {"attrs": [("VETH_INFO_PEER", peer)]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    attrs = [*_veth_attributes(near, mtu, queues), ("IFLA_LINKINFO", info)]
    return encode(ifinfmsg, _up(True), attrs)


def _veth_attributes(end: VethEnd, mtu: int, queues: int) -> list[tuple[str, Any]]:
    attrs: list[tuple[str, Any]] = [("IFLA_IFNAME", end.name)]
    if mtu:
        attrs.append(("IFLA_MTU", mtu))
    if end.mac:
        attrs.append(("IFLA_ADDRESS", end.mac))
    if queues > 1:
        attrs += [("IFLA_NUM_TX_QUEUES", queues), ("IFLA_NUM_RX_QUEUES", queues)]
    if end.netns_fd is not None:
        attrs.append(("IFLA_NET_NS_FD", end.netns_fd))
    return attrs


def _up(up: bool | None) -> dict[str, int]:
    return {} if up is None else {"flags": IFF_UP if up else 0, "change": IFF_UP}


def nsid_query(netns_fd: int) -> bytes:
    """RTM_GETNSID: the local number of another namespace."""
    return encode(nsidmsg, {}, [("NETNSA_FD", netns_fd)])


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
    return encode(ifaddrmsg, {"family": AF_UNSPEC, "index": ifindex}, [])


def address_change(ifindex: int, address: IPInterface) -> bytes:
    """RTM_NEWADDR or RTM_DELADDR. IPv6 without duplicate address detection: IPAM did that."""
    fields = {
        "family": family_of(address.version),
        "prefixlen": address.network.prefixlen,
        "flags": _IFA_F_NODAD if address.version == 6 else 0,
        "index": ifindex,
    }
    text = str(address.ip)
    return encode(ifaddrmsg, fields, [("IFA_LOCAL", text), ("IFA_ADDRESS", text)])


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
