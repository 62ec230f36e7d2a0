"""From what the agent hears to what the kernel gets: policies, sets, and who is closed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from felix_shim.cluster import POLICY_SCOPES
from felix_shim.events import Listed, Stored, Unstored
from felix_shim.policy import EndpointPolicy
from felix_shim.policy_desk import MOST_ASKED, rank_of
from felix_shim.policy_order import BUILT_IN_TIERS, CLOSED
from felix_shim.reconciler import RESYNC_SECONDS
from libtortie.datastore.port import Record
from libtortie.model.keys import Kind, Resources
from libtortie.model.names import host_ifname
from libtortie.model.policy import TierRank
from libtortie.model.resources import Tier, WorkloadEndpoint, parse_resource
from tests.fakes.agent_world import NAMESPACE, Bench, endpoint_record
from tests.fakes.policy_worlds import resource

POLICIES = Resources(Kind.NETWORK_POLICY)


def policy(spec: dict[str, Any], name: str = "p") -> Record:
    found = resource(Kind.NETWORK_POLICY, name, spec, namespace=NAMESPACE)
    return Record(found.key, found, "1")


def rules_of(bench: Bench, pod: str = "web") -> EndpointPolicy:
    return bench.rules[-1].by_interface()[host_ifname(NAMESPACE, pod)]


def elements(bench: Bench) -> set[str]:
    return {text for found in bench.rules[-1].sets.values() for text in found.texts}


def with_web() -> Bench:
    bench = Bench(kube=False)
    bench.listed()
    bench.attach(endpoint_record("web", vm=False, labels={"app": "web"}))
    return bench


FROM_DB = {
    "selector": "app == 'web'",
    "ingress": [{"action": "Allow", "source": {"selector": "app == 'db'"}}],
}


def test_a_policy_changes_an_endpoints_rules_and_its_end_changes_them_back() -> None:
    bench = with_web()
    open_way = rules_of(bench).ingress
    assert open_way != CLOSED
    record = policy(FROM_DB)
    bench.tell(Stored(POLICIES, record))
    assert rules_of(bench).ingress not in (open_way, CLOSED)
    assert bench.rules[-1].chains.keys() >= {rules_of(bench).ingress, "pi-np/default/p"}
    bench.tell(Unstored(POLICIES, record.key))
    assert rules_of(bench).ingress == open_way


def test_pods_of_other_nodes_come_into_sets_and_go() -> None:
    bench = with_web()
    bench.tell(Stored(POLICIES, policy(FROM_DB)))
    assert elements(bench) == set()
    far = endpoint_record("db", address="10.65.9.9", node="n2", vm=False, labels={"app": "db"})
    bench.attach(far)
    assert elements(bench) == {"10.65.9.9"}
    bench.detach(far)
    assert elements(bench) == set()


def changed(record: Record, **spec: Any) -> Record:
    assert isinstance(record.value, WorkloadEndpoint)
    body = record.value.model_dump(by_alias=True)
    body["spec"] |= spec
    return replace(record, value=parse_resource(Kind.WORKLOAD_ENDPOINT, body))


def test_of_an_endpoint_that_is_wrong_in_part_the_rest_counts() -> None:
    """A denial of it holds, and its ports do not spoil everybody's rules."""
    bench = with_web()
    of_db = {"selector": "app == 'db'", "ports": ["http"]}
    deny = {"action": "Deny", "protocol": "TCP", "source": of_db}
    bench.tell(Stored(POLICIES, policy({**FROM_DB, "ingress": [deny]})))
    far = endpoint_record("db", node="n2", vm=False, labels={"app": "db"})
    numbers = (-1, 0, 80, 65536, 2**40)
    ports = [{"name": "http", "protocol": "TCP", "port": number} for number in numbers]
    bench.attach(changed(far, ipNetworks=["10.65.9.9/32", "10.65.9.10/33"], ports=ports))
    assert elements(bench) == {"10.65.9.9", "10.65.9.9 . 6 . 80"}


def test_an_endpoint_that_names_no_orchestrator_is_a_pod_as_everywhere_else() -> None:
    bench = with_web()
    spec = {"selector": "projectcalico.org/orchestrator == 'k8s'", "types": ["Ingress"]}
    bench.tell(Stored(POLICIES, policy(spec)))
    bench.attach(changed(endpoint_record("other", vm=False), orchestrator=""))
    assert rules_of(bench, "other").ingress == rules_of(bench).ingress
    assert bench.rules[-1].chains["pi-np/default/p"] == ()


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (Kind.NETWORK_SET, {"nets": ["203.0.113.0/24"]}),
        (Kind.GLOBAL_NETWORK_SET, {"nets": ["203.0.113.0/24"]}),
        (Kind.HOST_ENDPOINT, {"node": "n2", "expectedIPs": ["203.0.113.7"]}),
    ],
)
def test_what_is_no_pod_of_a_namespace_does_not_become_one_by_its_labels(
    kind: Kind, spec: dict[str, Any]
) -> None:
    bench = with_web()
    pods = "projectcalico.org/orchestrator == 'k8s'"
    of_shop = f"{pods} || projectcalico.org/namespace == 'shop'"
    rule = {"action": "Allow", "source": {"selector": of_shop}}
    made = resource(Kind.GLOBAL_NETWORK_POLICY, "p", {"ingress": [rule]})
    bench.tell(Stored(Resources(Kind.GLOBAL_NETWORK_POLICY), Record(made.key, made, "1")))
    known = elements(bench)
    labels = {"projectcalico.org/orchestrator": "k8s", "projectcalico.org/namespace": "shop"}
    where = {"namespace": NAMESPACE} if kind.namespaced else {}
    found = resource(kind, "s", spec, labels=labels, **where)
    bench.tell(Stored(Resources(kind), Record(found.key, found, "1")))
    assert elements(bench) == known
    assert known, "the pod itself"


def test_a_list_takes_away_what_is_not_in_it() -> None:
    bench = with_web()
    bench.tell(Stored(POLICIES, policy(FROM_DB)))
    bench.tell(Listed(POLICIES, (), ("NetworkPolicy default/p",)))
    assert "pi-np/default/p" in bench.rules[-1].chains, "it might be what cannot be read"
    bench.tell(Listed(POLICIES, ()))
    assert "pi-np/default/p" not in bench.rules[-1].chains


def test_a_policy_that_cannot_be_obeyed_closes_and_is_named_once() -> None:
    bench = with_web()
    bench.tell(Stored(POLICIES, policy({**FROM_DB, "ingress": [{"action": "Maybe"}]})))
    assert (rules_of(bench).ingress, rules_of(bench).egress) == (CLOSED, CLOSED)
    bench.attach(endpoint_record("other", address="10.65.0.7", vm=False))
    assert rules_of(bench, "other").ingress != CLOSED
    told = bench.log.of("policy_closes_endpoint")
    assert [str(one["policy"]) for one in told] == ["NetworkPolicy default/p"]
    assert str(told[0]["reason"]).startswith("spec.ingress.0.action: ")


def test_nothing_is_programmed_before_all_of_policy_is_known() -> None:
    bench = Bench(kube=False)
    bench.listed()
    fresh = Bench(kube=False)
    fresh.tell(*(Listed(scope, ()) for scope in POLICY_SCOPES[1:]))
    assert bench.rules
    assert fresh.rules == []


def test_a_network_set_that_is_none_is_refused_by_name() -> None:
    bench = with_web()
    found = resource(Kind.GLOBAL_NETWORK_SET, "s", {"nets": ["10.0.0.0/33"]})
    bench.tell(Stored(Resources(Kind.GLOBAL_NETWORK_SET), Record(found.key, found, "1")))
    assert "GlobalNetworkSet s" in str(bench.log.of("policy_resource_refused")[0]["reason"])


def test_one_policy_that_the_kernel_refuses_does_not_hold_up_the_others() -> None:
    bench = with_web()
    bench.refused_chains = frozenset({"pi-np/default/bad"})
    bench.attach(endpoint_record("other", address="10.65.0.7", vm=False, labels={"app": "x"}))
    bench.tell(
        Stored(POLICIES, policy(FROM_DB, "bad")),
        Stored(POLICIES, policy({**FROM_DB, "selector": "app == 'x'"}, "good")),
    )
    assert rules_of(bench).ingress == CLOSED
    assert "pi-np/default/good" in bench.rules[-1].chains
    assert rules_of(bench, "other").ingress != CLOSED
    assert [str(one["policy"]) for one in bench.log.of("policy_refused")] == [
        "NetworkPolicy default/bad"
    ]


def test_who_is_at_fault_is_found_beside_policies_that_are_not_in_force() -> None:
    """Of who is closed nobody keeps the sets, and a refused rule is looked for among all."""
    bench = with_web()
    bench.refused_chains = frozenset({"pi-np/default/bad"})
    bench.attach(endpoint_record("other", address="10.65.0.7", vm=False, labels={"app": "x"}))
    bench.tell(Stored(POLICIES, policy(FROM_DB, "good")))
    bench.tell(Stored(POLICIES, policy({**FROM_DB, "ingress": [{"action": "Maybe"}]}, "wrong")))
    assert rules_of(bench).ingress == CLOSED
    bad = {"selector": "app == 'x'", "ingress": [{"action": "Allow"}]}
    bench.tell(Stored(POLICIES, policy(bad, "bad")))
    assert rules_of(bench, "other").ingress == CLOSED
    assert [str(one["policy"]) for one in bench.log.of("policy_refused")] == [
        "NetworkPolicy default/bad"
    ]


def test_rules_that_the_kernel_takes_after_all_are_in_force_at_the_next_resync() -> None:
    bench = with_web()
    bench.refused_chains = frozenset({"pi-np/default/p"})
    bench.tell(Stored(POLICIES, policy(FROM_DB)))
    bench.advance(RESYNC_SECONDS)
    assert rules_of(bench).ingress == CLOSED
    bench.refused_chains = frozenset()
    bench.tell(Stored(POLICIES, policy({**FROM_DB, "selector": "app == 'x'"}, "other")))
    assert rules_of(bench).ingress == CLOSED, "nobody asks at each change"
    bench.advance(RESYNC_SECONDS)
    assert rules_of(bench).ingress != CLOSED
    assert "pi-np/default/p" in bench.rules[-1].chains
    assert len(bench.log.of("policy_refused")) == 1


def test_of_many_refused_policies_some_are_asked_about_at_a_time_and_in_the_end_each() -> None:
    bench = with_web()
    names = [f"p{number}" for number in range(2 * MOST_ASKED + 1)]
    chains = {f"pi-np/default/{name}" for name in names}
    bench.refused_chains = frozenset(chains)
    bench.tell(*(Stored(POLICIES, policy(FROM_DB, name)) for name in names))
    assert len(bench.log.of("policy_refused")) == len(names)
    first = sorted(names)[:MOST_ASKED]
    bench.refused_chains = frozenset(f"pi-np/default/{name}" for name in first)
    for rounds in (1, 2, 3):
        before = bench.questions
        bench.advance(RESYNC_SECONDS)
        assert bench.questions - before <= 1 + MOST_ASKED, rounds
    taken = {str(one["policy"]) for one in bench.log.of("policy_taken_again")}
    assert taken == {f"NetworkPolicy default/{name}" for name in set(names) - {*first}}
    assert rules_of(bench).ingress == CLOSED


@pytest.mark.parametrize("tier", BUILT_IN_TIERS.values(), ids=lambda tier: tier.name)
@pytest.mark.parametrize("written", [{}, {"order": None, "defaultAction": None}])
def test_a_tier_that_is_always_there_keeps_its_place_when_it_is_stored_without_one(
    tier: TierRank, written: dict[str, Any]
) -> None:
    """Last of all, an administrator's denial would come behind what a namespace allows."""
    found = resource(Kind.TIER, tier.name, written)
    assert isinstance(found, Tier)
    assert rank_of(found) == tier
    other = resource(Kind.TIER, tier.name, {"order": 5, "defaultAction": "Deny"})
    assert isinstance(other, Tier)
    assert rank_of(other) == TierRank(tier.name, 5.0), "what is said counts"


def test_another_tier_without_an_order_is_last_and_denies() -> None:
    found = resource(Kind.TIER, "mine", {})
    assert isinstance(found, Tier)
    assert rank_of(found) == TierRank("mine")


def test_nobody_is_blamed_when_nft_itself_is_broken() -> None:
    bench = with_web()
    bench.nft_broken = True
    bench.tell(Stored(POLICIES, policy(FROM_DB)))
    assert bench.log.of("policy_refused") == []
    bench.nft_broken = False
    bench.advance(5)
    assert rules_of(bench).ingress != CLOSED
