"""Sentence by sentence what the resources of policy promise, each by packets through the rules."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from libtortie.model.keys import Kind
from libtortie.model.policy import Profile
from libtortie.model.policy_wire import read_profile
from tests.fakes.packets import TCP, Packet
from tests.fakes.policy_meaning import Meaning, NetSet, Pod, Written
from tests.fakes.policy_worlds import book_of, key_of, resource
from tests.fakes.rule_machine import RuleMachine

WEB = Pod("red", "web", (ip_address("10.65.0.2"),), {"app": "web"}, "front")
DB = Pod("red", "db", (ip_address("10.65.0.3"),), {"app": "db"}, "robot")
FAR = Pod("blue", "far", (ip_address("10.65.0.4"),), {"app": "far"}, "robot")
WORLD = Meaning(
    (WEB, DB, FAR),
    namespaces={"red": {"env": "prod"}, "blue": {"env": "test"}},
    accounts={("red", "robot"): {"role": "db"}, ("blue", "robot"): {"role": "db"}},
)
ALLOW, DENY, PASS, LOG = ({"action": action} for action in ("Allow", "Deny", "Pass", "Log"))
TO_WEB = {"selector": "app == 'web'", "types": ["Ingress"]}


def rules(name: str, *ingress: dict[str, Any], namespace: str = "", **spec: Any) -> Written:
    return Written(name, {**TO_WEB, "ingress": list(ingress), **spec}, namespace)


def placed(order: float | None) -> dict[str, Any]:
    return {} if order is None else {"order": order}


def gets(world: Meaning, source: str = "10.65.0.3", logged: list[str] | None = None) -> bool:
    """Whether web gets a connection; the two evaluators must agree."""
    found = book_of(world).rules()
    packet = Packet(ip_address(source), WEB.addresses[0], TCP, 1024, 80)
    machine = RuleMachine(found.chains, found.sets)
    passes = machine.allows(found.ways[key_of(WEB)].ingress, packet)
    assert passes is world.allows(WEB, "ingress", packet)
    if logged is not None:
        logged += machine.logged
    return passes


def with_policies(*policies: Written, **tiers: tuple[float | None, str]) -> Meaning:
    return replace(WORLD, policies=policies, tiers={"default": (1e6, "Deny"), **tiers})


@pytest.mark.parametrize(
    ("orders", "passes"),
    [((1, 2), True), ((2, 1), False), ((1.5, 1.25), False), ((None, 9), False), ((9, None), True)],
)
def test_policies_are_asked_by_order_and_those_without_one_last(
    orders: tuple[float | None, float | None], passes: bool
) -> None:
    world = with_policies(
        rules("allow", ALLOW, **placed(orders[0])), rules("deny", DENY, **placed(orders[1]))
    )
    assert gets(world) is passes


def test_policies_of_one_order_are_asked_by_name() -> None:
    assert gets(with_policies(rules("b", DENY, order=1), rules("a", ALLOW, order=1)))
    assert not gets(with_policies(rules("a", DENY, order=1), rules("b", ALLOW, order=1)))


@pytest.mark.parametrize(("action", "passes"), [("Deny", False), ("Pass", True)])
def test_a_tiers_default_action_is_for_what_its_policies_do_not_decide(
    action: str, passes: bool
) -> None:
    mine = rules("mine", {**ALLOW, "source": {"nets": ["192.0.2.0/24"]}}, tier="first")
    allow = rules("allow", ALLOW)
    assert gets(with_policies(mine, allow, first=(1, action))) is passes
    assert gets(with_policies(mine, first=(1, action))) is passes, "then the profile decides"


def test_a_tier_counts_only_where_a_policy_of_it_applies() -> None:
    """Not for another's policies, nor for one that says nothing of the direction."""
    others = rules("others", selector="app == 'db'", tier="first")
    egress = Written("egress", {"selector": "all()", "types": ["Egress"], "tier": "first"})
    assert gets(with_policies(others, egress, first=(1, "Deny")))


def test_tiers_are_asked_by_order_then_by_name_and_one_that_is_not_stored_last() -> None:
    deny, allow = rules("deny", DENY, tier="b"), rules("allow", ALLOW, tier="a")
    assert gets(with_policies(deny, allow, a=(1, "Deny"), b=(2, "Deny")))
    assert not gets(with_policies(deny, allow, a=(2, "Deny"), b=(1, "Deny")))
    assert gets(with_policies(deny, allow, a=(1, "Deny"), b=(1, "Deny")))
    assert gets(with_policies(deny, allow, a=(None, "Deny"))), "both last: by name"
    assert gets(with_policies(rules("deny", DENY, tier="a"), rules("z", ALLOW), z=(1, "Deny")))


def test_pass_skips_the_rest_of_a_tier() -> None:
    first = rules("first", PASS, order=1, tier="first")
    second = rules("second", DENY, order=2, tier="first")
    assert gets(with_policies(first, second, rules("allow", ALLOW), first=(1, "Deny")))
    assert not gets(with_policies(first, second, rules("deny", DENY), first=(1, "Deny")))
    assert gets(with_policies(first, second, first=(1, "Deny"))), "no next tier: the profile"


def test_log_tells_and_goes_on() -> None:
    told: list[str] = []
    assert gets(with_policies(rules("p", LOG, ALLOW)), logged=told)
    assert not gets(with_policies(rules("p", LOG)), logged=told)
    assert told == ["calico-packet: ", "calico-packet: "]


PARTNER = "198.51.100.7"
OWN_SET = NetSet("red", "s", ("198.51.100.0/24",), {"role": "partner"})


@pytest.mark.parametrize(
    ("found", "source", "namespace", "passes"),
    [
        (OWN_SET, {"selector": "role == 'partner'"}, "red", True),
        (replace(OWN_SET, namespace="blue"), {"selector": "role == 'partner'"}, "red", False),
        (replace(OWN_SET, namespace=""), {"selector": "role == 'partner'"}, "red", False),
        (replace(OWN_SET, namespace=""), {"namespaceSelector": "global()"}, "red", True),
        (OWN_SET, {"namespaceSelector": "global()"}, "red", False),
        (OWN_SET, {"namespaceSelector": "env == 'prod'"}, "red", True),
        (replace(OWN_SET, namespace="blue"), {"namespaceSelector": "env == 'prod'"}, "", False),
        (replace(OWN_SET, namespace=""), {"selector": "role == 'partner'"}, "", True),
        (OWN_SET, {"selector": "role == 'partner'"}, "", True),
    ],
)
def test_a_network_set_is_of_its_namespace_and_a_global_one_of_none(
    found: NetSet, source: dict[str, Any], namespace: str, passes: bool
) -> None:
    policy = rules("p", {**ALLOW, "source": source}, namespace=namespace)
    world = replace(with_policies(policy), netsets=(found,))
    assert gets(world, PARTNER) is passes
    assert not gets(world, "192.0.2.1")


@pytest.mark.parametrize(
    ("source", "namespace", "who"),
    [
        ({"serviceAccounts": {"names": ["robot"]}}, "red", {"db"}),
        ({"serviceAccounts": {"names": ["robot", "front"]}}, "", {"db", "far"}),
        ({"serviceAccounts": {"selector": "role == 'db'"}}, "red", {"db"}),
        ({"serviceAccounts": {"selector": "role == 'db'"}}, "", {"db", "far"}),
        (
            {
                "serviceAccounts": {"names": ["robot"], "selector": "role == 'x'"},
                "namespaceSelector": "env == 'test'",
            },
            "red",
            set(),
        ),
        (
            {"serviceAccounts": {"names": ["robot"]}, "namespaceSelector": "env == 'test'"},
            "red",
            {"far"},
        ),
    ],
)
def test_service_accounts_of_a_rule(source: dict[str, Any], namespace: str, who: set[str]) -> None:
    world = with_policies(rules("p", {**ALLOW, "source": source}, namespace=namespace))
    found = {pod.name for pod in (DB, FAR) if gets(world, str(pod.addresses[0]))}
    assert found == who


@pytest.mark.parametrize(
    ("spec", "applies"),
    [
        ({"serviceAccountSelector": "role == 'db'"}, False),
        ({"serviceAccountSelector": "!has(role)"}, True),
        ({"namespaceSelector": "env == 'prod'"}, True),
        ({"namespaceSelector": "env == 'test'"}, False),
        ({"namespaceSelector": "env == 'prod'", "serviceAccountSelector": "has(role)"}, False),
    ],
)
def test_whom_a_policy_is_about(spec: dict[str, Any], applies: bool) -> None:
    assert gets(with_policies(rules("p", DENY, **spec))) is not applies


def test_profiles_are_asked_in_their_order_and_close_at_their_end() -> None:
    from_db = {"selector": "app == 'db'"}

    def with_profiles(*profiles: Profile) -> bool:
        book = book_of(WORLD)
        for profile in profiles:
            book.put_profile(profile)
        item = book.sets.item(key_of(WEB))
        assert item is not None
        book.put_local(key_of(WEB), replace(item, profiles=tuple(one.name for one in profiles)))
        found = book.rules()
        packet = Packet(DB.addresses[0], WEB.addresses[0], TCP, 1024, 80)
        machine = RuleMachine(found.chains, found.sets)
        return machine.allows(found.ways[key_of(WEB)].ingress, packet)

    allow, deny, silent = (
        read_profile(resource(Kind.PROFILE, name, {"ingress": ingress}))
        for name, ingress in (
            ("a", [{**ALLOW, "source": from_db}]),
            ("d", [{**DENY, "source": from_db}]),
            ("s", []),
        )
    )
    assert with_profiles(allow, deny)
    assert not with_profiles(deny, allow)
    assert with_profiles(silent, allow)
    assert not with_profiles(silent)
