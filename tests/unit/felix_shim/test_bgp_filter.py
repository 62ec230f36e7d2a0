"""BGPFilters: what is accepted as one, and the function that comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from felix_shim.bgp_filter import (
    Direction,
    RouteFilter,
    function_name,
    render_function,
    route_filter,
)
from libtortie.model.bgp_spec import BGPFilterWire

ALL = {
    "cidr": "10.65.0.0/16",
    "matchOperator": "In",
    "prefixLength": {"min": 24, "max": 32},
    "source": "RemotePeers",
    "interface": "eth*",
    "peerType": "iBGP",
    "communities": {"values": ["65000:100"]},
    "asPathPrefix": [65000, "1.1"],
    "priority": 512,
    "action": "Accept",
    "operations": [
        {"addCommunity": {"value": "65000:1:2"}},
        {"prependASPath": {"prefix": [65001, 65002]}},
        {"setPriority": {"value": 600}},
    ],
}


def made(name: str = "f", **lists: list[dict[str, Any]]) -> RouteFilter:
    return route_filter(name, BGPFilterWire.model_validate(lists))


def condition(**rule: Any) -> str:
    """The condition of a rule alone."""
    text = render_function(made(importV4=[rule | {"action": "Reject"}]), Direction.IMPORT, 4)
    return text.splitlines()[2].removeprefix("  if ").removesuffix(" then { reject; }")


def test_all_of_a_rule_in_calicos_function() -> None:
    assert render_function(
        made("all", importV4=[ALL, {"action": "Reject"}]), Direction.IMPORT, 4
    ) == (
        "function 'bgp_all_importFilterV4'(bool same_as)\n"
        "{\n"
        "  if (net ~ [ 10.65.0.0/16{24,32} ]) && (source = RTS_BGP) && (defined(ifname)) && "
        '(ifname ~ "eth*") && (same_as) && ((65000, 100) ~ bgp_community) && '
        "(bgp_path ~ [= 65000 65537 * =]) && (defined(bgp_local_pref)) && "
        "(bgp_local_pref = 2147483135) then { "
        "bgp_large_community.add((65000, 1, 2)); "
        "bgp_path.prepend(65002); bgp_path.prepend(65001); "
        "bgp_local_pref = 2147483047; settle4(); accept; }\n"
        "  if true then { reject; }\n"
        "}\n"
    )


def test_an_export_also_says_its_priority_to_another_as() -> None:
    rule = ALL | {"cidr": "fd00::/64", "prefixLength": {"min": 128}}
    text = render_function(made(exportV6=[rule]), Direction.EXPORT, 6)
    assert "bgp_local_pref = 2147483047; bgp_med = 600; accept;" in text
    assert "settle" not in text
    assert "net ~ [ fd00::/64{128,128} ]" in text


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"cidr": "10.0.0.0/8", "matchOperator": "In"}, "(net ~ 10.0.0.0/8)"),
        ({"cidr": "10.0.0.0/8", "matchOperator": "NotIn"}, "(net !~ 10.0.0.0/8)"),
        ({"cidr": "10.0.0.0/8", "matchOperator": "Equal"}, "(net = 10.0.0.0/8)"),
        ({"cidr": "10.0.0.0/8", "matchOperator": "NotEqual"}, "(net != 10.0.0.0/8)"),
        (
            {"cidr": "10.0.0.0/8", "matchOperator": "NotIn", "prefixLength": {"max": 24}},
            "(net !~ [ 10.0.0.0/8{8,24} ])",
        ),
        (
            {"cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": {"max": 7}},
            "(false)",
        ),
        (
            {"cidr": "10.0.0.0/8", "matchOperator": "NotEqual", "prefixLength": {"min": 24}},
            "(net != 10.0.0.0/8) && (net.len >= 24) && (net.len <= 32)",
        ),
        ({"peerType": "eBGP"}, "(!same_as)"),
        ({"communities": {"values": ["1:2:3"]}}, "((1, 2, 3) ~ bgp_large_community)"),
        ({"asPathPrefix": [65000]}, "(bgp_path ~ [= 65000 * =])"),
    ],
)
def test_each_condition(rule: dict[str, Any], expected: str) -> None:
    assert condition(**rule) == expected


def test_the_words_may_be_in_any_case_as_old_resources_have_them() -> None:
    old = made(importV4=[{"cidr": "10.0.0.0/8", "matchOperator": "in", "action": "accept"}])
    assert old.import_v4[0].accept
    assert old.import_v4[0].networks is not None


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"action": "Drop"},
        {"action": "Accept", "vlan": 3},
        {"action": "Accept", "cidr": "10.0.0.0/8"},
        {"action": "Accept", "matchOperator": "In"},
        {"action": "Accept", "cidr": "10.0.0.1/8", "matchOperator": "In"},
        {"action": "Accept", "cidr": "fd00::/8", "matchOperator": "In"},
        {"action": "Accept", "prefixLength": {"min": 8}},
        {
            "action": "Accept",
            "cidr": "10.0.0.0/8",
            "matchOperator": "In",
            "prefixLength": {"min": 9, "max": 8},
        },
        {
            "action": "Accept",
            "cidr": "10.0.0.0/8",
            "matchOperator": "In",
            "prefixLength": {"max": 33},
        },
        {"action": "Accept", "interface": 'eth0"; }'},
        {"action": "Accept", "interface": "sixteencharacters"},
        {"action": "Accept", "peerType": "mesh"},
        {"action": "Accept", "communities": {"values": ["65000:100", "65000:101"]}},
        {"action": "Accept", "communities": {"values": ["65536:1"]}},
        {"action": "Accept", "communities": {"values": ["x"]}},
        {"action": "Accept", "asPathPrefix": [0]},
        {"action": "Accept", "priority": 0},
        {"action": "Accept", "priority": 2147483647},
        {"action": "Reject", "operations": [{"setPriority": {"value": 1}}]},
        {"action": "Accept", "operations": [{}]},
        {"action": "Accept", "operations": [{"setPriority": {"value": 1}}] * 11},
        {"action": "Accept", "operations": [{"prependASPath": {"prefix": [1] * 11}}]},
    ],
)
def test_what_is_no_rule(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        made(importV4=[rule])


def test_names_that_bird_cannot_hold_are_hashed_and_stay_apart() -> None:
    short = function_name("a.b-c", Direction.EXPORT, 6)
    assert short == "'bgp_a.b-c_exportFilterV6'"
    fits, long = "x" * 45, "x" * 46
    assert function_name(fits, Direction.IMPORT, 4) == f"'bgp_{fits}_importFilterV4'"
    hashed = function_name(long, Direction.IMPORT, 4)
    assert len(hashed) <= 66
    assert hashed != function_name(long + "x", Direction.IMPORT, 4)
