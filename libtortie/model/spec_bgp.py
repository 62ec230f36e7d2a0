"""What the resources of BGP may say when they are written: Calico's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from libtortie.model.bgp_spec import (
    INTERFACE,
    PRIORITY_MAX,
    address_and_port,
    community_of,
    peering_address,
)
from libtortie.model.plain_ip import plain_address
from libtortie.model.spec_shape import (
    address,
    as_number,
    duration,
    either,
    flag,
    list_of,
    needs,
    network,
    number,
    one_of,
    selector,
    shown,
    struct,
    text,
    valued,
)

PRIORITY = number(1, PRIORITY_MAX)
SEVERITY = one_of("Trace", "Debug", "Info", "Warning", "Error", "Fatal", any_case=True)
_ONLY_DEFAULT = (
    "nodeToNodeMeshEnabled",
    "asNumber",
    "serviceClusterIPs",
    "serviceExternalIPs",
    "serviceLoadBalancerIPs",
    "nodeMeshPassword",
    "nodeMeshMaxRestartTime",
)
SECRET = struct(
    {
        "secretKeyRef": struct(
            {"name": text(), "key": text(), "optional": flag}, required=["name", "key"]
        )
    },
    required=["secretKeyRef"],
)


@valued()
def community(value: Any) -> Any:
    """`aa:nn` (16 bits each) or `aa:nn:mm` (32 bits each)."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no community aa:nn or aa:nn:mm")
    community_of(value)
    return value


@valued()
def peer_ip(value: Any) -> Any:
    """An address, with a port or without: `192.0.2.1:179`, `[2001:db8::1]:179`."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not an IP address")
    address_and_port(value)
    return value


def _peering(version: int) -> Any:
    @valued()
    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not an IP address")
        peering_address(value, version)
        return value

    return check


def _is_community(text: str) -> bool:
    try:
        return bool(community_of(text))
    except ValueError:
        return False


def _configuration_rules(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if spec.get("communities") and not spec.get("prefixAdvertisements"):
        yield "communities", "needs prefixAdvertisements"
    known = {one.get("name") for one in spec.get("communities") or ()}
    for place, advertised in enumerate(spec.get("prefixAdvertisements") or ()):
        for number_of, name in enumerate(advertised.get("communities") or ()):
            if name not in known and not _is_community(name):
                where = f"prefixAdvertisements.{place}.communities.{number_of}"
                yield where, f"{name!r} is neither a community nor the name of one"
    if spec.get("nodeToNodeMeshEnabled") is False:
        for field in ("nodeMeshPassword", "nodeMeshMaxRestartTime"):
            if spec.get(field):
                yield field, "is of the mesh, which nodeToNodeMeshEnabled turns off"


_CIDRS = list_of(struct({"cidr": network}, required=["cidr"]))
_COMMUNITY_NAME = text(
    r"[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?", most=63, said="is not the name of a community"
)

CONFIGURATION = struct(
    {
        "logSeverityScreen": SEVERITY,
        "nodeToNodeMeshEnabled": flag,
        "asNumber": as_number,
        "serviceClusterIPs": _CIDRS,
        "serviceExternalIPs": _CIDRS,
        "serviceLoadBalancerIPs": _CIDRS,
        "serviceLoadBalancerAggregation": one_of("Enabled", "Disabled"),
        "communities": list_of(
            struct({"name": _COMMUNITY_NAME, "value": community}, required=["name", "value"]),
            most=500,
        ),
        "prefixAdvertisements": list_of(
            struct({"cidr": network, "communities": list_of(text(), most=50)}, required=["cidr"]),
            most=500,
        ),
        "listenPort": number(1, 65535),
        "nodeMeshPassword": SECRET,
        "nodeMeshMaxRestartTime": duration(),
        "bindMode": one_of("None", "NodeIP"),
        "ignoredInterfaces": list_of(
            text(
                rf"(?!\*$){INTERFACE.pattern}",
                said="is not an interface's name or a pattern of it",
            )
        ),
        "localWorkloadPeeringIPV4": _peering(4),
        "localWorkloadPeeringIPV6": _peering(6),
        "programClusterRoutes": one_of(
            "Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"
        ),
        "ipv4NormalRoutePriority": PRIORITY,
        "ipv6NormalRoutePriority": PRIORITY,
    },
    defaults={"logSeverityScreen": "Info", "serviceLoadBalancerAggregation": "Enabled"},
    rules=[_configuration_rules],
)


def only_default(name: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """Fields of a BGPConfiguration that are the cluster's, and wrong in one of another name."""
    if name != "default":
        for field in _ONLY_DEFAULT:
            if spec.get(field) is not None:
                yield f"spec.{field}: only the BGPConfiguration default has it"


def _peer_rules(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    peer, local = spec.get("peerIP"), spec.get("localWorkloadSelector")
    if not (peer or local or spec.get("peerSelector")):
        yield "", "peerIP, peerSelector or localWorkloadSelector must say who the peer is"
    if spec.get("peerSelector") and spec.get("asNumber"):
        yield "asNumber", "excludes peerSelector: the peers' own numbers count"
    if local:
        for field in ("peerIP", "peerSelector"):
            if spec.get(field):
                yield field, "excludes localWorkloadSelector"
        if not spec.get("asNumber"):
            yield "asNumber", "is missing: localWorkloadSelector needs it"
    reach = spec.get("reachableBy")
    if reach and peer and plain_address(reach).version != address_and_port(peer)[0].version:
        yield "reachableBy", "is not of peerIP's IP family"


PEER = struct(
    {
        "node": text(),
        "nodeSelector": selector,
        "peerIP": peer_ip,
        "asNumber": as_number,
        "localASNumber": as_number,
        "peerSelector": selector,
        "localWorkloadSelector": selector,
        "keepOriginalNextHop": flag,
        "nextHopMode": one_of("Auto", "Self", "Keep"),
        "password": SECRET,
        "sourceAddress": one_of("UseNodeIP", "None"),
        "maxRestartTime": duration(),
        "keepaliveTime": duration(),
        "numAllowedLocalASNumbers": number(0, 2147483647),
        "ttlSecurity": number(0, 255),
        "reachableBy": address,
        "filters": list_of(text()),
        "reversePeering": one_of("Auto", "Manual"),
    },
    rules=[
        either("node", "nodeSelector"),
        either("peerIP", "peerSelector"),
        either("keepOriginalNextHop", "nextHopMode"),
        needs("reachableBy", "peerIP"),
        _peer_rules,
    ],
)


def _rule_rules(rule: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if bool(rule.get("cidr")) != bool(rule.get("matchOperator")):
        missing = "matchOperator" if rule.get("cidr") else "cidr"
        yield missing, "is missing: cidr and matchOperator belong together"
    if rule.get("prefixLength") is not None and not rule.get("cidr"):
        yield "prefixLength", "needs cidr"
    if rule.get("operations") and rule.get("action") != "Accept":
        yield "operations", "need action Accept"


def _prefix_rules(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    least, most = found.get("min"), found.get("max")
    if least is not None and most is not None and least > most:
        yield "min", f"{least} is more than max {most}"


def _exactly_one(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if len(found) != 1:
        yield "", "want exactly one of addCommunity, prependASPath, setPriority"


_OPERATION = struct(
    {
        "addCommunity": struct({"value": community}, required=["value"]),
        "prependASPath": struct(
            {"prefix": list_of(as_number, least=1, most=10)}, required=["prefix"]
        ),
        "setPriority": struct({"value": PRIORITY}, required=["value"]),
    },
    rules=[_exactly_one],
)


def _rules_of(version: int) -> Any:
    bits = 32 if version == 4 else 128

    def family(rule: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        cidr = rule.get("cidr")
        if cidr and (6 if ":" in cidr else 4) != version:
            yield "cidr", f"{cidr} is not IPv{version}"

    one = struct(
        {
            "cidr": network,
            "matchOperator": one_of("Equal", "NotEqual", "In", "NotIn"),
            "prefixLength": struct(
                {"min": number(0, bits), "max": number(0, bits)}, rules=[_prefix_rules]
            ),
            "source": one_of("RemotePeers"),
            "interface": text(INTERFACE.pattern, said="is not an interface's name"),
            "peerType": one_of("eBGP", "iBGP"),
            "communities": struct(
                {"values": list_of(community, least=1, most=1)}, required=["values"]
            ),
            "asPathPrefix": list_of(as_number),
            "priority": PRIORITY,
            "action": one_of("Accept", "Reject"),
            "operations": list_of(_OPERATION, least=1, most=10),
        },
        required=["action"],
        rules=[_rule_rules, family],
    )
    return list_of(one)


FILTER = struct(
    {
        "exportV4": _rules_of(4),
        "importV4": _rules_of(4),
        "exportV6": _rules_of(6),
        "importV6": _rules_of(6),
    }
)
