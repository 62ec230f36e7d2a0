"""Neighbour tables (ARP and ND) and bridge forwarding databases of one namespace.

A permanent entry with the wrong MAC is a lasting blackout: the lab uses these, the node agent
lets ARP resolve.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from pyroute2.netlink.rtnl import RTM_DELNEIGH, RTM_GETNEIGH, RTM_NEWNEIGH
from pyroute2.netlink.rtnl.ndmsg import (
    NTF_MASTER,
    NTF_SELF,
    NUD_NOARP,
    NUD_PERMANENT,
    ndmsg,
)

from libtortie.errors import NotFound
from libtortie.linux.channel import Refused
from libtortie.linux.space import NLM_F_CREATE, NLM_F_REPLACE, Space
from libtortie.linux.wire import AF_BRIDGE, attributes, encode, family_of
from libtortie.model.ipam import IPAddress

_NDMSG = struct.Struct("=B3xiHBB")
_NDA_DST, _NDA_LLADDR = 1, 2


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entry of the ARP or ND table; `mac` is empty while unresolved."""

    address: IPAddress
    mac: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class ForwardingEntry:
    """A MAC behind a bridge port, or behind a tunnel end `dst`."""

    mac: str
    dst: IPAddress | None
    permanent: bool


def neighbours(space: Space, ifname: str) -> tuple[Neighbour, ...]:
    """The neighbours of a link, both families. Raises NotFound for no such link."""
    found = []
    for version in (4, 6):
        for state, value in _entries(space, ifname, family_of(version)):
            if _NDA_DST in value:
                mac = bytes(value.get(_NDA_LLADDR, b"")).hex(":")
                permanent = bool(state & NUD_PERMANENT)
                found.append(Neighbour(_address(value[_NDA_DST]), mac, permanent))
    return tuple(found)


def ensure_neighbour(space: Space, ifname: str, address: IPAddress, mac: str) -> None:
    """A permanent entry. Raises NotFound for no such link."""
    fields = {"family": family_of(address.version), "state": NUD_PERMANENT}
    attrs = [("NDA_DST", str(address)), ("NDA_LLADDR", mac)]
    _change(space, ifname, fields, attrs, f"neighbour {address} on {ifname}")


def delete_neighbour(space: Space, ifname: str, address: IPAddress) -> bool:
    """False when there was none, or no such link."""
    fields = {"family": family_of(address.version)}
    what = f"neighbour {address} on {ifname}"
    return _delete(space, ifname, fields, [("NDA_DST", str(address))], what)


def forwarding(space: Space, ifname: str) -> tuple[ForwardingEntry, ...]:
    """The MACs known behind a bridge port or tunnel. Raises NotFound for no such link."""
    found = []
    for state, value in _entries(space, ifname, AF_BRIDGE):
        dst = _address(value[_NDA_DST]) if _NDA_DST in value else None
        mac = bytes(value.get(_NDA_LLADDR, b"")).hex(":")
        found.append(ForwardingEntry(mac, dst, bool(state & NUD_PERMANENT)))
    return tuple(found)


def ensure_forwarding(space: Space, ifname: str, mac: str, dst: IPAddress | None = None) -> None:
    """A static entry: of the port's bridge, or with `dst` of the tunnel device itself."""
    fields, attrs = _forwarding_key(mac, dst)
    fields["state"] = NUD_NOARP | (NUD_PERMANENT if dst is not None else 0)
    _change(space, ifname, fields, attrs, f"forwarding entry {mac} on {ifname}")


def delete_forwarding(space: Space, ifname: str, mac: str, dst: IPAddress | None = None) -> bool:
    """False when there was none, or no such link."""
    fields, attrs = _forwarding_key(mac, dst)
    return _delete(space, ifname, fields, attrs, f"forwarding entry {mac} on {ifname}")


def _forwarding_key(
    mac: str, dst: IPAddress | None
) -> tuple[dict[str, int], list[tuple[str, Any]]]:
    attrs: list[tuple[str, Any]] = [("NDA_LLADDR", mac)]
    if dst is not None:
        attrs.append(("NDA_DST", str(dst)))
    return {"family": AF_BRIDGE, "flags": NTF_MASTER if dst is None else NTF_SELF}, attrs


def _entries(space: Space, ifname: str, family: int) -> list[tuple[int, dict[int, memoryview]]]:
    """State and attributes of each entry of a link."""
    ifindex = space.ifindex(ifname)
    body = encode(ndmsg, {"family": family}, [("NDA_IFINDEX", ifindex)])
    found = []
    for kind, content in space.channel.dump(RTM_GETNEIGH, body, f"neighbours of {ifname}"):
        _, index, state, _, _ = _NDMSG.unpack_from(content)
        if kind == RTM_NEWNEIGH and index == ifindex:
            found.append((state, attributes(content, _NDMSG.size)))
    return found


def _change(
    space: Space, ifname: str, fields: dict[str, int], attrs: list[tuple[str, Any]], what: str
) -> None:
    body = encode(ndmsg, {**fields, "ifindex": space.ifindex(ifname)}, attrs)
    try:
        space.channel.request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, body, f"set {what}")
    except Refused as error:
        if error.code == errno.ENODEV:
            raise NotFound(str(error)) from error
        raise


def _delete(
    space: Space, ifname: str, fields: dict[str, int], attrs: list[tuple[str, Any]], what: str
) -> bool:
    ifindex = space.names.ifindex(ifname)
    if not ifindex:
        return False
    body = encode(ndmsg, {**fields, "ifindex": ifindex}, attrs)
    try:
        space.channel.request(RTM_DELNEIGH, 0, body, f"delete {what}")
    except Refused as error:
        if error.code in (errno.ENOENT, errno.ENODEV):
            return False
        raise
    return True


def _address(value: memoryview) -> IPAddress:
    return IPv4Address(bytes(value)) if len(value) == 4 else IPv6Address(bytes(value))
