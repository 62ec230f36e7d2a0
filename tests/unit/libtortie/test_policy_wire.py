"""Calico's policy resources read: defaults, whole selectors, and what is refused, by its path."""

from __future__ import annotations

from typing import Any

import pytest

from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.model.policy import Action, Icmp, Policy, PortRange
from libtortie.model.policy_wire import (
    problem_of,
    problems_of,
    read_network_set,
    read_policy,
    read_profile,
)
from libtortie.model.selectors import parse
from tests.fakes.policy_worlds import resource

RULE = {"action": "Allow", "protocol": "TCP"}


def namespaced(spec: dict[str, Any]) -> Policy:
    return read_policy(resource(Kind.NETWORK_POLICY, "p", spec, namespace="shop"))


def everywhere(spec: dict[str, Any]) -> Policy:
    return read_policy(resource(Kind.GLOBAL_NETWORK_POLICY, "p", spec))


def test_a_policy_of_a_namespace_is_about_that_namespace() -> None:
    policy = namespaced({"selector": "app == 'web' || app == 'db'"})
    subject = parse(policy.selector)
    assert subject.matches({"app": "db", "projectcalico.org/namespace": "shop"})
    assert not subject.matches({"app": "db", "projectcalico.org/namespace": "other"})
    assert not subject.matches({"projectcalico.org/namespace": "shop"})
    assert (policy.tier, policy.order, str(policy.id)) == ("default", None, "NetworkPolicy shop/p")


@pytest.mark.parametrize(
    ("spec", "ingress", "egress"),
    [
        ({}, True, False),
        ({"egress": [RULE]}, False, True),
        ({"ingress": [RULE], "egress": [RULE]}, True, True),
        ({"types": ["Egress"]}, False, True),
        ({"types": ["Ingress", "Egress"], "egress": [RULE]}, True, True),
    ],
)
def test_the_directions_that_a_policy_is_about(
    spec: dict[str, Any], ingress: bool, egress: bool
) -> None:
    policy = everywhere(spec)
    assert (policy.ingress is not None, policy.egress is not None) == (ingress, egress)


def test_a_rule_is_read_whole() -> None:
    rule = {
        "action": "Deny",
        "protocol": "SCTP",
        "source": {"ports": [80, "90:95", "http"], "nets": ["10.0.0.0/8"]},
        "destination": {"notPorts": [1], "notNets": ["10.1.0.0/16"], "notSelector": "x == 'y'"},
    }
    found = everywhere({"ingress": [rule]}).ingress
    assert found is not None
    assert (found[0].action, found[0].protocol) == (Action.DENY, 132)
    assert found[0].source.ports == (PortRange(80, 80), PortRange(90, 95), "http")
    assert str(found[0].source.nets[0]) == "10.0.0.0/8"
    assert found[0].destination.not_selector == "x == 'y'"
    icmp = {"action": "Pass", "protocol": "icmp", "notICMP": {"type": 8, "code": 0}}
    assert (everywhere({"ingress": [icmp]}).ingress or ())[0].not_icmp == Icmp(8, 0)


@pytest.mark.parametrize(
    ("end", "selected"),
    [
        ({}, None),
        ({"nets": ["10.0.0.0/8"]}, None),
        ({"selector": "a == 'b'"}, "(projectcalico.org/namespace == 'shop') && (a == 'b')"),
        ({"notSelector": "a == 'b'"}, "projectcalico.org/namespace == 'shop'"),
        ({"namespaceSelector": "all()"}, "has(projectcalico.org/namespace)"),
        ({"namespaceSelector": " global( ) "}, "!has(projectcalico.org/namespace)"),
        ({"namespaceSelector": "env in {'x'}"}, "pcns.env in { 'x' }"),
        (
            {"serviceAccounts": {"names": ["a", "b"]}},
            "(projectcalico.org/namespace == 'shop')"
            " && (projectcalico.org/serviceaccount in { 'a', 'b' })",
        ),
        (
            {"serviceAccounts": {"selector": "role=='db'"}, "namespaceSelector": "!has(x)"},
            "(!(has(pcns.x))) && (pcsa.role == 'db')",
        ),
    ],
)
def test_whom_an_end_of_a_rule_selects(end: dict[str, Any], selected: str | None) -> None:
    found = namespaced({"ingress": [{"action": "Allow", "source": end}]}).ingress
    assert found is not None
    assert found[0].source.selector == selected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"selector": "app =="}, "spec.selector: selector 'app ==': expected a quoted string"),
    ({"selector": "global()"}, "spec.selector: global() may only be"),
    ({"selector": "(" * 64 + "all()" + ")" * 64}, "spec.selector: selector"),
    ({"namespaceSelector": f"{'k' * 510} == 'x'"}, "spec.namespaceSelector: selector"),
    ({"ingress": [{"action": "Maybe"}]}, "spec.ingress.0.action: Input should be"),
    ({"ingress": [{}]}, "spec.ingress.0.action: is missing"),
    ({"egress": [RULE, {**RULE, "protocol": "TPC"}]}, "spec.egress.1.protocol: 'TPC' is not"),
    ({"egress": [{**RULE, "protocol": 256}]}, "spec.egress.0.protocol: 256 is no"),
    (
        {"ingress": [{**RULE, "source": {"ports": [65536]}}]},
        "spec.ingress.0.source.ports.0: 65536 is no range",
    ),
    (
        {"ingress": [{**RULE, "source": {"ports": ["9:8"]}}]},
        "spec.ingress.0.source.ports.0: '9:8' is no range",
    ),
    (
        {"ingress": [{**RULE, "source": {"ports": ["a b"]}}]},
        "spec.ingress.0.source.ports.0: 'a b' is no port",
    ),
    (
        {"ingress": [{"action": "Deny", "source": {"ports": [80]}}]},
        "spec.ingress.0.source.ports: port numbers need protocol",
    ),
    (
        {"ingress": [{"action": "Deny", "protocol": "ICMP", "source": {"ports": ["http"]}}]},
        "spec.ingress.0.source.ports: protocol ICMP has no ports",
    ),
    ({"ingress": [{**RULE, "icmp": {"type": 8}}]}, "spec.ingress.0.icmp: ICMP types need"),
    ({"types": ["Ingress"], "do_not_track": True}, "spec.do_not_track: no such field"),
    ({"ingress": [{**RULE, "not_protocol": "TCP"}]}, "spec.ingress.0.not_protocol: no such field"),
    (
        {"ingress": [{"action": "Deny", "protocol": "ICMP", "icmp": {"code": 1}}]},
        "spec.ingress.0.icmp: a code needs a type",
    ),
    (
        {"ingress": [{**RULE, "source": {"nets": ["10.0.0.1/8"]}}]},
        "spec.ingress.0.source.nets.0: 10.0.0.1/8 has host bits set",
    ),
    (
        {"ingress": [{**RULE, "source": {"nets": ["10.0.0.1"]}}]},
        "spec.ingress.0.source.nets.0: '10.0.0.1' is not address/prefix",
    ),
    (
        {"ingress": [{**RULE, "source": {"notNets": ["0.0.0.0/0"]}}]},
        "spec.ingress.0.source.notNets.0: 0.0.0.0/0 excludes",
    ),
    (
        {"ingress": [{**RULE, "ipVersion": 6, "source": {"nets": ["10.0.0.0/8"]}}]},
        "spec.ingress.0: networks, ipVersion and ICMP must be of one",
    ),
    (
        {"ingress": [{**RULE, "source": {"services": {"name": "x", "kind": "y"}}}]},
        "spec.ingress.0.source.services.kind: ",
    ),
    (
        {"ingress": [{**RULE, "source": {"services": {"namespace": "x"}}}]},
        "spec.ingress.0.source.services.name: ",
    ),
    (
        {"ingress": [{**RULE, "source": {"services": {"name": "x'"}}}]},
        "spec.ingress.0.source.services.name: ",
    ),
    (
        {"ingress": [{**RULE, "destination": {"services": {"name": "x", "namespace": "y"}}}]},
        "spec.ingress.0.destination.services: ",
    ),
    (
        {"egress": [{**RULE, "source": {"services": {"name": "x", "namespace": "y"}}}]},
        "spec.egress.0.source.services: ",
    ),
    (
        {
            "egress": [
                {
                    **RULE,
                    "protocol": "TCP",
                    "destination": {
                        "services": {"name": "x", "namespace": "y"},
                        "ports": [80],
                        "nets": ["10.0.0.0/8"],
                    },
                }
            ]
        },
        "spec.egress.0.destination.services: excludes nets, ports",
    ),
    (
        {"egress": [{**RULE, "destination": {"services": {"name": "x"}}}]},
        "spec.egress.0.destination.services.namespace: is missing",
    ),
    (
        {"ingress": [{**RULE, "source": {"serviceAccounts": {"names": ["a'"]}}}]},
        "spec.ingress.0.source.serviceAccounts.names.0:",
    ),
    ({"doNotTrack": True}, "spec.doNotTrack: needs applyOnForward"),
    ({"preDNAT": True, "applyOnForward": True, "egress": [RULE]}, "spec.preDNAT: has no egress"),
    ({"preDNAT": True, "doNotTrack": True}, "spec.preDNAT: excludes doNotTrack"),
    ({"tier": "a.b"}, "spec.tier: String should match"),
    ({"ingress": [{**RULE, "http": {"methods": ["GET"]}}]}, "spec.ingress.0.http: no such field"),
    ({"ingress": [{**RULE, "source": {"net": []}}]}, "spec.ingress.0.source.net: no such field"),
    ({"ingres": []}, "spec.ingres: no such field"),
    ({"order": float("nan")}, "spec.order: Input should be a finite number"),
    ({"order": "first"}, "spec.order: Input should be a valid number"),
    ({"types": ["ingress"]}, "spec.types.0: Input should be"),
    ({"ingress": [RULE] * 1025}, "spec.ingress: Tuple should have at most 1024"),
]


@pytest.mark.parametrize(("spec", "problem"), REFUSED)
def test_what_cannot_be_obeyed_is_told_with_its_path(spec: dict[str, Any], problem: str) -> None:
    written = resource(Kind.GLOBAL_NETWORK_POLICY, "p", spec)
    assert problem_of(written).startswith(problem)
    policy = read_policy(written)
    assert policy.problem == problem_of(written)
    assert (policy.ingress, policy.egress) == (None, None)


def test_all_that_is_wrong_is_told_at_once() -> None:
    """Also of what would be looked at only after the fields."""
    spec = {
        "selector": "app ==",
        "tier": "No",
        "doNotTrack": True,
        "ingress": [
            {
                "action": "Allow",
                "protocol": "ICMP",
                "ipVersion": 6,
                "source": {"ports": [80], "notPorts": ["http"]},
            },
            {"action": "Allow", "source": {"nets": ["10.0.0.0/33", "10.0.0.0/8"], "ports": ["-1"]}},
            {"action": "Maybe", "icmp": {"type": 300, "code": 1}},
        ],
    }
    found = problems_of(resource(Kind.GLOBAL_NETWORK_POLICY, "p", spec))
    assert [one.partition(": ")[0] for one in found] == [
        "spec.tier",
        "spec.selector",
        "spec.ingress.0.source.ports",
        "spec.ingress.0.source.notPorts",
        "spec.ingress.0",
        "spec.ingress.1.source.nets.0",
        "spec.ingress.2.action",
        "spec.ingress.2.icmp.type",
        "spec.doNotTrack",
    ]
    assert problem_of(resource(Kind.GLOBAL_NETWORK_POLICY, "p", spec)) == f"{found[0]} (and 8 more)"


def test_a_refused_policy_still_says_whom_it_is_about() -> None:
    policy = namespaced({"selector": "app == 'web'", "ingress": [{}], "tier": "mine"})
    assert policy.selector == "(projectcalico.org/namespace == 'shop') && (app == 'web')"
    assert policy.tier == "mine"
    assert namespaced({"selector": "app =="}).selector == "projectcalico.org/namespace == 'shop'"
    assert namespaced({"selector": 7}).problem


def test_what_only_global_policies_have() -> None:
    for field in ("namespaceSelector", "applyOnForward"):
        spec = {field: "all()" if field == "namespaceSelector" else True}
        assert namespaced(spec).problem.startswith(f"spec.{field}: only a Global")
        assert not everywhere(spec).problem


def test_network_sets_and_profiles() -> None:
    spec = {"nets": ["198.51.100.7", "198.51.100.9/24"]}
    found = resource(Kind.NETWORK_SET, "s", spec, namespace="shop", labels={"a": "b"})
    item = read_network_set(found)
    assert dict(item.labels) == {"a": "b", "projectcalico.org/namespace": "shop"}
    assert [str(net) for net in item.nets] == ["198.51.100.7/32", "198.51.100.0/24"]
    with pytest.raises(InvalidInput, match=r"GlobalNetworkSet s: spec\.nets\.0"):
        read_network_set(resource(Kind.GLOBAL_NETWORK_SET, "s", {"nets": ["x"]}))
    profile = read_profile(
        resource(Kind.PROFILE, "p", {"labelsToApply": {"a": "b"}, "egress": [RULE]})
    )
    assert (profile.labels, len(profile.ingress), len(profile.egress)) == ((("a", "b"),), 0, 1)
    assert read_profile(resource(Kind.PROFILE, "p", {"egress": [{}]})).problem
