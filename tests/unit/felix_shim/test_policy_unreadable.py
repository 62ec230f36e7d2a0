"""What is stored and cannot be read: whoever may depend on it is closed, named, told once."""

from __future__ import annotations

from typing import Any

import pytest

from felix_shim.cluster import ENDPOINTS
from felix_shim.endpoints import parse_endpoint
from felix_shim.events import Listed, Stored, Unstored
from felix_shim.policy import EndpointPolicy
from felix_shim.policy_desk import PolicyDesk
from felix_shim.policy_order import CLOSED
from libtortie.datastore.port import Record
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.names import host_ifname
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NAMESPACE, NODE, Bench, RecordingLog, endpoint_record
from tests.fakes.policy_worlds import resource

OWN = Resources(Kind.NETWORK_POLICY)
DENY_PARTNERS: dict[str, Any] = {
    "selector": "app == 'web'",
    "ingress": [
        {"action": "Deny", "source": {"selector": "role == 'partner'"}},
        {"action": "Allow"},
    ],
}


def record(kind: Kind, name: str, spec: dict[str, Any], **metadata: Any) -> Record:
    found = resource(kind, name, spec, **metadata)
    return Record(found.key, found, "1")


def stored(kind: Kind, name: str, spec: dict[str, Any], **metadata: Any) -> Stored:
    return Stored(Resources(kind), record(kind, name, spec, **metadata))


def partners(*nets: str, role: str = "partner") -> Stored:
    return stored(Kind.NETWORK_SET, "s", {"nets": nets}, namespace=NAMESPACE, labels={"role": role})


def bench() -> Bench:
    made = Bench(kube=False)
    made.listed()
    made.attach(endpoint_record("web", vm=False, labels={"app": "web"}))
    made.attach(endpoint_record("other", address="10.65.0.7", vm=False))
    return made


def rules_of(found: Bench, pod: str = "web") -> EndpointPolicy:
    return found.rules[-1].by_interface()[host_ifname(NAMESPACE, pod)]


def closed(found: Bench, pod: str = "web") -> bool:
    ways = rules_of(found, pod)
    assert (ways.ingress == CLOSED) is (ways.egress == CLOSED)
    return ways.ingress == CLOSED


def test_who_uses_a_set_that_cannot_be_read_is_closed_and_told_why() -> None:
    """With the set merely absent, a rule that denies its networks would let them pass."""
    agent = bench()
    agent.tell(
        stored(Kind.NETWORK_POLICY, "p", DENY_PARTNERS, namespace=NAMESPACE),
        partners("198.51.100.0/24"),
    )
    assert not closed(agent)
    agent.tell(partners("198.51.100.0/24", "203.0.113.0/33"))
    assert closed(agent)
    assert not closed(agent, "other"), "its policies use no sets"
    (endpoint, text), *more = agent.told_closed
    assert (endpoint.pod, more) == ("web", [])
    assert text.startswith(
        f"NetworkPolicy {NAMESPACE}/p cannot be obeyed: NetworkSet {NAMESPACE}/s: spec.nets.1: "
    )
    agent.tell(partners("198.51.100.0/24"))
    assert not closed(agent)
    assert len(agent.told_closed) == 1


def test_a_set_that_is_selected_by_nobody_closes_nobody() -> None:
    agent = bench()
    agent.tell(
        stored(Kind.NETWORK_POLICY, "p", DENY_PARTNERS, namespace=NAMESPACE),
        partners("x", role="friend"),
    )
    assert not closed(agent)
    agent.tell(partners("x", role="partner"))
    assert closed(agent)
    agent.tell(Unstored(Resources(Kind.NETWORK_SET), ResourceKey(Kind.NETWORK_SET, "s", NAMESPACE)))
    assert not closed(agent)


def test_a_set_is_found_by_the_labels_of_its_namespace_too() -> None:
    agent = bench()
    spec = {
        "selector": "app == 'web'",
        "egress": [{"action": "Deny", "destination": {"namespaceSelector": "env == 'prod'"}}],
    }
    agent.tell(stored(Kind.GLOBAL_NETWORK_POLICY, "p", spec), partners("x"))
    assert not closed(agent)
    for env, closes in (("prod", True), ("test", False), ("prod", True)):
        labels = {"labelsToApply": {"pcns.env": env}}
        agent.tell(stored(Kind.PROFILE, f"kns.{NAMESPACE}", labels))
        assert closed(agent) is closes


def test_a_set_of_which_nothing_can_be_read_is_what_it_was_or_anything() -> None:
    agent = bench()
    agent.tell(stored(Kind.NETWORK_POLICY, "p", DENY_PARTNERS, namespace=NAMESPACE))
    known, sets = partners("198.51.100.0/24", role="friend"), Resources(Kind.NETWORK_SET)
    agent.tell(known)
    agent.tell(Listed(sets, (), ("s",), (known.record.key,)))
    assert not closed(agent), "it was no partner's"
    agent.tell(Listed(sets, (), ("s",), (known.record.key,)))
    assert not closed(agent)
    strange = ResourceKey(Kind.NETWORK_SET, "t", NAMESPACE)
    agent.tell(Listed(sets, (known.record,), ("t",), (strange,)))
    assert closed(agent)
    agent.tell(Listed(sets, (known.record,)))
    assert not closed(agent)


@pytest.mark.parametrize(
    "kind", [Kind.NETWORK_SET, Kind.GLOBAL_NETWORK_SET, Kind.HOST_ENDPOINT], ids=str
)
def test_of_whatever_rules_select_and_nobody_knows_the_users_are_closed(kind: Kind) -> None:
    agent = bench()
    agent.tell(stored(Kind.GLOBAL_NETWORK_POLICY, "p", DENY_PARTNERS))
    assert not closed(agent)
    key = ResourceKey(kind, "s", NAMESPACE if kind.namespaced else "")
    agent.tell(Listed(Resources(kind), (), ("s",), (key,)))
    assert closed(agent)
    assert not closed(agent, "other")
    agent.tell(Listed(Resources(kind), ()))
    assert not closed(agent)


@pytest.mark.parametrize(
    ("kind", "name"), [(Kind.NETWORK_POLICY, "p"), (Kind.GLOBAL_NETWORK_POLICY, "p")]
)
def test_a_policy_of_which_nothing_can_be_read_may_be_about_anybody(kind: Kind, name: str) -> None:
    agent = bench()
    namespace = NAMESPACE if kind.namespaced else ""
    agent.tell(Listed(Resources(kind), (), ("p",), (ResourceKey(kind, name, namespace),)))
    assert closed(agent) and closed(agent, "other")
    told = {str(endpoint.pod): text for endpoint, text in agent.told_closed}
    where = f"{namespace}/p" if namespace else "p"
    assert set(told) == {"web", "other"}
    assert told["web"].startswith(f"{kind} {where} cannot be obeyed: what is stored")
    agent.tell(Listed(Resources(kind), ()))
    assert not closed(agent)


def test_a_policy_that_becomes_unreadable_is_in_force_no_more_and_closes() -> None:
    agent = bench()
    policy = stored(Kind.NETWORK_POLICY, "p", DENY_PARTNERS, namespace=NAMESPACE)
    agent.tell(policy)
    agent.tell(Listed(OWN, (), ("p",), (policy.record.key,)))
    assert closed(agent)
    agent.tell(policy)
    assert not closed(agent)


def test_the_policies_of_a_tier_that_cannot_be_read_close_theirs() -> None:
    """Its place among the tiers, and what it does with the rest, is not known."""
    agent = bench()
    agent.tell(
        stored(Kind.NETWORK_POLICY, "p", {**DENY_PARTNERS, "tier": "security"}, namespace=NAMESPACE)
    )
    assert not closed(agent)
    tier = ResourceKey(Kind.TIER, "security")
    agent.tell(Listed(Resources(Kind.TIER), (), ("security",), (tier,)))
    assert closed(agent)
    assert not closed(agent, "other")
    assert "Tier security: what is stored" in agent.told_closed[0][1]
    agent.tell(stored(Kind.TIER, "security", {"order": 10}))
    assert not closed(agent)


def test_a_profile_of_which_nothing_can_be_read_closes_those_who_have_it() -> None:
    agent = bench()
    profile = ResourceKey(Kind.PROFILE, f"kns.{NAMESPACE}")
    agent.tell(Listed(Resources(Kind.PROFILE), (), ("kns",), (profile,)))
    assert closed(agent)
    agent.tell(Listed(Resources(Kind.PROFILE), ()))
    assert not closed(agent)


def test_who_is_refused_by_the_kernel_is_told() -> None:
    agent = bench()
    agent.refused_chains = frozenset({f"pi-np/{NAMESPACE}/p"})
    agent.tell(stored(Kind.NETWORK_POLICY, "p", DENY_PARTNERS, namespace=NAMESPACE))
    assert closed(agent)
    assert [endpoint.pod for endpoint, _ in agent.told_closed] == ["web"]
    assert "nft: no such rule" in agent.told_closed[0][1]


def test_a_pod_that_policy_knows_before_the_reconciler_is_told_of_too() -> None:
    desk = PolicyDesk(NODE, RecordingLog())
    web = endpoint_record("web", vm=False, labels={"app": "web"})
    assert isinstance(web.value, WorkloadEndpoint)
    desk.feed(stored(Kind.NETWORK_POLICY, "p", DENY_PARTNERS, namespace=NAMESPACE))
    desk.feed(partners("203.0.113.0/33"))
    desk.feed(Stored(ENDPOINTS, web))
    desk.rules(())
    assert desk.closings() == [], "whose pod it is, nobody has said yet"
    here = ((web.key, parse_endpoint(web.value)),)
    desk.rules(here)
    ((endpoint, text),) = desk.closings()
    assert endpoint.id.pod == "web"
    assert "cannot be obeyed" in text
    desk.rules(here)
    assert desk.closings() == []
    desk.feed(partners("203.0.113.0/24"))
    desk.rules(here)
    desk.feed(partners("203.0.113.0/33"))
    desk.rules(here)
    assert len(desk.closings()) == 1, "it was open in between"
