"""ClusterNetworkPolicies converted: tiers, priorities, and what of them fails closed, and how."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.cluster_policy import cluster_policy
from felix_shim.events import Seen
from felix_shim.kube_desk import KubeDesk
from felix_shim.policy_book import PolicyBook
from felix_shim.policy_order import tier_of
from libtortie.kube.policies import ClusterNetworkPolicy
from libtortie.model.fields import network_of
from libtortie.model.policy import Action, Entity, Policy, PolicyRule, PortRange
from tests.fakes.policy_worlds import PODS, item_of, key_of

K8S = "projectcalico.org/orchestrator == 'k8s'"
ALL = f"(has(projectcalico.org/namespace)) && ({K8S})"
EVERYBODY: dict[str, Any] = {"namespaces": {}}
RULE: dict[str, Any] = {"action": "Deny", "from": [EVERYBODY]}
TCP, UDP, SCTP = 6, 17, 132


def written(spec: Any) -> ClusterNetworkPolicy:
    body = {"metadata": {"name": "guard"}, "spec": spec}
    return ClusterNetworkPolicy.model_validate(body)


def cluster(spec: Any) -> Policy:
    return cluster_policy(written(spec))


def admin(**spec: Any) -> Policy:
    return cluster({"tier": "Admin", "priority": 1, "subject": EVERYBODY, **spec})


def test_a_policy_whole() -> None:
    policy = cluster(
        {
            "tier": "Baseline",
            "priority": 10,
            "subject": {"pods": {"podSelector": {"matchLabels": {"app": "web"}}}},
            "ingress": [
                {
                    "name": "one",
                    "action": "Accept",
                    "from": [EVERYBODY],
                    "protocols": [
                        {"tcp": {"destinationPort": {"number": 80}}},
                        {"udp": {"destinationPort": {"range": {"start": 90, "end": 95}}}},
                        {"sctp": {}},
                        {"destinationNamedPort": "http"},
                    ],
                },
                {"action": "Pass", "from": [EVERYBODY]},
            ],
            "egress": [
                {
                    "action": "Deny",
                    "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]}, {"nodes": {}}],
                }
            ],
        }
    )
    assert (policy.id.name, policy.id.kind) == ("kcnp.guard", "ClusterNetworkPolicy")
    assert (policy.tier, policy.order, policy.problem) == ("kube-baseline", 10.0, "")
    assert policy.selector == f"(has(projectcalico.org/namespace)) && (({K8S}) && (app == 'web'))"
    assert policy.limits == ()
    anybody = Entity(selector=ALL)
    accept = Action.ALLOW
    assert policy.ingress == (
        PolicyRule(accept, protocol=TCP, source=anybody, destination=ports(PortRange(80, 80))),
        PolicyRule(accept, protocol=UDP, source=anybody, destination=ports(PortRange(90, 95))),
        PolicyRule(accept, protocol=SCTP, source=anybody),
        PolicyRule(accept, source=anybody, destination=ports("http")),
        PolicyRule(Action.PASS, source=anybody),
    )
    assert policy.egress == (
        PolicyRule(Action.DENY, destination=Entity((network_of("10.0.0.0/8"),))),
        PolicyRule(Action.DENY, destination=Entity((network_of("fd00::/8"),))),
        PolicyRule(Action.DENY, destination=Entity(nodes="")),
    )


def ports(*found: PortRange | str) -> Entity:
    return Entity(ports=found)


def test_its_tiers_stand_around_the_default_one() -> None:
    tiers = [cluster({"tier": one}).tier for one in ("Admin", "Baseline")]
    before, behind = (tier_of(one, {}) for one in tiers)
    default = tier_of("default", {})
    assert (before.order or 0) < (default.order or 0) < (behind.order or 0)
    assert before.passes
    assert behind.passes


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tier": "Other"}, "spec.tier: "),
    ({"priority": 1001}, "spec.priority: "),
    ({"priority": "1"}, "spec.priority: "),
    ({"subjects": {}}, "spec.subjects: no such"),
    ({"ingress": [{**RULE, "action": "Allow"}]}, "spec.ingress.0.action: "),
    ({"ingress": [{**RULE, "from": []}]}, "spec.ingress.0.from: "),
    ({"ingress": [{**RULE, "ports": []}]}, "spec.ingress.0.ports: no such"),
    ({"ingress": [{**RULE, "protocols": []}]}, "spec.ingress.0.protocols: "),
    ({"ingress": [{**RULE, "from": [{**EVERYBODY, "pods": {"podSelector": {}}}]}]},
     "spec.ingress.0.from.0: needs one of"),
    ({"ingress": [{**RULE, "from": [{**EVERYBODY, "moon": {}}]}]},
     "spec.ingress.0.from.0: needs one of"),
    ({"egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0"]}]}]},
     "spec.egress.0.to.0.networks.0: "),
    ({"ingress": [{**RULE, "protocols": [{"tcp": {"destinationPort": {}}}]}]},
     "spec.ingress.0.protocols.0.tcp.destinationPort: needs either"),
    ({"ingress": [{**RULE, "protocols": [{"tcp": {"sourcePort": {}}}]}]},
     "spec.ingress.0.protocols.0.tcp.sourcePort: no such"),
    ({"ingress": [{**RULE, "protocols": [{"tcp": {"destinationPort": {"range": {
        "start": 9, "end": 8}}}}]}]},
     "spec.ingress.0.protocols.0.tcp.destinationPort.range: start 9"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "problem"), REFUSED)
def test_what_is_wrong_closes_its_subject(spec: dict[str, Any], problem: str) -> None:
    subject = {"namespaces": {"matchLabels": {"env": "prod"}}}
    policy = admin(subject=subject, **spec)
    assert policy.problem.startswith(problem)
    assert policy.selector == f"(pcns.env == 'prod') && ({K8S})"
    assert (policy.ingress, policy.egress) == (None, None)


@pytest.mark.parametrize("spec", [None, [], {}, {"subject": {}}, {"subject": {"x": 1}}])
def test_without_a_subject_all_pods_are_closed(spec: Any) -> None:
    policy = cluster(spec)
    assert policy.problem
    assert policy.selector == K8S


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"to": [{"domainNames": ["a.example"]}]}, "to.0.domainNames"),
    ({"to": [EVERYBODY, {"moon": {}}]}, "to.1.moon"),
    ({"to": [{}]}, "to.0"),
    ({"to": [EVERYBODY], "protocols": [{"icmp": {}}]}, "protocols.0.icmp"),
]


@pytest.mark.parametrize(("rule", "where"), UNKNOWN)
@pytest.mark.parametrize(
    ("action", "left"),
    [("Accept", ()), ("Deny", (PolicyRule(Action.DENY),)), ("Pass", (PolicyRule(Action.DENY),))],
)
def test_a_rule_about_what_is_not_known_fails_closed_as_the_api_says(
    rule: dict[str, Any], where: str, action: str, left: tuple[PolicyRule, ...]
) -> None:
    """And the other rules of its policy are obeyed."""
    other = {"action": "Accept", "to": [{"nodes": {}}]}
    policy = admin(egress=[{"action": action, **rule}, other])
    assert policy.problem == ""
    assert policy.egress == (*left, PolicyRule(Action.ALLOW, destination=Entity(nodes="")))
    said = f"spec.egress.0.{where}: is not known here, so the rule fails closed"
    assert policy.limits == (said,)


def test_whom_such_a_rule_is_about_is_told_as_long_as_it_is_there() -> None:
    book = PolicyBook()
    for pod in PODS:
        book.put_item(key_of(pod), item_of(pod))
        book.put_local(key_of(pod), item_of(pod))
    desk = KubeDesk(book, followed=True)
    rule = {"action": "Accept", "to": [{"domainNames": ["a.example"]}]}
    spec = {"tier": "Admin", "priority": 1, "subject": EVERYBODY, "egress": [rule]}
    desk.take(Seen(written(spec)))
    found = book.rules().closed
    assert {one.endpoint for one in found} == {key_of(pod) for pod in PODS}
    assert all(one.partly and "domainNames" in one.problem for one in found)
    desk.take(Seen(written({**spec, "egress": []})))
    assert book.rules().closed == ()
