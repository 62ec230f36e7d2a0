"""What a lab builds networks from: bridges, veth pairs, ports, taps, in namespaces by path.

Every function takes namespace paths (`""`: the calling thread's own), leaves alone what is as
asked already, and raises NotFound for a missing namespace or link. This kernel has no dummy
device: a bridge without ports stands in for one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from pyroute2.netlink.rtnl import RTM_DELADDR

from libtortie.errors import KernelError, NotFound
from libtortie.linux import neighbours, wire
from libtortie.linux.channel import Refused
from libtortie.linux.neighbours import ForwardingEntry, Neighbour
from libtortie.linux.port import IPInterface, Link
from libtortie.linux.space import Space
from libtortie.model.ipam import IPAddress

_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000


def ensure_bridge(netns: str, name: str, *, mac: str = "", up: bool = True) -> Link:
    """A bridge device. Raises KernelError when another kind of link has the name."""
    with Space(netns) as space:
        space.create_link(name, wire.bridge_creation(name, mac.lower(), up))
        link = _link(space, name)
        if link.kind != "bridge":
            raise KernelError(f"link {name} in {space.name} is no bridge but {link.kind!r}")
        return _bring(space, link, mac=mac, up=up)


def ensure_tap(netns: str, name: str, *, up: bool = True) -> Link:
    """A persistent tap device, such as QEMU attaches to by name."""
    with Space(netns) as space:
        if space.find(name) is None:
            space.run(lambda: _make_tap(name))
        return _bring(space, _link(space, name), mac="", up=up)


def ensure_veth_between(
    near: tuple[str, str],
    far: tuple[str, str],
    *,
    mtu: int = 1500,
    near_mac: str = "",
    far_mac: str = "",
) -> tuple[Link, Link]:
    """A veth pair, up, between two (namespace, link name) places, which may be one namespace.

    Raises KernelError when a link of one of the names exists and is not this pair's.
    """
    with Space(near[0]) as here, Space(far[0]) as there:
        target = None if here.inode == there.inode else there.namespace.fileno()
        body = wire.veth_creation(
            wire.VethEnd(near[1], near_mac.lower()),
            wire.VethEnd(far[1], far_mac.lower(), target),
            mtu=mtu,
            queues=1,
        )
        fresh = here.create_link(near[1], body)
        if not _are_peers(here, there, here.find(near[1]), there.find(far[1])):
            raise KernelError(
                f"{near[1]} in {here.name} and {far[1]} in {there.name} are not one veth pair"
            )
        if not fresh:
            here.change_link(near[1], mtu=mtu, mac=near_mac.lower() or None, up=True)
        there.change_link(far[1], mtu=mtu, mac=far_mac.lower() or None, up=True)
        return _link(here, near[1]), _link(there, far[1])


def set_master(netns: str, name: str, bridge: str) -> None:
    """Make a link a port of a bridge; `""` releases it."""
    with Space(netns) as space:
        master = space.ifindex(bridge) if bridge else 0
        if _link(space, name).master != master:
            space.change_link(name, master=master)


def set_up(netns: str, name: str, up: bool = True) -> None:
    """Bring a link up or down."""
    with Space(netns) as space:
        _bring(space, _link(space, name), mac="", up=up)


def set_mac(netns: str, name: str, mac: str) -> None:
    """Give a link a MAC address."""
    with Space(netns) as space:
        link = _link(space, name)
        _bring(space, link, mac=mac, up=link.up)


def rename_link(netns: str, name: str, new_name: str) -> None:
    """Rename a link, which older kernels want to be down for that."""
    with Space(netns) as space:
        if space.find(name) is None and space.find(new_name) is not None:
            return
        space.change_link(name, name=new_name)


def move_link(netns: str, name: str, target: str, new_name: str = "") -> Link:
    """Move a link to another namespace, renamed on the way if asked; it arrives down.

    A link that is there already, and no longer here, is left as it is.
    """
    with Space(netns) as space, Space(target) as there:
        arrived = new_name or name
        if space.find(name) is not None:
            space.change_link(name, netns_fd=there.namespace.fileno(), name=new_name or None)
        return _link(there, arrived)


def delete_link(netns: str, name: str) -> bool:
    """Delete a link, and with one end of a veth the other; False when there was none."""
    with Space(netns) as space:
        return space.delete_link(name)


def delete_address(netns: str, ifname: str, address: IPInterface) -> bool:
    """Take an address from a link; False when it had none such."""
    with Space(netns) as space:
        body = wire.address_change(space.ifindex(ifname), address)
        try:
            what = f"delete address {address} from {ifname}"
            space.channel.request(RTM_DELADDR, 0, body, what)
        except Refused as error:
            if error.code == errno.EADDRNOTAVAIL:
                return False
            raise
        return True


def list_neighbours(netns: str, ifname: str) -> tuple[Neighbour, ...]:
    """The ARP and ND entries of a link."""
    with Space(netns) as space:
        return neighbours.neighbours(space, ifname)


def ensure_neighbour(netns: str, ifname: str, address: IPAddress, mac: str) -> None:
    """A permanent ARP or ND entry."""
    with Space(netns) as space:
        neighbours.ensure_neighbour(space, ifname, address, mac)


def delete_neighbour(netns: str, ifname: str, address: IPAddress) -> bool:
    """Forget an ARP or ND entry; False when there was none."""
    with Space(netns) as space:
        return neighbours.delete_neighbour(space, ifname, address)


def list_forwarding(netns: str, ifname: str) -> tuple[ForwardingEntry, ...]:
    """The MACs known behind a bridge port."""
    with Space(netns) as space:
        return neighbours.forwarding(space, ifname)


def ensure_forwarding(netns: str, ifname: str, mac: str, dst: IPAddress | None = None) -> None:
    """A static forwarding entry of a bridge port, or with `dst` of a tunnel device."""
    with Space(netns) as space:
        neighbours.ensure_forwarding(space, ifname, mac, dst)


def delete_forwarding(netns: str, ifname: str, mac: str, dst: IPAddress | None = None) -> bool:
    """Forget a forwarding entry; False when there was none."""
    with Space(netns) as space:
        return neighbours.delete_forwarding(space, ifname, mac, dst)


def _link(space: Space, name: str) -> Link:
    answer = space.find(name)
    if answer is None:
        raise NotFound(f"no link {name} in {space.name}")
    return answer.link


def _bring(space: Space, link: Link, *, mac: str, up: bool) -> Link:
    new_mac = mac.lower() if mac and link.mac != mac.lower() else None
    if new_mac is None and link.up == up:
        return link
    space.change_link(link.name, mac=new_mac, up=up)
    return _link(space, link.name)


def _are_peers(
    here: Space, there: Space, near: wire.LinkAnswer | None, far: wire.LinkAnswer | None
) -> bool:
    if near is None or far is None:
        return False
    if near.link.kind != "veth" or near.link.peer_ifindex != far.link.ifindex:
        return False
    if here.inode == there.inode:
        return near.peer_nsid is None
    return near.peer_nsid is not None and near.peer_nsid == here.nsid_of(there)


def _make_tap(name: str) -> None:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    except OSError as error:
        raise KernelError(f"cannot make tap device {name}: {error.strerror}") from error
    finally:
        os.close(descriptor)
