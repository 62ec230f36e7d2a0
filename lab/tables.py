"""Route tables at a moment: what a kernel would do with a packet for the guest.

Read over netlink by the caller's own process: no program is started while packets are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from lab import clock
from libtortie.linux.netns import Netns
from libtortie.linux.port import Route
from libtortie.model.ipam import IPAddress


@dataclass(frozen=True, slots=True)
class Tables:
    """Routes that cover one address (its own, its block's; else the default route), by place.

    `moment` is `before`, `at` or `after` a cut-over; best route first.
    """

    moment: str
    t_ns: int
    routes: Mapping[str, tuple[Route, ...]] = field(default_factory=dict)


def read_tables(moment: str, places: Mapping[str, str], address: str) -> Tables:
    """Ask each place's kernel; `places` is name → path of a namespace. Raises `TortieError`."""
    guest = ip_address(address)
    began = clock.monotonic()
    return Tables(moment, began, {name: _covering(path, guest) for name, path in places.items()})


def _covering(netns: str, guest: IPAddress) -> tuple[Route, ...]:
    kernel = Netns().open(netns)
    try:
        found = [one for one in kernel.routes(version=guest.version) if guest in one.dst]
    finally:
        kernel.close()
    narrow = [one for one in found if one.dst.prefixlen]
    return tuple(sorted(narrow or found, key=lambda one: (-one.dst.prefixlen, one.priority)))
