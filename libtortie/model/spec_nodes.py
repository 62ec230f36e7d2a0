"""What nodes, endpoints and the controllers' settings may say when they are written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from libtortie.model.names import wep_name
from libtortie.model.plain_ip import plain_network
from libtortie.model.policy_spec import INTERFACE, protocol_number
from libtortie.model.spec_shape import (
    address,
    any_network,
    anything,
    as_number,
    duration,
    interface_address,
    list_of,
    map_of,
    network,
    number,
    one_of,
    selector,
    shown,
    struct,
    text,
    valued,
)

_MAC = text(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", said="is not a MAC address")
_INTERFACE = text(INTERFACE.pattern, said="is not an interface's name")
_CONTAINER = text(r"([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)?", said="is not a container's id")
_SWITCH = one_of("Enabled", "Disabled")
_NAME = text()


@valued
def _host_network(value: Any) -> Any:
    """One address as a network: /32 or /128 may be left out."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not an address")
    found = plain_network(value)
    if found.num_addresses != 1:
        raise ValueError(f"{value} is more than one address: want /{found.max_prefixlen}")
    return str(found)


@valued
def _protocol(value: Any) -> Any:
    """As policies have it; a number in a string is a number."""
    protocol_number(value)
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _bgp_rules(bgp: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not bgp:
        yield "", "is empty: leave it out"
    for field, version in (("ipv4Address", 4), ("ipv6Address", 6)):
        given = bgp.get(field)
        if given and (6 if ":" in given else 4) != version:
            yield field, f"{given} is not IPv{version}"


NODE = struct(
    {
        "bgp": struct(
            {
                "asNumber": as_number,
                "ipv4Address": interface_address,
                "ipv6Address": interface_address,
                "ipv4IPIPTunnelAddr": address,
                "routeReflectorClusterID": address,
            },
            rules=[_bgp_rules],
        ),
        "ipv4VXLANTunnelAddr": address,
        "vxlanTunnelMACAddr": _MAC,
        "ipv6VXLANTunnelAddr": address,
        "vxlanTunnelMACAddrV6": _MAC,
        "orchRefs": list_of(struct({"nodeName": _NAME, "orchestrator": _NAME})),
        "wireguard": struct({"interfaceIPv4Address": address, "interfaceIPv6Address": address}),
        "addresses": list_of(
            struct(
                {
                    "address": any_network,
                    "type": one_of("CalicoNodeIP", "InternalIP", "ExternalIP"),
                },
                required=["address"],
            )
        ),
        "interfaces": list_of(struct({"name": _NAME, "addresses": list_of(any_network)})),
    }
)

_QOS_FIELDS = (
    "ingressBandwidth egressBandwidth ingressBurst egressBurst ingressPeakrate egressPeakrate"
    " ingressMinburst egressMinburst ingressPacketRate egressPacketRate ingressPacketBurst"
    " egressPacketBurst ingressMaxConnections egressMaxConnections"
)
_QOS = struct({name: number(0, (1 << 63) - 1) for name in _QOS_FIELDS.split()} | {"dscp": anything})


def _endpoint_rules(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields of which its name is made."""
    of = {"k8s": ("pod",), "cni": ("containerID",), "libnetwork": ()}
    orchestrator = spec.get("orchestrator", "")
    for field in ("node", *of.get(orchestrator, ("workload",)), "endpoint"):
        if not spec.get(field):
            yield field, f"is missing: the name of an endpoint of {orchestrator!r} has it"
    own = {one.partition("/")[0] for one in spec.get("ipNetworks") or ()}
    for place, nat in enumerate(spec.get("ipNATs") or ()):
        if nat["internalIP"] not in own:
            yield f"ipNATs.{place}.internalIP", f"{nat['internalIP']} is not in ipNetworks"


ENDPOINT = struct(
    {
        **dict.fromkeys(
            ("orchestrator", "workload", "node", "pod", "endpoint", "serviceAccountName"), _NAME
        ),
        "containerID": _CONTAINER,
        "interfaceName": text(
            r"[a-zA-Z0-9_.-]{1,15}", said="is not an interface's name of at most 15 characters"
        ),
        "mac": _MAC,
        "ipv4Gateway": address,
        "ipv6Gateway": address,
        "ipNetworks": list_of(_host_network),
        "ipNATs": list_of(
            struct(
                {"internalIP": address, "externalIP": address},
                required=["internalIP", "externalIP"],
            )
        ),
        "profiles": list_of(_NAME),
        "ports": list_of(
            struct(
                {
                    "name": _NAME,
                    "protocol": _protocol,
                    "port": number(0, 65535),
                    "hostPort": number(0, 65535),
                    "hostIP": text(),
                },
                required=["protocol", "port"],
            )
        ),
        "allowSpoofedSourcePrefixes": list_of(network),
        "qosControls": _QOS,
    },
    required=["orchestrator", "interfaceName"],
    rules=[_endpoint_rules],
)


def endpoint_name(spec: Mapping[str, Any]) -> str:
    """The name that an endpoint has by its fields."""
    orchestrator = str(spec.get("orchestrator", ""))
    middle = {"k8s": "pod", "cni": "containerID"}.get(orchestrator, "workload")
    workload = "libnetwork" if orchestrator == "libnetwork" else str(spec.get(middle) or "")
    return wep_name(str(spec["node"]), orchestrator, workload, str(spec["endpoint"]))


_TEMPLATE = struct(
    {
        "generateName": text(r"[a-z0-9]([-a-z0-9]*)?", most=253),
        "interfaceCIDRs": list_of(network),
        "interfacePattern": text(),
        "labels": map_of(text()),
        "annotations": map_of(text()),
        "nodeSelector": selector,
    }
)
_PERIOD = {"reconcilerPeriod": duration()}
CONTROLLERS = struct(
    {
        "logSeverityScreen": one_of(
            "None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic", any_case=True
        ),
        "healthChecks": one_of("Enabled", "Disabled", any_case=True),
        "etcdV3CompactionPeriod": duration(),
        "prometheusMetricsPort": number(0, 65535),
        "debugProfilePort": number(0, 65535),
        "controllers": struct(
            {
                "node": struct(
                    {
                        **_PERIOD,
                        "syncLabels": _SWITCH,
                        "leakGracePeriod": duration(),
                        "hostEndpoint": struct(
                            {
                                "autoCreate": _SWITCH,
                                "createDefaultHostEndpoint": _SWITCH,
                                "templates": list_of(_TEMPLATE),
                            }
                        ),
                    },
                    defaults={"leakGracePeriod": "15m0s"},
                ),
                "policy": struct(_PERIOD),
                "workloadEndpoint": struct(_PERIOD),
                "serviceAccount": struct(_PERIOD),
                "namespace": struct(_PERIOD),
                "loadBalancer": struct(
                    {"assignIPs": one_of("AllServices", "RequestedServicesOnly")},
                    defaults={"assignIPs": "AllServices"},
                ),
                "migration": struct(
                    {"policyNameMigrator": _SWITCH}, defaults={"policyNameMigrator": "Enabled"}
                ),
            }
        ),
    },
    defaults={"healthChecks": "Enabled"},
)
METRICS_PORT = 9094

NODE_STATUS = struct(
    {
        "node": _NAME,
        "classes": list_of(one_of("Agent", "BGP", "Routes")),
        "updatePeriodSeconds": number(0, (1 << 32) - 1),
    },
    required=["node"],
)

_LABEL_VALUE = re.compile(r"([a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?)?")
_LABEL_NAME = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")
_PREFIX = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)


def key_problem(key: str) -> str:
    """Why a text cannot be the key of a label or annotation; empty: it can."""
    prefix, slash, name = key.rpartition("/")
    if (not slash or _PREFIX.fullmatch(prefix)) and _LABEL_NAME.fullmatch(name):
        return ""
    return f"{shown(key)} is not a key: want name or domain/name, the name of at most 63 characters"


def value_problem(value: Any) -> str:
    """Why something cannot be the value of a label; empty: it can."""
    if isinstance(value, str) and _LABEL_VALUE.fullmatch(value):
        return ""
    return f"{shown(value)} is not a label's value: want at most 63 of letters, digits, -, _ and ."
