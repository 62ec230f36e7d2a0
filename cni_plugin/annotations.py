"""What a pod and its namespace ask of IPAM, in Calico's annotations.

Pure. Every refusal is an `InvalidInput` that names the annotation. Pools: the pod's annotation
wins over its namespace's, which wins over the network configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

from cni_plugin.sections import is_unicast_mac
from cni_plugin.types import NetConf, short
from ipam.client import AddressRequest
from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress

PREFIX = "cni.projectcalico.org/"
IP_ADDRS = PREFIX + "ipAddrs"
IP_FAMILIES = PREFIX + "ipFamilies"
POOLS = {4: PREFIX + "ipv4pools", 6: PREFIX + "ipv6pools"}
HW_ADDR = PREFIX + "hwAddr"
REFUSED = (PREFIX + "ipAddrsNoIpam", PREFIX + "floatingIPs")
"""Annotations that would change addressing and that we do not honour: never ignored in silence."""

_LONGEST = 4096


def wanted_addresses(
    pod: Mapping[str, str],
    namespace: Mapping[str, str],
    conf: NetConf,
    *,
    namespace_labels: Mapping[str, str] | None = None,
    asked: str = "",
) -> AddressRequest:
    """The address request of a pod. `asked` is `IP=` of CNI_ARGS. Raises `InvalidInput`."""
    for name in REFUSED:
        if name in pod:
            raise InvalidInput(f"annotation {name} is not supported; remove it from the pod")
    pools = {
        version: _pools(name, pod, namespace)
        or (conf.ipam.ipv4_pools if version == 4 else conf.ipam.ipv6_pools)
        for version, name in POOLS.items()
    }
    explicit = _explicit(pod, conf, asked)
    families = _families(pod, namespace, conf)
    if explicit:
        families = {address.version for address in explicit}
    return AddressRequest(
        ipv4=4 in families,
        ipv6=6 in families,
        ipv4_pools=pools[4],
        ipv6_pools=pools[6],
        addresses=explicit,
        namespace_labels=dict(namespace_labels or {}),
    )


def wanted_mac(pod: Mapping[str, str], conf: NetConf, asked: str = "") -> str:
    """The MAC a pod asks for, or empty. `asked` is `MAC=` of CNI_ARGS."""
    for name, text in ((f"annotation {HW_ADDR}", pod.get(HW_ADDR, "")), ("CNI_ARGS: MAC", asked)):
        if text:
            if not is_unicast_mac(text.lower()):
                raise InvalidInput(f"{name} is {short(text)}; want a unicast MAC address")
            return text.lower()
    return conf.runtime.mac


def _explicit(pod: Mapping[str, str], conf: NetConf, asked: str) -> tuple[IPAddress, ...]:
    if IP_ADDRS in pod:
        return _addresses(f"annotation {IP_ADDRS}", _strings(IP_ADDRS, pod[IP_ADDRS]))
    if asked:
        return _addresses("CNI_ARGS: IP", tuple(asked.split(",")))
    return _addresses("runtimeConfig.ips", conf.runtime.ips)


def _addresses(source: str, texts: tuple[str, ...]) -> tuple[IPAddress, ...]:
    out: list[IPAddress] = []
    for text in texts:
        try:
            address = ip_address(text)
        except ValueError:
            raise InvalidInput(f"{source}: {short(text)} is not an IP address") from None
        if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
            raise InvalidInput(f"{source}: {short(text)} is not an address a pod can have")
        if any(address.version == other.version for other in out):
            raise InvalidInput(f"{source}: more than one IPv{address.version} address")
        out.append(address)
    return tuple(out)


def _families(pod: Mapping[str, str], namespace: Mapping[str, str], conf: NetConf) -> set[int]:
    text = pod.get(IP_FAMILIES, namespace.get(IP_FAMILIES))
    if text is None:
        flags = ((4, conf.ipam.assign_ipv4), (6, conf.ipam.assign_ipv6))
        return {version for version, on in flags if on}
    known = {"IPv4": 4, "IPv6": 6}
    families = set()
    for item in _strings(IP_FAMILIES, text):
        if item not in known:
            raise InvalidInput(f"annotation {IP_FAMILIES}: {short(item)} is not IPv4 or IPv6")
        families.add(known[item])
    return families


def _pools(name: str, pod: Mapping[str, str], namespace: Mapping[str, str]) -> tuple[str, ...]:
    text = pod.get(name, namespace.get(name))
    return () if text is None else _strings(name, text)


def _strings(name: str, text: str) -> tuple[str, ...]:
    """A non-empty JSON list of non-empty strings."""
    try:
        value = json.loads(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        value = None
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(item, str) and item for item in value)
    ):
        raise InvalidInput(f"annotation {name} is {short(text)}; want a JSON list of strings")
    return tuple(value)
