"""Kubernetes' policies against real packets: what the kernel lets through is what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from felix_shim.drivers.nftables import Nftables
from tests.fakes.kube_meaning import KubeMeaning
from tests.fakes.kube_worlds import kube_book_of, kube_worlds, matrix
from tests.fakes.packets import Packet
from tests.fakes.policy_matrix import matrix_packets
from tests.fakes.policy_wires import all_wires, local, meant, rules_of
from tests.fakes.policy_worlds import packets
from tests.fakes.wired_pods import WiredNode, wired

pytestmark = pytest.mark.root

PACKETS = matrix_packets(
    (
        ("203.0.113.9", "10.65.0.2"),
        ("10.65.0.3", "10.65.0.2"),
        ("10.65.0.2", "10.65.0.4"),
        ("10.65.0.2", "10.65.0.3"),
        ("10.65.0.3", "192.0.2.1"),
        ("fd00:65::4", "fd00:65::2"),
    )
)
"""Of each kind of way once; all of them go through the rule model in the property tests."""


@pytest.fixture(scope="module")
def node() -> Iterator[WiredNode]:
    with wired(all_wires()) as made:
        yield made


@pytest.fixture(scope="module")
def nft() -> Nftables:
    return Nftables(quiet=0.0)


def test_every_kind_of_match(node: WiredNode, nft: Nftables) -> None:
    verdicts = Counter[bool]()
    for number, world in enumerate(matrix()):
        node.call(partial(nft.apply, rules_of(kube_book_of(world))))
        for packet in PACKETS:
            wanted = meant(world.allows, packet)
            assert node.reaches(packet) is wanted, (number, packet)
            verdicts[wanted] += 1
    assert min(verdicts[True], verdicts[False]) > 300


@settings(
    deadline=None,
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(kube_worlds(), st.lists(packets(), min_size=15, max_size=15))
def test_the_kernel_decides_as_kubernetes_means(
    node: WiredNode, nft: Nftables, world: KubeMeaning, some: list[Packet]
) -> None:
    some = [one for one in some if local(one.source) is not local(one.destination)]
    assume(some)
    node.call(lambda: nft.apply(rules_of(kube_book_of(world))))
    for packet in some:
        assert node.reaches(packet) is meant(world.allows, packet), packet
