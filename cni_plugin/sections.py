"""The sections of the network configuration: objects within it, each with its own keys.

Calico's names and defaults. An unknown key in a section of ours is an error, so that a typing
mistake is never silent; what is in the section of another program's IPAM is that program's.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from libtortie.linux.port import IPNetwork

OWN_IPAM = ("tortie-ipam", "calico-ipam")
"""Values of `ipam.type` that mean the IPAM of this package."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class Strict(BaseModel):
    """Immutable; an unknown key or a value of another JSON type is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, strict=True)


def absolute(value: str) -> str:
    """A path as it has to be; empty is none. Raises ValueError."""
    if value and (not Path(value).is_absolute() or "\0" in value):
        raise ValueError("want an absolute path")
    return value


def _flag(value: object) -> object:
    """Calico writes these two as strings; JSON's booleans work, too."""
    known = {"true": True, "false": False}
    return known.get(value.lower(), value) if isinstance(value, str) else value


def _tuple(value: object) -> object:
    """A JSON array, for the strict check that follows."""
    return tuple(value) if isinstance(value, list) else value


def is_unicast_mac(text: str) -> bool:
    """Whether a lower-case text is a MAC address a pod may carry."""
    return (
        _MAC.fullmatch(text) is not None
        and not int(text[:2], 16) & 1
        and text != "00:00:00:00:00:00"
    )


class KubernetesConf(Strict):
    """`kubernetes`: how to reach the API server. One of the two is needed.

    `node_name` is the name of the core Node whose `podCIDRs` a delegated IPAM uses.
    """

    kubeconfig: str = ""
    k8s_api_root: str = ""
    node_name: str = ""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not (self.kubeconfig or self.k8s_api_root):
            raise ValueError("want kubeconfig or k8s_api_root")
        return self


class PolicyConf(Strict):
    """`policy`: `k8s` takes labels, ports and service account from the API's pod.

    The other keys are Calico's older way to say what a kubeconfig says; they count before it.
    """

    type: Literal["k8s", ""] = "k8s"
    k8s_api_root: str = ""
    k8s_auth_token: str = Field(default="", repr=False)
    k8s_client_certificate: str = ""
    k8s_client_key: str = ""
    k8s_certificate_authority: str = ""

    _paths = field_validator(
        "k8s_client_certificate", "k8s_client_key", "k8s_certificate_authority"
    )(absolute)

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if bool(self.k8s_client_certificate) != bool(self.k8s_client_key):
            raise ValueError("k8s_client_certificate and k8s_client_key belong together")
        return self


class IPAMRoute(Strict):
    """A route that a foreign plugin is told to make; `gw` empty means the address's gateway."""

    dst: str
    gw: str = ""

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        ip_network(self.dst, strict=False)
        if self.gw:
            ip_address(self.gw)
        return self


class IPAMConf(Strict):
    """`ipam`, where it is ours.

    `gateway`, `routes` and `prefix` are for foreign plugins that ask for addresses: what their
    result says besides the address. `prefix` is that of the block the address is from (as in
    Calico), of its pool, or the address alone.
    """

    type: Literal["tortie-ipam", "calico-ipam"] = "tortie-ipam"
    assign_ipv4: Annotated[bool, BeforeValidator(_flag)] = True
    assign_ipv6: Annotated[bool, BeforeValidator(_flag)] = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()
    prefix: Literal["block", "pool", "host"] = "block"
    gateway: tuple[str, ...] = ()
    routes: tuple[IPAMRoute, ...] = ()

    @field_validator("gateway", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else _tuple(value)

    @field_validator("gateway")
    @classmethod
    def _one_per_family(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = [ip_address(text) for text in value]
        if len({one.version for one in found}) < len(found):
            raise ValueError("want one address per family")
        return tuple(str(one) for one in found)


class Bandwidth(BaseModel):
    """The capability `bandwidth`; bits per second and bits. A chained plugin obeys it."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    ingress_rate: int = Field(default=0, ge=0, alias="ingressRate")
    ingress_burst: int = Field(default=0, ge=0, alias="ingressBurst")
    egress_rate: int = Field(default=0, ge=0, alias="egressRate")
    egress_burst: int = Field(default=0, ge=0, alias="egressBurst")


class RuntimeConf(BaseModel):
    """`runtimeConfig`: capabilities of the CNI conventions, as the runtime grants them.

    `mac`, `ips` and `ipRanges` are obeyed. What else a runtime grants (`portMappings`,
    `bandwidth`, `dns` …) is the chained plugins' or a delegated IPAM's: it is kept for them.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, strict=True)

    mac: str = ""
    ips: tuple[str, ...] = ()
    ip_ranges: tuple[tuple[dict[str, Any], ...], ...] = Field(default=(), alias="ipRanges")
    port_mappings: tuple[dict[str, Any], ...] = Field(default=(), alias="portMappings")
    bandwidth: Bandwidth | None = None

    @field_validator("mac")
    @classmethod
    def _is_mac(cls, value: str) -> str:
        if value and not is_unicast_mac(value.lower()):
            raise ValueError("want a unicast MAC address such as 02:00:5e:10:00:01")
        return value.lower()

    @field_validator("ips")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(ip_address(item.split("/")[0])) for item in value)

    def ranges(self) -> tuple[IPNetwork, ...]:
        """The networks of `ipRanges`. ValueError for what narrows them further."""
        out: list[IPNetwork] = []
        for item in (item for group in self.ip_ranges for item in group):
            more = sorted(set(item) - {"subnet"})
            if more:
                raise ValueError(f"runtimeConfig.ipRanges: {more[0]} is not supported: want pools")
            out.append(_network(item.get("subnet")))
        return tuple(out)


def _network(value: object) -> IPNetwork:
    if not isinstance(value, str):
        raise ValueError("runtimeConfig.ipRanges: every range needs a subnet")
    try:
        return ip_network(value)
    except ValueError as error:
        raise ValueError(f"runtimeConfig.ipRanges: subnet: {error}") from None


class DNSConf(Strict):
    """`dns`: what the network says of name servers; it is passed to the runtime in ADD's result."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @field_validator("nameservers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ip_address(text)
        return value

    def to_wire(self) -> dict[str, Any]:
        """The object of the CNI specification; empty where nothing is said."""
        told = self.model_dump(exclude_defaults=True)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in told.items()}


class FeatureControl(Strict):
    """`feature_control`: what pods may ask for only where the cluster's operator allows it."""

    ip_addrs_no_ipam: bool = False
    floating_ips: bool = False


class ContainerSettings(Strict):
    """`container_settings`: whether pods may forward packets."""

    allow_ip_forwarding: bool = False


class DataplaneOptions(BaseModel):
    """`dataplane_options`: Calico can leave the wiring to another program; we do it ourselves."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    type: Literal["", "linux"] = ""
