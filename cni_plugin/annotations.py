"""What a pod and its namespace ask for, in Calico's annotations.

Pure. Every refusal is an `InvalidInput` that names the annotation, and none is ignored in silence:
what the operator's gates or another program's IPAM rule out is refused, too. Pools: the pod's
annotation wins over its namespace's, which wins over the runtime's and the configuration's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address

from cni_plugin.sections import is_unicast_mac
from cni_plugin.types import NetConf, short
from ipam.client import AddressRequest
from libtortie.errors import InvalidInput
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import can_be_reached, plain_network

PREFIX = "cni.projectcalico.org/"
IP_ADDRS = PREFIX + "ipAddrs"
IP_FAMILIES = PREFIX + "ipFamilies"
POOLS = {4: PREFIX + "ipv4pools", 6: PREFIX + "ipv6pools"}
HW_ADDR = PREFIX + "hwAddr"
NO_IPAM = PREFIX + "ipAddrsNoIpam"
FLOATING = PREFIX + "floatingIPs"
SOURCES = PREFIX + "allowedSourcePrefixes"

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
    pools = {
        version: _pools(name, pod, namespace) or _configured_pools(conf, version)
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


def static_addresses(pod: Mapping[str, str], conf: NetConf) -> tuple[IPAddress, ...]:
    """The addresses that a pod brings along, past any IPAM; () where it wants one of IPAM's."""
    if NO_IPAM not in pod:
        return ()
    if not conf.feature_control.ip_addrs_no_ipam:
        raise _gated(NO_IPAM, "ip_addrs_no_ipam")
    if IP_ADDRS in pod:
        raise InvalidInput(f"annotations {IP_ADDRS} and {NO_IPAM}: a pod can have one of them")
    return _addresses(f"annotation {NO_IPAM}", _strings(NO_IPAM, pod[NO_IPAM]))


def require_no_pool_wishes(pod: Mapping[str, str], conf: NetConf) -> None:
    """Refuse what a delegated IPAM cannot be told: addresses and pools of ours."""
    for name in (IP_ADDRS, IP_FAMILIES, *POOLS.values()):
        if name in pod:
            raise InvalidInput(
                f"annotation {name} is for ipam.type tortie-ipam; it is {conf.delegated}"
            )


def floating_addresses(pod: Mapping[str, str], conf: NetConf) -> tuple[IPAddress, ...]:
    """Addresses by which the pod shall be reached besides its own."""
    if FLOATING not in pod:
        return ()
    if not conf.feature_control.floating_ips:
        raise _gated(FLOATING, "floating_ips")
    texts = _strings(FLOATING, pod[FLOATING])
    found = tuple(dict.fromkeys(_address(f"annotation {FLOATING}", text) for text in texts))
    for address in found:
        if not can_be_reached(address):
            raise InvalidInput(f"annotation {FLOATING}: {address} is not reached from elsewhere")
    return found


def translations(
    floating: Iterable[IPAddress], own: Iterable[IPAddress]
) -> tuple[tuple[IPAddress, IPAddress], ...]:
    """(own, floating) for each floating address: the pod's first of its family."""
    first: dict[int, IPAddress] = {}
    for address in own:
        first.setdefault(address.version, address)
    missing = next((one for one in floating if one.version not in first), None)
    if missing is not None:
        raise InvalidInput(
            f"annotation {FLOATING}: {missing}: the pod has no IPv{missing.version} address"
        )
    return tuple((first[one.version], one) for one in floating)


def source_prefixes(pod: Mapping[str, str]) -> tuple[str, ...]:
    """Networks from whose addresses the pod may send, besides its own."""
    if SOURCES not in pod:
        return ()
    out: dict[str, None] = {}
    for text in _strings(SOURCES, pod[SOURCES]):
        try:
            out[str(plain_network(text))] = None
        except ValueError:
            raise InvalidInput(f"annotation {SOURCES}: {short(text)} is not a CIDR") from None
    return tuple(out)


def _gated(name: str, gate: str) -> InvalidInput:
    return InvalidInput(
        f"annotation {name}: feature_control.{gate} is off in the network configuration"
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
        address = _address(source, text)
        if any(address.version == other.version for other in out):
            raise InvalidInput(f"{source}: more than one IPv{address.version} address")
        out.append(address)
    return tuple(out)


def _address(source: str, text: str) -> IPAddress:
    try:
        address = ip_address(text)
    except ValueError:
        raise InvalidInput(f"{source}: {short(text)} is not an IP address") from None
    mapped = isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id)
    nobodys = address.is_unspecified or address.is_multicast or address.is_loopback
    if mapped or nobodys or text == "255.255.255.255":
        raise InvalidInput(f"{source}: {short(text)} is not an address a pod can have")
    return address


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


def _configured_pools(conf: NetConf, version: int) -> tuple[str, ...]:
    """The runtime's `ipRanges` of a family, else the configuration's pools."""
    granted = tuple(str(one) for one in conf.runtime.ranges() if one.version == version)
    return granted or (conf.ipam.ipv4_pools if version == 4 else conf.ipam.ipv6_pools)


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
