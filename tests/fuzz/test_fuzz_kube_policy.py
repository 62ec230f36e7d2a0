"""Whatever somebody stores as a policy becomes one, or one that closes: reading never raises."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.kube_entries import POLICIES, PolicyObject, entry_of
from felix_shim.policy_order import Direction, own_chain, rules_of
from libtortie.model.keys import Kind
from libtortie.model.policy import Policy
from libtortie.model.policy_wire import problems_of, read_policy
from libtortie.model.selectors import parse
from tests.fakes.policy_worlds import resource

WORDS = st.sampled_from(
    [
        "podSelector", "namespaceSelector", "matchLabels", "matchExpressions", "key", "operator",
        "values", "In", "Exists", "policyTypes", "Ingress", "Egress", "ingress", "egress", "from",
        "to", "ports", "port", "endPort", "protocol", "TCP", "ipBlock", "cidr", "except", "subject",
        "namespaces", "pods", "networks", "priority", "action", "Allow", "Pass", "portNumber",
        "namedPort", "portRange", "start", "end", "10.0.0.0/8", "::/0", "a", "'", "\"'", "(", "",
        "selector", "source", "destination", "nets", "notNets", "icmp", "type", "order", "tier",
        "app == 'web'", "has(", "types", "serviceAccounts", "names", "doNotTrack", "spec",
        "services", "name", "namespace", "Admin", "Accept", "protocols", "tcp", "destinationPort",
        "number", "range", "nodes", "domainNames", "endpoints", "addresses", "status", "address",
    ]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 70000), st.floats(), WORDS, st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=25,
)
SPECS = st.one_of(VALUES, st.dictionaries(WORDS, VALUES, max_size=6))


def is_whole(policy: Policy) -> None:
    """It says whom it is about, and its rules can be compiled, or it closes."""
    parse(policy.selector)
    if policy.problem:
        assert (policy.ingress, policy.egress) == (None, None)
    for direction in Direction:
        own_chain(direction, rules_of(policy, direction) or ())


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(POLICIES), SPECS)
def test_kubernetes_policies(kind: type[PolicyObject], spec: Any) -> None:
    meta = {"name": "p", "namespace": "shop"}
    policy = entry_of(kind.model_validate({"metadata": meta, "spec": spec}))
    assert isinstance(policy, Policy)
    is_whole(policy)


@settings(deadline=None, max_examples=500)
@given(
    st.sampled_from([Kind.NETWORK_POLICY, Kind.GLOBAL_NETWORK_POLICY]),
    st.dictionaries(WORDS, VALUES, max_size=6),
)
def test_calicos_policies(kind: Kind, spec: dict[str, Any]) -> None:
    written = resource(kind, "p", spec, namespace="shop" if kind.namespaced else "")
    policy = read_policy(written)
    is_whole(policy)
    assert bool(policy.problem) is bool(problems_of(written))
