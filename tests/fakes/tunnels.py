"""The tunnel port over a `FakeKernel`'s namespace; held to the real one by the contract suite.

What a link knew goes with it, however it went: entries are kept by the link's index.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_interface

from libtortie.errors import KernelError, NotFound
from libtortie.linux.neighbours import ForwardingEntry, Neighbour
from libtortie.linux.port import IPInterface, Link
from libtortie.linux.tunnel import TunnelKernel, VxlanLink
from libtortie.model.ipam import IPAddress
from tests.fakes.kernel import FakeKernel


@dataclass
class FakeTunnels:
    """Devices, neighbours and forwarding entries of one namespace."""

    kernel: FakeKernel
    _devices: dict[int, VxlanLink] = field(default_factory=dict)
    _neighbours: dict[tuple[int, IPAddress], str] = field(default_factory=dict)
    _forwarding: dict[tuple[int, str], IPAddress] = field(default_factory=dict)

    def ensure_vxlan(self, wanted: VxlanLink) -> bool:
        """Such a device, up."""
        link = self.kernel.link(wanted.name)
        if link is not None and link.kind != "vxlan":
            raise KernelError(f"link {wanted.name} exists and is a {link.kind} link, no vxlan")
        held = self.vxlan(wanted.name)
        same = held is not None and (held.vni, held.port, held.local) == (
            wanted.vni,
            wanted.port,
            wanted.local,
        )
        if not same:
            self.kernel.delete_link(wanted.name)
            self.kernel.namespaces.change("make_vxlan", wanted.name)
            link = self.kernel.add_link(wanted.name, "vxlan", mac=wanted.mac.lower())
        index = self._must(wanted.name).ifindex
        self._devices[index] = replace(wanted, mac="", mtu=0)
        mtu = wanted.mtu or None
        self.kernel.set_link(wanted.name, up=True, mac=wanted.mac, mtu=mtu)
        return not same

    def vxlan(self, name: str) -> VxlanLink | None:
        """A device by name."""
        link = self.kernel.link(name)
        device = None if link is None else self._devices.get(link.ifindex)
        if link is None or device is None:
            return None
        return replace(device, mac=link.mac, mtu=link.mtu)

    def delete_address(self, ifname: str, address: IPInterface) -> bool:
        """Take an address from a link."""
        self._must(ifname)
        held = self.kernel.space.addresses.get(ifname, [])
        if address not in held:
            return False
        self.kernel.namespaces.change("delete_address", f"{ifname} {address}")
        held.remove(ip_interface(address))
        return True

    def neighbours(self, ifname: str) -> tuple[Neighbour, ...]:
        """The neighbours of a link."""
        index = self._must(ifname).ifindex
        return tuple(
            Neighbour(address, mac, permanent=True)
            for (where, address), mac in self._neighbours.items()
            if where == index
        )

    def ensure_neighbour(self, ifname: str, address: IPAddress, mac: str) -> None:
        """A permanent entry."""
        index = self._must(ifname).ifindex
        self.kernel.namespaces.change("ensure_neighbour", f"{address} {mac}")
        self._neighbours[index, address] = mac.lower()

    def delete_neighbour(self, ifname: str, address: IPAddress) -> bool:
        """False when there was none."""
        link = self.kernel.link(ifname)
        self.kernel.namespaces.change("delete_neighbour", str(address))
        return link is not None and self._neighbours.pop((link.ifindex, address), None) is not None

    def forwarding(self, ifname: str) -> tuple[ForwardingEntry, ...]:
        """The MACs behind a tunnel."""
        index = self._must(ifname).ifindex
        return tuple(
            ForwardingEntry(mac, dst, permanent=True)
            for (where, mac), dst in self._forwarding.items()
            if where == index
        )

    def ensure_forwarding(self, ifname: str, mac: str, dst: IPAddress) -> None:
        """A permanent entry."""
        index = self._must(ifname).ifindex
        self.kernel.namespaces.change("ensure_forwarding", f"{mac} {dst}")
        self._forwarding[index, mac.lower()] = dst

    def delete_forwarding(self, ifname: str, mac: str, dst: IPAddress) -> bool:
        """False when there was none such."""
        link = self.kernel.link(ifname)
        self.kernel.namespaces.change("delete_forwarding", mac)
        if link is None or self._forwarding.get((link.ifindex, mac.lower())) != dst:
            return False
        del self._forwarding[link.ifindex, mac.lower()]
        return True

    def close(self) -> None:
        """Nothing is held."""

    def _must(self, name: str) -> Link:
        link = self.kernel.link(name)
        if link is None:
            raise NotFound(f"no link {name}")
        return link


def _conforms(tunnels: FakeTunnels) -> TunnelKernel:
    return tunnels
