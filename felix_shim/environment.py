"""Calico's environment variables for a node, as keys of our configuration. Pure.

They fill in what the file does not say, so that a manifest written for calico-node goes on
working. IPIP is refused: a pool that promised it would lead into the void.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libtortie.errors import InvalidInput

NODENAME = "NODENAME"
_KEYS = {
    "CALICO_NODENAME_FILE": ("nodename_file",),
    "AS": ("as_number",),
    "CALICO_ROUTER_ID": ("router_id",),
    "CLUSTER_TYPE": ("cluster_type",),
    "CALICO_K8S_NODE_REF": ("k8s_node",),
}
_POOL_KEYS = {
    "CIDR": "cidr",
    "BLOCK_SIZE": "block_size",
    "NAT_OUTGOING": "nat_outgoing",
    "NODE_SELECTOR": "node_selector",
    "DISABLE_BGP_EXPORT": "disable_bgp_export",
    "VXLAN": "vxlan_mode",
}
_FAMILIES = {"CALICO_IPV4POOL_": "ipv4", "CALICO_IPV6POOL_": "ipv6"}
_NEVER = ("", "Never", "Off", "off", "never")


def settings_in(environ: Mapping[str, str]) -> dict[str, Any]:
    """The configuration's keys that the environment sets. Raises `InvalidInput`."""
    found: dict[str, Any] = {
        path[0]: environ[name] for name, path in _KEYS.items() if environ.get(name)
    }
    for key, prefix in (("ip", "IP"), ("ip6", "IP6")):
        if ip := _ip(environ, prefix):
            found[key] = ip
    if _true(environ.get("DISABLE_NODE_IP_CHECK", "")):
        found["ip_check"] = False
    pools = {family: _pool(environ, prefix) for prefix, family in _FAMILIES.items()}
    if _true(environ.get("NO_DEFAULT_POOLS", "")):
        pools = {family: {"cidr": "none"} for family in pools}
    if any(pools.values()):
        found["default_pools"] = {family: pool for family, pool in pools.items() if pool}
    return found


def _ip(environ: Mapping[str, str], prefix: str) -> str:
    """`IP` if it is an address, else how to find one; IPv6 only when `IP6` asks for it."""
    address = environ.get(prefix, "").strip()
    if (address and address != "autodetect") or (prefix == "IP6" and not address):
        return address
    return environ.get(f"{prefix}_AUTODETECTION_METHOD", "").strip() or address


def _pool(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    if (ipip := environ.get(f"{prefix}IPIP", "")) not in _NEVER:
        raise InvalidInput(f"{prefix}IPIP={ipip}: there is no IPIP, use VXLAN or Never")
    found = {
        key: environ[prefix + name]
        for name, key in _POOL_KEYS.items()
        if environ.get(prefix + name)
    }
    if found.get("vxlan_mode") in _NEVER:
        del found["vxlan_mode"]
    return found


def _true(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "yes")
