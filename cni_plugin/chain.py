"""The place in a chain: what plugins before ours made, and our result added to it.

A chain's result is one document: its later plugins and the runtime see what every plugin made.
So what came before is passed on as it is, only spelled as the chain's CNI version wants it, and
our interfaces and addresses follow; an address names its interface by its place in the list
(CNI spec, section 5). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from cni_plugin.errors import InvalidConfig
from libtortie.linux.port import IPInterface
from libtortie.model.ipam import IPAddress

_BEFORE_CHAINS = ("0.1.0", "0.2.0")
_LISTS = ("interfaces", "ips", "routes")
_SINCE_1_1 = ("mtu", "socketPath", "pciID")
"""Keys of an interface that earlier versions do not have."""

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Previous:
    """A `prevResult`: the lists that every result has, and what else was in it."""

    interfaces: tuple[JSON, ...] = ()
    ips: tuple[JSON, ...] = ()
    routes: tuple[JSON, ...] = ()
    more: Mapping[str, Any] | None = None

    def addresses(self) -> frozenset[IPAddress]:
        """All addresses, without their masks. Raises `InvalidConfig` for what is no address."""
        return frozenset(_read(item.get("address")).ip for item in self.ips)

    def addresses_of(self, ifname: str) -> frozenset[str]:
        """The addresses of a sandbox's interface; those that name no interface are any's.

        Raises `InvalidConfig` for what is no address.
        """
        found = set()
        for item in self.ips:
            index = item.get("interface")
            if index is None or self._is_in_sandbox(index, ifname):
                found.add(_normal(item.get("address")))
        return frozenset(found)

    def interface(self, ifname: str) -> JSON | None:
        """The interface of this name in a sandbox."""
        numbers = range(len(self.interfaces))
        return next((self.interfaces[n] for n in numbers if self._is_in_sandbox(n, ifname)), None)

    def mtu_of(self, host: str) -> int:
        """The MTU of the node's interface of this name; 0 where it is not told."""
        named = (one for one in self.interfaces if one.get("name") == host)
        found = next((one.get("mtu") for one in named if not one.get("sandbox")), None)
        return found if isinstance(found, int) else 0

    def _is_in_sandbox(self, index: object, ifname: str) -> bool:
        if not isinstance(index, int) or not 0 <= index < len(self.interfaces):
            return False
        interface = self.interfaces[index]
        return interface.get("name") == ifname and bool(interface.get("sandbox"))


def previous(value: Mapping[str, Any] | None) -> Previous | None:
    """A `prevResult` of any CNI version, None where there is none.

    Raises `InvalidConfig`, for addresses too: it must not come to light when ADD is done.
    """
    if value is None:
        return None
    lists = {key: _objects(value, key) for key in _LISTS}
    for family in ("ip4", "ip6"):  # before 0.3.0
        if old := value.get(family):
            if not isinstance(old, dict):
                raise InvalidConfig(f"prevResult.{family}: want an object")
            gateway = {"gateway": old["gateway"]} if old.get("gateway") else {}
            lists["ips"] += ({"address": old.get("ip"), **gateway},)
            lists["routes"] += _objects(old, "routes")
    for item in lists["ips"]:
        _read(item.get("address"))
    known = {*_LISTS, "ip4", "ip6", "cniVersion"}
    more = {key: item for key, item in value.items() if key not in known}
    return Previous(lists["interfaces"], lists["ips"], lists["routes"], more)


def require_chains(before: Previous | None, version: str) -> None:
    """Raises `InvalidConfig` where a result cannot say what several plugins made."""
    if before is not None and version in _BEFORE_CHAINS:
        raise InvalidConfig(
            f"prevResult: cniVersion {version} knows no chains; use 0.3.0 or a later one"
        )


def extended(before: Previous | None, ours: JSON, version: str) -> JSON:
    """Our result behind the one before; both in the words of `version`."""
    if before is None:
        return ours
    count = len(before.interfaces)
    moved = [
        {**item, "interface": item["interface"] + count} if "interface" in item else item
        for item in ours.get("ips", ())
    ]
    out: JSON = {
        "cniVersion": version,
        "interfaces": [
            *(_interface(item, version) for item in before.interfaces),
            *ours.get("interfaces", ()),
        ],
        "ips": [*(_ip(item, version) for item in before.ips), *moved],
    }
    if routes := [*before.routes, *ours.get("routes", ())]:
        out["routes"] = routes
    more = {key: value for key, value in (before.more or {}).items() if key != "dns"}
    return {**more, **out, "dns": (before.more or {}).get("dns") or ours.get("dns") or {}}


def _interface(item: JSON, version: str) -> JSON:
    unknown = () if version == "1.1.0" else _SINCE_1_1
    return {key: value for key, value in item.items() if key not in unknown}


def _ip(item: JSON, version: str) -> JSON:
    """Before 1.0.0 an address said its family, after that it must not."""
    rest = {key: value for key, value in item.items() if key != "version"}
    if not version.startswith("0."):
        return rest
    family = _read(item.get("address")).version
    return {"version": str(family), **rest}


def _objects(value: Mapping[str, Any], key: str) -> tuple[JSON, ...]:
    found = value.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InvalidConfig(f"prevResult.{key}: want a list of objects")
    return tuple(found)


def _normal(address: object) -> str:
    return str(_read(address))


def _read(address: object) -> IPInterface:
    try:
        return ip_interface(str(address))
    except ValueError as error:
        raise InvalidConfig(f"prevResult.ips: {error}") from None
