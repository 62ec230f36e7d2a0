"""A VM's veth pair and route as the kernel port's tests ask for them."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network

from libtortie.linux.port import Route, RouteProto, VethPair

HOST_MAC = "ee:ee:ee:ee:ee:ee"
POD_MAC = "02:00:00:00:00:01"
VM = IPv4Network("10.65.0.2/32")
VM6 = IPv6Network("fd00:65::2/128")


def pair_to(path: str, host_name: str = "cali1", pod_name: str = "eth0") -> VethPair:
    """A pair whose far end is in a pod's namespace."""
    return VethPair(host_name, HOST_MAC, pod_name, path, 1440, POD_MAC)


def vm_route(priority: int, ifname: str = "cali1", proto: int = RouteProto.BOOT) -> Route:
    """The VM's own route on the host's end."""
    return Route(VM, priority, ifname, proto=proto, link_scope=True)
