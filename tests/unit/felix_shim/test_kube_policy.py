"""Kubernetes' NetworkPolicies converted: as Calico's converter does, and closed when in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.kube_policy import network_policy, profile_of
from libtortie.kube.objects import Namespace, ServiceAccount
from libtortie.kube.policies import KubeNetworkPolicy
from libtortie.model.fields import network_of
from libtortie.model.policy import ANY, Action, Entity, Policy, PolicyRule, PortRange
from libtortie.model.selectors import parse

K8S = "projectcalico.org/orchestrator == 'k8s'"
SHOP = "projectcalico.org/namespace == 'shop'"
TCP, UDP, SCTP = 6, 17, 132


def convert(spec: Any) -> Policy:
    body = {"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}
    return network_policy(KubeNetworkPolicy.model_validate(body))


def ingress(*rules: dict[str, Any]) -> tuple[PolicyRule, ...]:
    policy = convert({"podSelector": {}, "ingress": list(rules)})
    assert policy.problem == ""
    assert policy.ingress is not None
    return policy.ingress


NOBODY_IN_PARTICULAR = Entity()


def allow(
    protocol: int | None = None,
    source: Entity = NOBODY_IN_PARTICULAR,
    destination: Entity = NOBODY_IN_PARTICULAR,
) -> PolicyRule:
    return PolicyRule(Action.ALLOW, protocol=protocol, source=source, destination=destination)


def test_a_policy_whole() -> None:
    """The golden one: name, order, tier, subject, both directions."""
    policy = convert(
        {
            "podSelector": {
                "matchLabels": {"b": "2", "a": "1"},
                "matchExpressions": [
                    {"key": "c", "operator": "In", "values": ["y", "x"]},
                    {"key": "d", "operator": "NotIn", "values": ["z"]},
                    {"key": "e", "operator": "Exists"},
                    {"key": "f", "operator": "DoesNotExist"},
                ],
            },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {"app": "fe"}}}],
                    "ports": [{"port": 80}, {"protocol": "TCP", "port": 443}],
                }
            ],
            "egress": [
                {
                    "to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                    "ports": [{"protocol": "UDP", "port": "dns"}],
                }
            ],
        }
    )
    labels = "a == '1' && b == '2' && c in { 'x', 'y' } && d not in { 'z' } && has(e) && !has(f)"
    assert (policy.id.name, policy.id.namespace) == ("knp.default.web", "shop")
    assert (policy.tier, policy.order, policy.problem) == ("default", 1000.0, "")
    assert policy.selector == f"({SHOP}) && (({K8S}) && ({labels}))"
    fe = Entity(selector=f"({SHOP}) && (({K8S}) && (app == 'fe'))")
    ports = Entity(ports=(PortRange(80, 80), PortRange(443, 443)))
    assert policy.ingress == (allow(TCP, fe, ports),)
    block = Entity((network_of("10.0.0.0/8"),), (network_of("10.1.0.0/16"),), ports=("dns",))
    assert policy.egress == (allow(UDP, destination=block),)


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ({"podSelector": {}}, (True, False)),
        ({"podSelector": {}, "egress": [{}]}, (True, True)),
        ({"podSelector": {}, "policyTypes": ["Egress"]}, (False, True)),
        ({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}, (True, False)),
        ({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, (True, True)),
        ({"podSelector": None, "policyTypes": None, "ingress": None}, (True, False)),
    ],
)
def test_the_directions_that_a_policy_is_about(
    spec: dict[str, Any], types: tuple[bool, bool]
) -> None:
    policy = convert(spec)
    assert (policy.ingress is not None, policy.egress is not None) == types
    assert policy.problem == ""


def test_no_peers_is_anybody_and_no_ports_is_any_protocol() -> None:
    assert ingress() == ()
    assert ingress({}) == ingress({"from": [], "ports": []}) == ingress({"from": None}) == ANY


def test_each_peer_and_each_protocol_is_a_rule() -> None:
    peers: list[dict[str, Any]] = [{"podSelector": {}}, {"namespaceSelector": {}}]
    ports = [{"protocol": "SCTP", "port": 7}, {"port": 80, "endPort": 90}, {"protocol": "UDP"}]
    found = ingress({"from": peers, "ports": ports})
    sources = {
        Entity(selector=f"({SHOP}) && ({K8S})"),
        Entity(selector=f"(has(projectcalico.org/namespace)) && ({K8S})"),
    }
    assert {rule.source for rule in found} == sources
    assert [(rule.protocol, rule.destination.ports) for rule in found[:3]] == [
        (SCTP, (PortRange(7, 7),)),
        (TCP, (PortRange(80, 90),)),
        (UDP, ()),
    ]


def test_all_of_a_protocol_is_not_narrowed_by_one_of_its_ports() -> None:
    assert ingress({"ports": [{"port": 80}, {"protocol": "TCP"}]}) == (allow(TCP),)


@pytest.mark.parametrize(
    ("peer", "selector"),
    [
        (
            {"namespaceSelector": {"matchLabels": {"env": "prod"}}},
            f"(pcns.env == 'prod') && ({K8S})",
        ),
        (
            {
                "namespaceSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]},
                "podSelector": {"matchLabels": {"app": "db"}},
            },
            f"(has(pcns.x)) && (({K8S}) && (app == 'db'))",
        ),
    ],
)
def test_peers_of_other_namespaces(peer: dict[str, Any], selector: str) -> None:
    assert ingress({"from": [peer]})[0].source == Entity(selector=selector)


def test_what_is_no_pod_is_no_peer() -> None:
    """A set of networks, or an endpoint of another orchestrator, with the labels of a pod."""
    source = ingress({"from": [{"namespaceSelector": {}, "podSelector": {}}]})[0].source.selector
    assert source is not None
    pod = {"projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s"}
    assert parse(source).matches(pod)
    assert not parse(source).matches({"projectcalico.org/namespace": "shop"})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ingress": [{"from": [{}]}]}, "spec.ingress.0.from.0: needs either ipBlock or"),
    ({"ingress": [{"from": [{"nodes": {}}]}]}, "spec.ingress.0.from.0.nodes: no such field"),
    (
        {"ingress": [{"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        "spec.ingress.0.from.0: needs either",
    ),
    ({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}]},
     "spec.ingress.0.from.0.ipBlock.cidr: '10.0.0.0/33' does not"),
    ({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.1"}}]}]},
     "spec.ingress.0.from.0.ipBlock.cidr: '10.0.0.1' is not address/prefix"),
    ({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["::/0"]}}]}]},
     "spec.ingress.0.from.0.ipBlock: except ::/0 is not of the IP version"),
    ({"ingress": [{"ports": [{"port": 0}]}]}, "spec.ingress.0.ports.0.port: 0 is no port"),
    ({"ingress": [{"ports": [{"port": "80"}]}]}, "spec.ingress.0.ports.0.port: '80' is no port"),
    ({"ingress": [{"ports": [{"port": True}]}]}, "spec.ingress.0.ports.0.port: True is no port"),
    ({"ingress": [{"ports": [{"port": 9, "endPort": 8}]}]},
     "spec.ingress.0.ports.0: endPort 8 is below"),
    ({"ingress": [{"ports": [{"port": "a", "endPort": 8}]}]},
     "spec.ingress.0.ports.0: endPort needs"),
    ({"ingress": [{"ports": [{"endPort": 8}]}]}, "spec.ingress.0.ports.0: endPort needs"),
    ({"ingress": [{"ports": [{"protocol": "ICMP"}]}]}, "spec.ingress.0.ports.0.protocol: Input"),
    ({"ingress": [{"form": []}]}, "spec.ingress.0.form: no such field"),
    ({"policy_types": ["Egress"]}, "spec.policy_types: no such field"),
    ({"policyTypes": ["ingress"]}, "spec.policyTypes.0: Input should be"),
    ({"podSelector": {"matchLabels": {"a'": "b"}}}, "spec.podSelector.matchLabels.a'.[key]: "),
    ({"podSelector": {"matchLabels": {"a": "b'\""}}}, "spec.podSelector.matchLabels.a: "),
    ({"podSelector": {"matchLabels": {"a" * 510: "b"}}}, "spec.podSelector: selector"),
    ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
     "spec.podSelector.matchExpressions.0: operator In needs values"),
    ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
     "spec.podSelector.matchExpressions.0: operator Exists has no values"),
    ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
     "spec.podSelector.matchExpressions.0.operator: Input"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "problem"), REFUSED)
def test_what_cannot_be_obeyed_closes_with_its_path(spec: dict[str, Any], problem: str) -> None:
    policy = convert({"podSelector": {"matchLabels": {"app": "web"}}, **spec})
    assert policy.problem.startswith(problem)
    wrong_subject = "podSelector" in spec
    subject = f"({SHOP}) && ({K8S})" if wrong_subject else None
    assert policy.selector == (subject or f"({SHOP}) && (({K8S}) && (app == 'web'))")


@pytest.mark.parametrize("spec", [None, [], "x", {"podSelector": 7}, {"unknown": {}}])
def test_whatever_the_store_has_is_closed_for_its_namespace(spec: Any) -> None:
    policy = convert(spec)
    assert policy.problem
    assert policy.selector == f"({SHOP}) && ({K8S})"


def test_profiles_of_namespaces_and_accounts() -> None:
    labels = {"env": "prod", "kubernetes.io/metadata.name": "shop"}
    space = profile_of(Namespace.model_validate({"metadata": {"name": "shop", "labels": labels}}))
    assert (space.name, space.ingress, space.egress) == ("kns.shop", ANY, ANY)
    assert dict(space.labels) == {
        "pcns.env": "prod",
        "pcns.kubernetes.io/metadata.name": "shop",
        "pcns.projectcalico.org/name": "shop",
    }
    metadata = {"name": "robot", "namespace": "shop", "labels": {"role": "db"}}
    account = profile_of(ServiceAccount.model_validate({"metadata": metadata}))
    assert (account.name, account.ingress, account.egress) == ("ksa.shop.robot", (), ())
    assert dict(account.labels) == {"pcsa.role": "db", "pcsa.projectcalico.org/name": "robot"}
