"""Kubernetes' policies, converted and compiled, decide as Kubernetes means them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.kube_desk import KubeDesk
from felix_shim.policy_book import Ways
from tests.fakes.kube_meaning import KubeMeaning
from tests.fakes.kube_worlds import kube_book_of, kube_worlds, matrix, tell
from tests.fakes.packets import Packet
from tests.fakes.policy_matrix import OUTWARD, PAIRS, matrix_packets
from tests.fakes.policy_worlds import key_of, packets
from tests.fakes.rule_machine import RuleMachine

PACKETS = matrix_packets(PAIRS + OUTWARD)


def decides_as_meant(world: KubeMeaning, some: Iterable[Packet]) -> set[bool]:
    found = kube_book_of(world).rules()
    assert all(one.partly for one in found.closed)
    machine = RuleMachine(found.chains, found.sets)
    verdicts = set()
    for pod in world.pods:
        ways = found.ways[key_of(pod)]
        for packet in some:
            for direction, chain, end in (
                ("ingress", ways.ingress, packet.destination),
                ("egress", ways.egress, packet.source),
            ):
                if end not in pod.addresses:
                    continue
                meant = world.allows(pod, direction, packet)
                assert machine.allows(chain, packet) is meant, (pod.name, direction, packet)
                verdicts.add(meant)
    return verdicts


@pytest.mark.parametrize("number", range(len(matrix())))
def test_every_kind_of_match(number: int) -> None:
    assert decides_as_meant(matrix()[number], PACKETS)


def test_the_table_is_about_what_it_says() -> None:
    """All but what selects nobody forbids something, and most of it allows something, too."""
    verdicts = [decides_as_meant(world, PACKETS) for world in matrix()]
    assert sum(False in found for found in verdicts) >= len(verdicts) - 1
    assert sum(True in found for found in verdicts) == len(verdicts)


@settings(deadline=None, max_examples=300)
@given(kube_worlds(), st.lists(packets(), min_size=10, max_size=30))
def test_the_rules_decide_as_kubernetes_means(world: KubeMeaning, some: list[Packet]) -> None:
    decides_as_meant(world, some)


@settings(deadline=None, max_examples=100)
@given(kube_worlds(), kube_worlds())
def test_what_the_api_said_before_does_not_matter(before: KubeMeaning, now: KubeMeaning) -> None:
    book = kube_book_of(before)
    tell(KubeDesk(book, followed=True), before)
    desk = KubeDesk(book, followed=True)
    tell(desk, before)
    tell(desk, now)
    wanted, found = kube_book_of(now).rules(), book.rules()
    assert dict(found.chains) == dict(wanted.chains)
    assert found.sets == wanted.sets
    assert found.ways == wanted.ways
    assert Ways() not in found.ways.values()
