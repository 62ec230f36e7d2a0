"""The agent hears of policy from the Kubernetes API: objects come and go, the API too."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.events import InSync, Seen, Stored, Unstored, Vanished
from felix_shim.kube_entries import KINDS, PROFILES, PolicyObject, followed_kinds
from felix_shim.policy import EndpointPolicy
from felix_shim.policy_order import CLOSED
from libtortie.datastore.port import Record
from libtortie.kube.objects import Namespace
from libtortie.kube.policies import AdminNetworkPolicy, KubeNetworkPolicy
from libtortie.model.keys import Kind, Resources
from libtortie.model.names import host_ifname
from tests.fakes.agent_world import NAMESPACE, Bench, endpoint_record
from tests.fakes.policy_worlds import resource

ISOLATED = {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}


def made(model: type[PolicyObject], name: str, spec: Any = None, **metadata: Any) -> PolicyObject:
    return model.model_validate({"metadata": {"name": name, **metadata}, "spec": spec})


def policy(spec: Any = None, name: str = "p") -> PolicyObject:
    return made(KubeNetworkPolicy, name, spec or ISOLATED, namespace=NAMESPACE)


def synced(*objects: PolicyObject) -> list[Seen | InSync]:
    """What a source posts after a list."""
    names = {
        kind: frozenset(
            (one.metadata.namespace, one.metadata.name) for one in objects if type(one) is kind
        )
        for kind in KINDS
    }
    return [*(Seen(one) for one in objects), *(InSync(kind, names[kind]) for kind in KINDS)]


def bench_with(*objects: PolicyObject, labels: dict[str, str] | None = None) -> Bench:
    bench = Bench(kube=False, policy_kinds=frozenset(KINDS))
    bench.listed()
    bench.attach(endpoint_record("web", vm=False, labels={"app": "web", **(labels or {})}))
    bench.tell(*synced(*objects))
    return bench


def rules_of(bench: Bench) -> EndpointPolicy:
    return bench.rules[-1].by_interface()[host_ifname(NAMESPACE, "web")]


def elements(bench: Bench) -> set[str]:
    return {text for found in bench.rules[-1].sets.values() for text in found.texts}


def chain(bench: Bench, name: str = "p") -> bool:
    return f"pi-knp/{NAMESPACE}/knp.default.{name}" in bench.rules[-1].chains


def test_a_policy_comes_changes_and_goes() -> None:
    bench = bench_with()
    free = rules_of(bench)
    bench.tell(Seen(policy()))
    assert chain(bench)
    assert rules_of(bench).ingress not in (free.ingress, CLOSED)
    assert rules_of(bench).egress == free.egress
    bench.tell(Seen(policy({**ISOLATED, "policyTypes": ["Egress"]})))
    assert rules_of(bench).ingress == free.ingress != CLOSED
    bench.tell(Vanished(policy()))
    assert rules_of(bench) == free


def test_what_says_the_same_again_is_no_work() -> None:
    """An annotation of a namespace, or a list after a lost watch."""
    space = made(Namespace, NAMESPACE, labels={"env": "prod"}, annotations={"lease": "1"})
    bench = bench_with(policy(), space)
    world, programmed = bench.reconciler.world, len(bench.rules)
    serial = world.policy_serial
    renewed = made(Namespace, NAMESPACE, labels={"env": "prod"}, annotations={"lease": "2"})
    bench.tell(Seen(renewed), *synced(policy(), renewed))
    assert (world.policy_serial, len(bench.rules)) == (serial, programmed)
    bench.tell(Vanished(policy()))
    assert not chain(bench)
    bench.tell(Seen(policy()))
    assert chain(bench), "what comes again is news"
    bench.tell(*synced(renewed))
    assert not chain(bench)
    bench.tell(*synced(policy(), renewed))
    assert chain(bench)


def test_what_a_new_list_does_not_have_is_gone() -> None:
    bench = bench_with(policy(), policy(name="q"))
    assert chain(bench) and chain(bench, "q")
    bench.tell(*synced(policy(name="q")))
    assert not chain(bench) and chain(bench, "q")


def test_nothing_is_programmed_before_each_kind_was_listed() -> None:
    for missing in KINDS:
        bench = Bench(kube=False, policy_kinds=frozenset(KINDS))
        bench.listed()
        bench.attach(endpoint_record("web", vm=False))
        bench.tell(*(InSync(kind, frozenset()) for kind in KINDS if kind is not missing))
        assert bench.rules == []
        bench.tell(InSync(missing, frozenset()))
        assert bench.rules


def test_a_policy_that_cannot_be_converted_closes_those_it_selects() -> None:
    bench = bench_with(policy({**ISOLATED, "ingress": [{"from": [{"unknown": {}}]}]}))
    assert (rules_of(bench).ingress, rules_of(bench).egress) == (CLOSED, CLOSED)
    told = bench.log.of("policy_closes_endpoint")
    assert [str(one["policy"]) for one in told] == [
        f"KubernetesNetworkPolicy {NAMESPACE}/knp.default.p"
    ]
    bench.tell(Seen(policy()))
    assert rules_of(bench).ingress != CLOSED


def test_labels_of_a_namespace_and_its_word_against_the_stores_copy() -> None:
    """Of two sayings the API's counts; when it has none, the store's does."""
    peer = {"namespaceSelector": {"matchLabels": {"env": "prod"}}}
    bench = bench_with(policy({**ISOLATED, "ingress": [{"from": [peer]}]}))
    assert elements(bench) == set()
    prod = made(Namespace, NAMESPACE, labels={"env": "prod"})
    bench.tell(Seen(prod))
    assert elements(bench) != set()
    found = resource(Kind.PROFILE, f"kns.{NAMESPACE}", {"labelsToApply": {"pcns.env": "test"}})
    copy = Record(found.key, found, "1")
    bench.tell(Stored(Resources(Kind.PROFILE), copy))
    assert elements(bench) != set()
    bench.tell(Vanished(prod))
    assert elements(bench) == set()
    bench.tell(Seen(prod), Unstored(Resources(Kind.PROFILE), copy.key))
    assert elements(bench) != set()


def test_the_stores_copy_of_a_network_policy_does_not_count() -> None:
    """Calico's controllers made it, and may not be there any more to take it away."""
    found = resource(
        Kind.NETWORK_POLICY, "knp.default.p", {"selector": "all()"}, namespace=NAMESPACE
    )
    copy = Stored(Resources(Kind.NETWORK_POLICY), Record(found.key, found, "1"))
    bench = bench_with()
    free = rules_of(bench)
    bench.tell(copy)
    assert rules_of(bench) == free
    alone = Bench(kube=False)
    alone.listed()
    alone.attach(endpoint_record("web", vm=False))
    alone.tell(copy)
    assert rules_of(alone).ingress not in (free.ingress, CLOSED), (
        "without an API it is all there is"
    )


@pytest.mark.parametrize(
    "claim",
    [
        {"pcns.env": "prod"},
        {"pcsa.role": "db"},
        {"projectcalico.org/serviceaccount": "robot"},
        {"projectcalico.org/orchestrator": "other"},
    ],
)
def test_a_pod_does_not_choose_its_namespaces_labels_or_its_account(claim: dict[str, str]) -> None:
    spec = {
        "selector": "projectcalico.org/orchestrator == 'k8s'",
        "ingress": [
            {"action": "Allow", "source": {"namespaceSelector": "env == 'prod'"}},
            {"action": "Allow", "source": {"serviceAccounts": {"names": ["robot"]}}},
            {"action": "Allow", "source": {"serviceAccounts": {"selector": "role == 'db'"}}},
        ],
    }
    found = resource(Kind.NETWORK_POLICY, "own", spec, namespace=NAMESPACE)
    bench = bench_with(labels=claim)
    bench.tell(Stored(Resources(Kind.NETWORK_POLICY), Record(found.key, found, "1")))
    assert f"pi-np/{NAMESPACE}/own" in bench.rules[-1].chains
    assert elements(bench) == set()


def test_the_administrators_policies_go_first() -> None:
    deny = {"action": "Deny", "from": [{"namespaces": {}}]}
    guard = made(
        AdminNetworkPolicy,
        "guard",
        {"priority": 1, "subject": {"namespaces": {}}, "ingress": [deny]},
    )
    bench = bench_with(policy(), guard)
    first = bench.rules[-1].chains[rules_of(bench).ingress]
    assert "pi-anp/kanp.adminnetworkpolicy.guard" in str(first[0].verdict)


def test_in_sync_is_who_has_listed_every_kind_once() -> None:
    """Nothing that a source says later takes it back."""
    bench = Bench(kube=False, policy_kinds=frozenset(KINDS))
    bench.listed()
    heard = []
    for event in synced():
        heard.append(bench.reconciler.world.policy_in_sync)
        bench.tell(event)
    assert heard == [False] * len(KINDS)
    assert bench.reconciler.world.policy_in_sync


def test_in_kubernetes_own_datastore_profiles_are_in_there() -> None:
    assert set(followed_kinds("kubernetes")) == {*KINDS} - {*PROFILES}
    assert set(followed_kinds("etcdv3")) == {*KINDS}
