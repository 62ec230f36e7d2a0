"""AdminNetworkPolicies and the baseline converted: tiers, priorities, actions, and what closes."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.admin_policy import admin_policy, baseline_policy
from felix_shim.policy_order import tier_of
from libtortie.kube.policies import AdminNetworkPolicy, BaselineAdminNetworkPolicy
from libtortie.model.fields import network_of
from libtortie.model.policy import Action, Entity, Policy, PolicyRule, PortRange

K8S = "projectcalico.org/orchestrator == 'k8s'"
ALL = f"(has(projectcalico.org/namespace)) && ({K8S})"
EVERYBODY: dict[str, Any] = {"namespaces": {}}
TCP, UDP = 6, 17


def admin(spec: Any) -> Policy:
    body = {"metadata": {"name": "guard"}, "spec": spec}
    return admin_policy(AdminNetworkPolicy.model_validate(body))


def baseline(spec: Any) -> Policy:
    body = {"metadata": {"name": "default"}, "spec": spec}
    return baseline_policy(BaselineAdminNetworkPolicy.model_validate(body))


def test_a_policy_whole() -> None:
    policy = admin(
        {
            "priority": 10,
            "subject": {
                "pods": {
                    "namespaceSelector": {"matchLabels": {"env": "prod"}},
                    "podSelector": {"matchLabels": {"app": "web"}},
                }
            },
            "ingress": [
                {
                    "name": "one",
                    "action": "Pass",
                    "from": [EVERYBODY],
                    "ports": [
                        {"portNumber": {"protocol": "TCP", "port": 80}},
                        {"portRange": {"protocol": "TCP", "start": 90, "end": 95}},
                        {"namedPort": "http"},
                    ],
                },
                {"action": "Deny", "from": [EVERYBODY]},
            ],
            "egress": [
                {"action": "Allow", "to": [{"networks": ["10.0.0.0/8", "fd00::/8", "11.0.0.0/8"]}]},
                {"action": "Deny", "to": [{"nodes": {"matchLabels": {"role": "control"}}}]},
            ],
        }
    )
    assert (policy.id.name, policy.id.namespace) == ("kanp.adminnetworkpolicy.guard", "")
    assert (policy.tier, policy.order, policy.problem) == ("adminnetworkpolicy", 10.0, "")
    assert policy.selector == f"(pcns.env == 'prod') && (({K8S}) && (app == 'web'))"
    anybody = Entity(selector=ALL)
    numbers = Entity(ports=(PortRange(80, 80), PortRange(90, 95)))
    assert policy.ingress == (
        PolicyRule(Action.PASS, protocol=TCP, source=anybody, destination=numbers),
        PolicyRule(Action.PASS, source=anybody, destination=Entity(ports=("http",))),
        PolicyRule(Action.DENY, source=anybody),
    )
    four = Entity((network_of("10.0.0.0/8"), network_of("11.0.0.0/8")))
    six = Entity((network_of("fd00::/8"),))
    assert policy.egress == (
        PolicyRule(Action.ALLOW, destination=four),
        PolicyRule(Action.ALLOW, destination=six),
        PolicyRule(Action.DENY, destination=Entity(nodes="role == 'control'")),
    )


def test_its_tiers_stand_around_the_default_one_and_pass_on_what_they_do_not_decide() -> None:
    before, default, behind = (
        tier_of(name, {})
        for name in ("adminnetworkpolicy", "default", "baselineadminnetworkpolicy")
    )
    orders = [tier.order or 0 for tier in (before, default, behind)]
    assert orders == sorted(orders)
    assert (before.passes, default.passes, behind.passes) == (True, False, True)


def test_the_baseline() -> None:
    rule = {"action": "Deny", "from": [EVERYBODY]}
    policy = baseline({"subject": EVERYBODY, "ingress": [rule]})
    assert policy.id.name == "kbanp.baselineadminnetworkpolicy.default"
    assert (policy.tier, policy.selector) == ("baselineadminnetworkpolicy", ALL)
    assert policy.ingress == (PolicyRule(Action.DENY, source=Entity(selector=ALL)),)
    assert policy.egress is None, "a policy without rules of a direction is not about it"
    passing = baseline({"subject": EVERYBODY, "ingress": [{**rule, "action": "Pass"}]})
    assert (passing.selector, passing.problem) == (
        ALL,
        "spec: a baseline has nobody to pass anything on to",
    )


RULE: dict[str, Any] = {"action": "Deny", "from": [EVERYBODY]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"priority": None}, "spec.priority: "),
    ({"priority": 1001}, "spec.priority: "),
    ({"priority": "1"}, "spec.priority: "),
    ({"ingress": [{**RULE, "action": "Log"}]}, "spec.ingress.0: action: needs one of"),
    ({"ingress": [{**RULE, "action": "Maybe"}]}, "spec.ingress.0.action: Input"),
    ({"ingress": [{**RULE, "from": []}]}, "spec.ingress.0.from: "),
    ({"ingress": [{"action": "Deny"}]}, "spec.ingress.0.from: is missing"),
    ({"ingress": [{**RULE, "from": [{}]}]}, "spec.ingress.0.from.0: needs either"),
    ({"egress": [{"action": "Deny", "to": [{"nodes": {}, "namespaces": {}}]}]},
     "spec.egress.0.to.0: needs one of"),
    ({"egress": [{"action": "Deny", "to": [{"domainNames": ["x.y"]}]}]},
     "spec.egress.0.to.0.domainNames: no such"),
    ({"egress": [{"action": "Deny", "to": [{"networks": []}]}]}, "spec.egress.0.to.0: networks:"),
    ({"egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0"]}]}]},
     "spec.egress.0.to.0.networks.0: "),
    ({"ingress": [{**RULE, "ports": [{}]}]}, "spec.ingress.0.ports.0: needs one of"),
    ({"ingress": [{**RULE, "ports": [{"portRange": {"start": 9, "end": 8}}]}]},
     "spec.ingress.0.ports.0.portRange: start 9 is above end 8"),
    ({"ingress": [{**RULE, "ports": [{"portNumber": {"port": 70000}}]}]},
     "spec.ingress.0.ports.0.portNumber.port: "),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "problem"), REFUSED)
def test_what_cannot_be_obeyed_closes_its_subject(spec: dict[str, Any], problem: str) -> None:
    subject = {"namespaces": {"matchLabels": {"env": "prod"}}}
    policy = admin({"priority": 1, "subject": subject, **spec})
    assert policy.problem.startswith(problem)
    assert policy.selector == f"(pcns.env == 'prod') && ({K8S})"
    assert (policy.ingress, policy.egress) == (None, None)


@pytest.mark.parametrize(
    "spec", [None, [], {}, {"priority": 1, "subject": {}}, {"priority": 1, "subject": {"x": 1}}]
)
def test_without_a_subject_all_pods_are_closed(spec: Any) -> None:
    policy = admin(spec)
    assert policy.problem
    assert policy.selector == K8S
