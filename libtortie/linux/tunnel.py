"""VXLAN devices and what they know of far ends, in one namespace; the port and its netlink side.

A device here learns nothing and floods nothing: where a packet goes is what was written, a
permanent neighbour entry (address → MAC) and a permanent forwarding entry (MAC → far node). The
kernel cannot change a device's network identifier, port or own address: such a device is made
anew, which takes its entries and routes with it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Protocol

from libtortie.errors import KernelError, NotFound
from libtortie.linux import neighbours, wire
from libtortie.linux.channel import Refused
from libtortie.linux.neighbours import ForwardingEntry, Neighbour
from libtortie.linux.port import IPInterface
from libtortie.linux.rtnetlink import RTM_DELADDR
from libtortie.linux.space import Space
from libtortie.model.ipam import IPAddress


@dataclass(frozen=True, slots=True)
class VxlanLink:
    """A VXLAN device; `local` is the outer source address, an `mtu` of 0 the kernel's choice."""

    name: str
    vni: int
    port: int
    local: IPAddress
    mac: str
    mtu: int = 0


class TunnelKernel(Protocol):
    """What the overlay's driver asks of a namespace beside `port.Kernel`."""

    def ensure_vxlan(self, wanted: VxlanLink) -> bool:
        """Such a device, up; True when it had to be made, first or anew.

        Raises KernelError when another kind of link has the name.
        """
        ...

    def vxlan(self, name: str) -> VxlanLink | None:
        """A device by name; None for no such link, or one of another kind."""
        ...

    def delete_address(self, ifname: str, address: IPInterface) -> bool:
        """Take an address from a link; False when it had none such. Raises NotFound."""
        ...

    def neighbours(self, ifname: str) -> tuple[Neighbour, ...]:
        """The neighbours of a link, both families. Raises NotFound for no such link."""
        ...

    def ensure_neighbour(self, ifname: str, address: IPAddress, mac: str) -> None:
        """A permanent entry, in place of any for the address. Raises NotFound."""
        ...

    def delete_neighbour(self, ifname: str, address: IPAddress) -> bool:
        """False when there was none, or no such link."""
        ...

    def forwarding(self, ifname: str) -> tuple[ForwardingEntry, ...]:
        """The MACs known behind a tunnel. Raises NotFound for no such link."""
        ...

    def ensure_forwarding(self, ifname: str, mac: str, dst: IPAddress) -> None:
        """A permanent entry, in place of any for the MAC. Raises NotFound."""
        ...

    def delete_forwarding(self, ifname: str, mac: str, dst: IPAddress) -> bool:
        """False when there was none such, or no such link."""
        ...

    def close(self) -> None:
        """Release sockets and namespace."""
        ...


class NetlinkTunnels:
    """Implements `TunnelKernel`; `netns` is a path, `""` the calling thread's own namespace."""

    def __init__(self, netns: str = "") -> None:
        self._space = Space(netns)

    def ensure_vxlan(self, wanted: VxlanLink) -> bool:
        """Such a device, up; True when it had to be made."""
        held = self.vxlan(wanted.name)
        made = False
        if held is None or not _same_tunnel(held, wanted):
            found = self._space.find(wanted.name)
            if held is None and found is not None:
                kind = found.link.kind or "physical"
                raise KernelError(f"link {wanted.name} exists and is a {kind} link, no vxlan")
            self._space.delete_link(wanted.name)
            tunnel = wire.Tunnel(wanted.vni, wanted.port, wanted.local)
            body = wire.vxlan_creation(wanted.name, tunnel, mac=wanted.mac, mtu=wanted.mtu)
            if not self._space.create_link(wanted.name, body):
                raise KernelError(f"link {wanted.name} was made by somebody else meanwhile")
            made = True
        found = self._space.find(wanted.name)
        if found is None:
            raise NotFound(f"no link {wanted.name} in {self._space.name}")
        link = found.link
        mac = wanted.mac.lower() if link.mac != wanted.mac.lower() else None
        mtu = wanted.mtu if wanted.mtu and link.mtu != wanted.mtu else None
        if mac is not None or mtu is not None or not link.up:
            self._space.change_link(wanted.name, up=True, mac=mac, mtu=mtu)
        return made

    def vxlan(self, name: str) -> VxlanLink | None:
        """A device by name; None for no such link, or one of another kind."""
        answer = self._space.link_body(name)
        return None if answer is None else _parse(answer)

    def delete_address(self, ifname: str, address: IPInterface) -> bool:
        """Take an address from a link; False when it had none such."""
        body = wire.address_change(self._space.ifindex(ifname), address)
        what = f"delete address {address} from {ifname}"
        try:
            self._space.channel.request(RTM_DELADDR, 0, body, what)
        except Refused as error:
            if error.code == errno.EADDRNOTAVAIL:
                return False
            raise
        return True

    def neighbours(self, ifname: str) -> tuple[Neighbour, ...]:
        """The neighbours of a link, both families."""
        return neighbours.neighbours(self._space, ifname)

    def ensure_neighbour(self, ifname: str, address: IPAddress, mac: str) -> None:
        """A permanent entry, in place of any for the address."""
        neighbours.ensure_neighbour(self._space, ifname, address, mac)

    def delete_neighbour(self, ifname: str, address: IPAddress) -> bool:
        """False when there was none, or no such link."""
        return neighbours.delete_neighbour(self._space, ifname, address)

    def forwarding(self, ifname: str) -> tuple[ForwardingEntry, ...]:
        """The MACs known behind a tunnel."""
        return neighbours.forwarding(self._space, ifname)

    def ensure_forwarding(self, ifname: str, mac: str, dst: IPAddress) -> None:
        """A permanent entry, in place of any for the MAC."""
        neighbours.ensure_forwarding(self._space, ifname, mac, dst)

    def delete_forwarding(self, ifname: str, mac: str, dst: IPAddress) -> bool:
        """False when there was none such: the kernel calls that a success."""
        try:
            held = self.forwarding(ifname)
        except NotFound:
            return False
        if not any(one.mac == mac.lower() and one.dst == dst for one in held):
            return False
        return neighbours.delete_forwarding(self._space, ifname, mac, dst)

    def close(self) -> None:
        """Release sockets and namespace."""
        self._space.close()


def _parse(body: memoryview) -> VxlanLink | None:
    answer, tunnel = wire.parse_link(body), wire.parse_vxlan(body)
    if answer is None or tunnel is None:
        return None
    link = answer.link
    return VxlanLink(link.name, tunnel.vni, tunnel.port, tunnel.local, link.mac, link.mtu)


def _same_tunnel(one: VxlanLink, other: VxlanLink) -> bool:
    return (one.vni, one.port, one.local) == (other.vni, other.port, other.local)
