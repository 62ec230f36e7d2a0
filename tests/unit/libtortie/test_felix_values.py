"""What an agent could not obey of a FelixConfiguration is named to whoever writes it: all of it."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.settings import effective
from libtortie.model.felix_values import LOG_PREFIX_MAX, PARSERS, parse_log_prefix
from libtortie.model.keys import Kind
from libtortie.model.policy_wire import problems_of
from libtortie.model.resources import FelixConfigurationSpec, parse_resource

WRONG: dict[str, Any] = {
    "failsafeInboundHostPorts": [
        {"protocol": "TCP", "port": 22},
        {"protocol": "SCTP", "port": 0, "net": "10.0.0.0/33", "cidr": "x"},
        22,
    ],
    "failsafeOutboundHostPorts": "none",
    "defaultEndpointToHostAction": "Maybe",
    "natOutgoingAddress": "fd00::1",
    "natPortRange": "2000:1000",
    "natOutgoingExclusions": "All",
    "logPrefix": "x" * 200,
    "floatingIPs": "On",
    "workloadSourceSpoofing": "Yes",
    "liveMigrationRouteConvergenceTime": "soon",
    "policyGateTimeout": "-1s",
    "policyGateOnTimeout": "Wait",
    "interfacePrefix": "tap",
    "vxlanMTU": 575,
    "vxlanMTUV6": 1279,
    "vxlanPort": 1 << 16,
    "vxlanVNI": 1 << 24,
    "ipv4NormalRoutePriority": 512,
    "ipv4ElevatedRoutePriority": 512,
}


def problems(spec: dict[str, Any]) -> tuple[str, ...]:
    body = {"kind": "FelixConfiguration", "metadata": {"name": "default"}, "spec": spec}
    whole = {"apiVersion": "projectcalico.org/v3", **body}
    return problems_of(parse_resource(Kind.FELIX_CONFIGURATION, whole))


def test_all_that_is_wrong_is_told_at_once_with_its_path() -> None:
    assert [one.partition(": ")[0] for one in problems(WRONG)] == [
        "spec.failsafeInboundHostPorts.1",
        "spec.failsafeInboundHostPorts.1.protocol",
        "spec.failsafeInboundHostPorts.1.port",
        "spec.failsafeInboundHostPorts.1.net",
        "spec.failsafeInboundHostPorts.2",
        *(f"spec.{field}" for field in PARSERS if field != "failsafeInboundHostPorts"),
        "spec.ipv4NormalRoutePriority",
    ]


@pytest.mark.parametrize("field", PARSERS)
def test_the_agent_names_the_same_and_goes_on_without(field: str) -> None:
    spec = {field: WRONG[field]}
    found = effective([("default", FelixConfigurationSpec.model_validate(spec))])
    told = [one.removeprefix("default: ") for one in found.problems]
    assert told == [one.removeprefix("spec.") for one in problems(spec)]
    assert told
    assert found.host == effective([]).host
    assert found.tunnel == effective([]).tunnel


def test_what_can_be_obeyed_is_nothing_to_tell() -> None:
    good = {
        "failsafeInboundHostPorts": [{"protocol": "udp", "port": 68, "net": "10.0.0.0/8"}],
        "failsafeOutboundHostPorts": [],
        "defaultEndpointToHostAction": "accept",
        "natOutgoingAddress": "10.0.0.1",
        "natPortRange": "1000:2000",
        "natOutgoingExclusions": "IPPoolsAndHostIPs",
        "logPrefix": "calico-packet",
        "floatingIPs": "Enabled",
        "workloadSourceSpoofing": "Any",
        "liveMigrationRouteConvergenceTime": "1m30s",
        "policyGateTimeout": "500ms",
        "policyGateOnTimeout": "Hold",
        "interfacePrefix": "cali,tap",
        "vxlanMTU": 576,
        "vxlanMTUV6": 1280,
        "vxlanPort": 0,
        "vxlanVNI": (1 << 24) - 1,
        "ipv6NormalRoutePriority": 600,
        "reportingInterval": "0s",
    }
    assert problems(good) == ()
    assert problems({}) == ()


@pytest.mark.parametrize("prefix", ['a"b', "a\nb", "a\\b", "$a", "%t", "é", "x" * 126, "a{b"])
def test_a_prefix_that_nft_or_the_kernel_would_not_take(prefix: str) -> None:
    with pytest.raises(ValueError, match="characters"):
        parse_log_prefix(prefix)


def test_the_longest_prefix() -> None:
    assert len(parse_log_prefix("x" * 125)) == LOG_PREFIX_MAX
