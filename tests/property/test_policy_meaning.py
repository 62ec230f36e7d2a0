"""The compiled policy decides as its meaning does; however it came about, it is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.policy_book import PolicyBook, Ways
from tests.fakes.packets import Packet
from tests.fakes.policy_matrix import RULES, matrix_packets, matrix_world
from tests.fakes.policy_meaning import Meaning, Pod, Written
from tests.fakes.policy_worlds import (
    PODS,
    book_of,
    item_of,
    key_of,
    netset_of,
    packets,
    pointed,
    policies,
    policy_of,
    profiles_of,
    tiers_of,
    worlds,
)
from tests.fakes.rule_machine import RuleMachine


def decides_as_meant(world: Meaning, some: Iterable[Packet]) -> None:
    found = book_of(world).rules()
    machine = RuleMachine(found.chains, found.sets)
    for pod in world.pods:
        ways = found.ways[key_of(pod)]
        for packet in some:
            for direction, chain in (("ingress", ways.ingress), ("egress", ways.egress)):
                meant = world.allows(pod, direction, packet)
                assert machine.allows(chain, packet) is meant, (pod.name, direction, packet)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_kind_of_match(rule: dict[str, Any]) -> None:
    decides_as_meant(matrix_world(rule), matrix_packets())


def test_each_rule_of_the_table_has_packets_for_it_and_against_it() -> None:
    """But two, of which no pod is, or of which every pod's address is."""
    verdicts = [
        {
            matrix_world(rule).allows(pod, "ingress", packet)
            for packet in matrix_packets()
            for pod in PODS
            if packet.destination in pod.addresses
        }
        for rule in RULES
    ]
    assert [rule for rule, found in zip(RULES, verdicts, strict=True) if len(found) < 2] == [
        {"destination": {"namespaceSelector": "global()"}},
        {"destination": {"namespaceSelector": "all()", "selector": "!has(tier)"}},
    ]


Step = Callable[[PolicyBook], object]


@settings(deadline=None, max_examples=400)
@given(st.one_of(worlds(), pointed()), st.lists(packets(), min_size=10, max_size=30))
def test_the_rules_decide_as_the_policies_mean(world: Meaning, some: list[Packet]) -> None:
    decides_as_meant(world, some)


def steps_to(world: Meaning) -> list[Step]:
    """One step for each thing; they may be taken in any order."""
    items = [(key_of(pod), item_of(pod)) for pod in world.pods]
    return [
        *(partial(PolicyBook.put_tier, tier=one) for one in tiers_of(world)),
        *(partial(PolicyBook.put_profile, profile=one) for one in profiles_of(world)),
        *(partial(PolicyBook.put_item, key=key, item=item) for key, item in items),
        *(partial(PolicyBook.put_local, key=key, item=item) for key, item in items),
        *(
            partial(PolicyBook.put_item, key=key, item=item)
            for key, item in map(netset_of, world.netsets)
        ),
        *(partial(PolicyBook.put_policy, policy=policy_of(one)) for one in world.policies),
    ]


@st.composite
def passing(draw: st.DrawFn) -> list[Step]:
    """Things that come, and are gone or different in the end."""
    other = draw(policies("p0"))
    pod = draw(st.sampled_from(PODS))
    wrong = Pod(pod.namespace, pod.name, PODS[0].addresses, {"app": "db", "tier": "x"})
    some: list[Step] = [
        lambda book: book.put_policy(policy_of(other)),
        lambda book: book.remove_policy(policy_of(other).id),
        lambda book: book.put_item(key_of(wrong), item_of(wrong)),
        lambda book: book.put_local(key_of(wrong), item_of(wrong)),
        lambda book: book.remove_item(key_of(pod)),
        lambda book: book.remove_local(key_of(pod)),
        lambda book: book.remove_profile("kns.red"),
        lambda book: book.remove_tier("first"),
        lambda book: book.refuse(policy_of(other).id, "the kernel said no"),
        PolicyBook.rules,
    ]
    return [draw(st.sampled_from(some)) for _ in range(draw(st.integers(0, 12)))]


@settings(deadline=None, max_examples=150)
@given(worlds(), passing(), st.data())
def test_what_came_before_does_not_matter(
    world: Meaning, before: list[Step], data: st.DataObject
) -> None:
    book = PolicyBook()
    for step in (*data.draw(st.permutations(steps_to(world))), *before):
        step(book)
    for namespace in ("", "red", "blue"):  # whatever policy passed
        book.remove_policy(policy_of(Written("p0", {}, namespace)).id)
    for step in data.draw(st.permutations(steps_to(world))):
        step(book)
    wanted, found = book_of(world).rules(), book.rules()
    assert dict(found.chains) == dict(wanted.chains)
    assert found.sets == wanted.sets
    assert found.ways == wanted.ways
    assert Ways() not in found.ways.values()
