"""What an endpoint has besides its own addresses: floating ones, and networks it may send from.

Pure. Pods ask for both in annotations, which whoever may patch a pod can write; so each counts
only where FelixConfiguration says so (`floatingIPs: Enabled`, `workloadSourceSpoofing: Any`), as
with Calico. A floating address never takes an endpoint's own away: whoever has it by right keeps
it, a node's own is nobody else's, and of several who only want it the first interface by name has
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import collapse_addresses
from typing import Protocol

from felix_shim.model import Endpoint
from felix_shim.settings import Settings
from libtortie.errors import Malformed
from libtortie.linux.port import IPNetwork
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Key
from libtortie.model.plain_ip import can_be_reached, plain_address, plain_network
from libtortie.model.resources import WorkloadEndpointSpec

Translation = tuple[IPAddress, IPAddress]
"""(own, floating)"""


class Holder(Protocol):
    """An endpoint on an interface, with its addresses."""

    @property
    def interface(self) -> str:
        """The host's end of its veth."""

    @property
    def addresses(self) -> tuple[IPAddress, ...]:
        """Its own."""

    @property
    def floating(self) -> tuple[Translation, ...]:
        """By which it is reached besides."""


def floating_of(
    spec: WorkloadEndpointSpec, own: tuple[IPAddress, ...], where: str
) -> tuple[Translation, ...]:
    """The translations that a stored endpoint asks for. Raises `Malformed`."""
    found: dict[IPAddress, IPAddress] = {}
    for item in spec.ip_nats:
        try:
            inner, outer = plain_address(item.internal_ip), plain_address(item.external_ip)
        except ValueError as error:
            raise Malformed(f"{where}: ipNATs: {error}") from error
        if inner not in own or inner.version != outer.version:
            raise Malformed(f"{where}: ipNATs: {outer} cannot stand for {inner}")
        if can_be_reached(outer):  # one that was stored before ADD refused it costs nothing else
            found.setdefault(outer, inner)
    return tuple((inner, outer) for outer, inner in found.items())


def prefixes_of(spec: WorkloadEndpointSpec, where: str) -> tuple[IPNetwork, ...]:
    """The networks that a stored endpoint wants to send from, disjoint. Raises `Malformed`."""
    families: dict[int, list[IPNetwork]] = {4: [], 6: []}
    for text in spec.allow_spoofed_source_prefixes:
        try:
            network = plain_network(text)
        except ValueError as error:
            raise Malformed(f"{where}: allowSpoofedSourcePrefixes: {error}") from error
        families[network.version].append(network)
    return tuple(one for some in families.values() for one in _collapsed(some))


def _collapsed(networks: list[IPNetwork]) -> Iterable[IPNetwork]:
    return collapse_addresses(networks)  # type: ignore[type-var]  # all of one family


def permitted(endpoint: Endpoint, settings: Settings, nodes: Collection[IPAddress]) -> Endpoint:
    """The endpoint with what the settings let it have, and the nodes leave it."""
    wanted = endpoint.floating if settings.floating_ips else ()
    floating = tuple(one for one in wanted if one[1] not in nodes)
    prefixes = endpoint.source_prefixes if settings.source_spoofing else ()
    if (floating, prefixes) == (endpoint.floating, endpoint.source_prefixes):
        return endpoint
    return replace(endpoint, floating=floating, source_prefixes=prefixes)


def translated(holders: Iterable[Holder]) -> dict[IPAddress, IPAddress]:
    """Floating address → whose it stands for, of all endpoints of a node."""
    everyone = tuple(holders)
    wanting = [one for one in everyone if one.floating]
    if not wanting:
        return {}
    owned = {address for one in everyone for address in one.addresses}
    found: dict[IPAddress, IPAddress] = {}
    for one in sorted(wanting, key=lambda holder: holder.interface):
        for inner, outer in one.floating:
            if outer not in owned:
                found.setdefault(outer, inner)
    return found


@dataclass(slots=True)
class Wishes:
    """The endpoints that ask for extras, as stored, whatever they are permitted."""

    _asked: dict[Key, Endpoint] = field(default_factory=dict)

    def noted(
        self, key: Key, endpoint: Endpoint, settings: Settings, nodes: Collection[IPAddress]
    ) -> Endpoint:
        """The endpoint as it may be; what it asked for is kept for when the settings change."""
        if endpoint.floating or endpoint.source_prefixes:
            self._asked[key] = endpoint
        else:
            self._asked.pop(key, None)
        return permitted(endpoint, settings, nodes)

    def forget(self, key: Key) -> None:
        """An endpoint is gone."""
        self._asked.pop(key, None)

    def all(self) -> tuple[tuple[Key, Endpoint], ...]:
        """Everyone who asked, and for what."""
        return tuple(self._asked.items())
