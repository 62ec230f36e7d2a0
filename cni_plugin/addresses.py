"""Who gives a sandbox its addresses, and what it got: our IPAM, another program's, or the pod.

What is not from our IPAM is noted on the WorkloadEndpoint, for the calls that come after: a
repeated ADD answers the same, CHECK knows whom to ask, and which routes the pod has. Values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from typing import Any

from cni_plugin.delegate import Given
from libtortie.errors import Malformed
from libtortie.linux.port import IPNetwork
from libtortie.model import names
from libtortie.model.ipam import IPAddress
from libtortie.model.resources import WorkloadEndpoint

NOBODY = "none"
"""The giver of addresses that a pod brings along (annotation `ipAddrsNoIpam`)."""

DEFAULTS = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@dataclass(frozen=True, slots=True)
class Giver:
    """Who gave the addresses: `kind` is empty for our IPAM, else `NOBODY` or a program's name.

    `routes` and `dns` are what that program answered, as it wrote them.
    """

    kind: str = ""
    routes: tuple[Mapping[str, Any], ...] = ()
    dns: Mapping[str, Any] | None = None

    def note(self) -> str:
        """The text on the endpoint; empty for our IPAM."""
        if not self.kind:
            return ""
        return json.dumps({"type": self.kind, "routes": self.routes, "dns": self.dns or {}})

    def destinations(self, *, with_defaults: bool) -> tuple[IPNetwork, ...]:
        """What the pod reaches by its gateway: what the program says, or without that all."""
        told = self.told()
        return (*told, *DEFAULTS) if with_defaults or not told else told

    def told(self) -> tuple[IPNetwork, ...]:
        """The destinations that the program named."""
        return tuple(ip_network(str(route["dst"]), strict=False) for route in self.routes)


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a sandbox has got."""

    own: tuple[IPAddress, ...]
    giver: Giver = Giver()


def of_program(kind: str, given: Given) -> Addresses:
    """What another program's IPAM gave. Its masks are not ours: a pod has one neighbour."""
    own = tuple(dict.fromkeys(address.ip for address in given.addresses))
    return Addresses(own, Giver(kind, given.routes, given.dns))


def giver_of(endpoint: WorkloadEndpoint) -> Giver:
    """Who gave an endpoint its addresses. Raises `Malformed` for a note that cannot be read."""
    text = endpoint.metadata.annotations.get(names.ANNOTATION_IPAM, "")
    if not text:
        return Giver()
    try:
        body = json.loads(text)
        giver = Giver(str(body["type"]), tuple(body.get("routes") or ()), body.get("dns") or None)
        giver.destinations(with_defaults=False)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        where = f"WorkloadEndpoint {endpoint.metadata.name}: annotation {names.ANNOTATION_IPAM}"
        raise Malformed(f"{where}: {error}") from error
    return giver


def recorded(endpoint: WorkloadEndpoint, kind: str) -> Addresses | None:
    """What an endpoint has by the same giver; None where it has nothing of that one."""
    giver = giver_of(endpoint)
    if giver.kind != kind or not endpoint.spec.ip_networks:
        return None
    own = tuple(ip_interface(text).ip for text in endpoint.spec.ip_networks)
    return Addresses(own, giver)
