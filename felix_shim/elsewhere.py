"""What is known of this node's addresses being on other nodes: by BGP, and by the overlay.

BGP tells who raised an address; of one in the overlay the route that leads it elsewhere does, once
it is in the kernel, so that a way to the VM is there before the VM's old route goes. Both become
numbered raises (`raises.py`) that the state machine compares with its own claim. What BGP says of
an address in the overlay is for others: it tells of no way there that this node's kernel has.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import ip_network

from felix_shim.drivers.routetable import RouteTable
from felix_shim.events import RaisesSeen
from felix_shim.overlay_desk import OverlayDesk
from felix_shim.raises import Raises
from felix_shim.roster import Local, Roster
from libtortie.model.ipam import IPAddress

_OVERLAID = "overlay:"
"""What a raise's hop begins with that the overlay shows."""


@dataclass(slots=True)
class Elsewhere:
    """`raises` are remembered across restarts; `announced` are addresses with any route of
    another node, though it be not raised."""

    roster: Roster
    routes: RouteTable
    overlay: OverlayDesk
    raises: Raises = field(default_factory=Raises)
    announced: frozenset[IPAddress] = frozenset()
    _by_bgp: dict[IPAddress, tuple[str, bool]] = field(default_factory=dict)
    """What BGP said since the start: next hops that raised the address, and if there is any."""

    def look(self, asked: Collection[IPAddress], said: RaisesSeen | None = None) -> bool:
        """What BGP says of some addresses, now or last, and what the overlay's routes say now.

        True when anything is known otherwise than before.
        """
        if said is not None:
            for address in said.asked:
                told = said.raised.get(address, ""), address in said.announced
                self._by_bgp[address] = ("", False) if self.overlay.covers(address) else told
        before = (self.raises, self.announced)
        raised: dict[IPAddress, str] = {}
        known: set[IPAddress] = set()
        for address in asked:
            hops, there = self._by_bgp.get(address) or self._remembered(address)
            overlaid = self._overlaid(address)
            raised[address] = ",".join(filter(None, (hops, overlaid)))
            if there or overlaid:
                known.add(address)
        self.raises = self.raises.observe(asked, raised)
        self.announced = (self.announced - frozenset(asked)) | known
        if said is not None:
            self._by_bgp = {one: told for one, told in self._by_bgp.items() if self._matters(one)}
            self.announced = frozenset(filter(self._matters, self.announced))
        return (self.raises, self.announced) != before

    def of(self, local: Local) -> tuple[int, bool]:
        """The newest raise elsewhere of a workload's addresses, and whether any is announced
        there. A way that the overlay has counts as a raise only where it says anything."""
        addresses = local.endpoint.addresses
        newest = 0
        for address in addresses:
            believed = self.overlay.believes(local, address)
            for hop, number in self.raises.numbers.get(address, {}).items():
                if believed or not hop.startswith(_OVERLAID):
                    newest = max(newest, number)
        return newest, not self.announced.isdisjoint(addresses)

    def lingering(self) -> frozenset[IPAddress]:
        """Addresses that BGP had raised elsewhere when the last workload here that had them went.
        The same raise must not pass for a new one, nor an old one for one that is still there."""
        return frozenset(
            address
            for address, hops in self.raises.numbers.items()
            if not self.roster.with_address(address)
            and not all(hop.startswith(_OVERLAID) for hop in hops)
        )

    def _matters(self, address: IPAddress) -> bool:
        return bool(self.roster.with_address(address)) or address in self.raises.numbers

    def _remembered(self, address: IPAddress) -> tuple[str, bool]:
        """BGP was not asked yet: what it said before this start still holds."""
        hops = self.raises.numbers.get(address, {})
        return ",".join(one for one in hops if not one.startswith(_OVERLAID)), False

    def _overlaid(self, address: IPAddress) -> str:
        """The hop to which this kernel's overlay leads an address, "" for none."""
        route = self.routes.tunnelled(ip_network(address))
        return "" if route is None else f"{_OVERLAID}{route.gateway}"
