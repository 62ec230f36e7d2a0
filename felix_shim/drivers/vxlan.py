"""The overlay in the kernel: devices, far ends, routes. One lane's thread alone calls it.

Far ends are there before the first route that needs them, and go after the last; of one address a
new route is there before an old one goes, and one that only changes its way is replaced in place.
What was made is remembered, so that a VM's move costs one route and not a look at everything; all
is read again whenever `look` is another value than before, and after a failure.

Never: touch a link that is not ours by name and kind, or a route that is not of our making.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_interface

from felix_shim.overlay import DEVICES, Device, Overlay, Vtep, is_overlay
from libtortie.errors import KernelError, NotFound
from libtortie.jsonlog import Log
from libtortie.linux.port import MAIN_TABLE, Kernel, Route
from libtortie.linux.tunnel import TunnelKernel, VxlanLink
from libtortie.model.ipam import IPAddress


@dataclass(slots=True)
class _Made:
    """What the kernel has of a family's overlay, as far as we know."""

    overlay: Overlay
    blocks: frozenset[Route]
    hosts: frozenset[Route]
    vteps: frozenset[Vtep] | None = None
    """Those that the entries were last made for."""
    neighbours: dict[IPAddress, str] = field(default_factory=dict)
    forwarding: dict[str, IPAddress] = field(default_factory=dict)


class OverlayDriver:
    """`apply` makes both families' overlays what they shall be."""

    def __init__(self, kernel: Kernel, tunnels: TunnelKernel, log: Log) -> None:
        self._kernel = kernel
        self._tunnels = tunnels
        self._log = log
        self._made: dict[int, _Made] = {}
        self._look: object = None
        self._problems: frozenset[str] = frozenset()

    def apply(self, wanted: Iterable[Overlay], look: object) -> None:
        """Make it so. Raises `KernelError`; what could be made is made."""
        if look != self._look:
            self._made.clear()
            self._look = look
        overlays = tuple(wanted)
        self._complain(overlays)
        failures: list[str] = []
        for one in overlays:
            try:
                self._family(one, failures)
            except (KernelError, NotFound) as error:
                failures.append(str(error))
                self._made.pop(one.version, None)
        if failures:
            raise KernelError("; ".join(failures))

    def _family(self, wanted: Overlay, failures: list[str]) -> None:
        made = self._made.pop(wanted.version, None)
        if made is None or not _same_ground(made.overlay, wanted):
            made = self._found(wanted)
        ends_differ = made.vteps is not wanted.vteps
        if wanted.device is not None and ends_differ:
            self._ensure_ends(wanted.device.name, wanted, made)
        made.hosts, refused = self._routes(made.hosts, wanted.hosts, wanted.blocks)
        failures += refused
        if made.blocks is not wanted.blocks:
            made.blocks, refused = self._routes(made.blocks, wanted.blocks, wanted.hosts)
            failures += refused
        if wanted.device is None:
            self._remove_device(DEVICES[wanted.version])
        elif ends_differ:
            self._sweep_ends(wanted.device.name, wanted, made)
            made.vteps = wanted.vteps
        made.overlay = wanted
        self._made[wanted.version] = made

    # -- the device --------------------------------------------------------------------------

    def _found(self, wanted: Overlay) -> _Made:
        """The device as it shall be, and what there is of far ends and routes."""
        if wanted.device is not None:
            self._ensure_device(wanted, wanted.device)
        present = self._kernel.routes(version=wanted.version, table=MAIN_TABLE)
        ours = frozenset(filter(is_overlay, present))
        made = _Made(wanted, ours - wanted.hosts, ours & wanted.hosts)
        if wanted.device is not None:
            name = wanted.device.name
            made.neighbours = {
                one.address: one.mac for one in self._tunnels.neighbours(name) if one.permanent
            }
            made.forwarding = {
                one.mac: one.dst
                for one in self._tunnels.forwarding(name)
                if one.permanent and one.dst is not None
            }
        return made

    def _ensure_device(self, wanted: Overlay, device: Device) -> None:
        uplink = self._kernel.link(wanted.uplink) if wanted.uplink else None
        mtu = wanted.settings.mtu_of(wanted.version, uplink.mtu if uplink else 0)
        link = VxlanLink(device.name, device.vni, device.port, device.local, device.mac, mtu)
        if self._tunnels.ensure_vxlan(link):
            self._log.info("tunnel_made", device=device.name, mtu=mtu, local=device.local)
        for name, value in quiet(device.name, wanted.version).items():
            self._kernel.write_sysctl(name, value)
        own = ip_interface(device.address)
        self._kernel.ensure_address(device.name, own)
        for address in self._kernel.addresses(device.name):
            if address != own and address.version == own.version and not address.ip.is_link_local:
                self._tunnels.delete_address(device.name, address)

    def _remove_device(self, name: str) -> None:
        if self._tunnels.vxlan(name) is not None:
            self._kernel.delete_link(name)
            self._log.info("tunnel_removed", device=name)

    # -- far ends ----------------------------------------------------------------------------

    def _ensure_ends(self, name: str, wanted: Overlay, made: _Made) -> None:
        for vtep in sorted(wanted.vteps, key=str):
            if made.forwarding.get(vtep.mac) != vtep.underlay:
                self._tunnels.ensure_forwarding(name, vtep.mac, vtep.underlay)
                made.forwarding[vtep.mac] = vtep.underlay
            if made.neighbours.get(vtep.address) != vtep.mac:
                self._tunnels.ensure_neighbour(name, vtep.address, vtep.mac)
                made.neighbours[vtep.address] = vtep.mac

    def _sweep_ends(self, name: str, wanted: Overlay, made: _Made) -> None:
        for address in sorted(
            made.neighbours.keys() - {one.address for one in wanted.vteps}, key=str
        ):
            self._tunnels.delete_neighbour(name, address)
            del made.neighbours[address]
        for mac in sorted(made.forwarding.keys() - {one.mac for one in wanted.vteps}):
            self._tunnels.delete_forwarding(name, mac, made.forwarding[mac])
            del made.forwarding[mac]

    # -- routes ------------------------------------------------------------------------------

    def _routes(
        self, before: frozenset[Route], wanted: frozenset[Route], others: frozenset[Route]
    ) -> tuple[frozenset[Route], list[str]]:
        """The routes there are now, and why some are not as they shall be.

        What has the key of one of the `others` is theirs by now, and stays.
        """
        if before == wanted:
            return wanted, []
        there, failures = set(before), []
        keys = {(route.dst, route.priority): route for route in before}
        for route in sorted(wanted - before, key=_order):
            try:
                self._kernel.ensure_route(route)
            except (KernelError, NotFound) as error:
                failures.append(str(error))
                continue
            there.discard(keys.get((route.dst, route.priority), route))
            there.add(route)
        stale = before - wanted
        lengths = {route.dst.prefixlen for route in stale}
        kept = {
            (route.dst, route.priority)
            for routes in ((wanted, others) if stale else ())
            for route in routes
            if route.dst.prefixlen in lengths
        }
        for route in sorted(stale, key=_order):
            if (route.dst, route.priority) in kept:
                continue
            self._kernel.delete_route(route)
            there.discard(route)
        return (frozenset(there) if failures else wanted), failures

    def _complain(self, overlays: Iterable[Overlay]) -> None:
        problems = frozenset(text for one in overlays for text in one.problems)
        for text in sorted(problems - self._problems):
            self._log.warning("overlay_incomplete", reason=text)
        self._problems = problems


def quiet(device: str, version: int) -> dict[str, str]:
    """A tunnel's settings: no redirect counts. The owner of a VM's block, which sends on what comes
    for the VM, would be told apart by its kernel: `you could ask the VM's node yourself`. Who
    believes that keeps to it when the VM has moved on."""
    return {f"net/ipv{version}/conf/{device}/accept_redirects": "0"}


def _same_ground(one: Overlay, other: Overlay) -> bool:
    """Whether device and MTU are the same, so that only far ends and routes may differ."""
    return (one.device, one.uplink, one.settings) == (other.device, other.uplink, other.settings)


def _order(route: Route) -> tuple[int, int, int]:
    """Host routes first: they are what somebody waits for."""
    return -route.dst.prefixlen, int(route.dst.network_address), route.priority
