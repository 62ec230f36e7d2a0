"""How much a commit may write: what is told without measuring holds for the longest names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_network

import pytest

from ipam.block import new_block
from ipam.ownership import pod_owner
from ipam.room import FEW, FULL, MOST_BLOCKS, MOST_BYTES, Portion, is_heavy, is_light, size_of
from libtortie.model.ipam import Attribute, Block, Owner
from tests.fakes.ipam_world import START
from tests.fakes.large_ipam import REQUEST

LABEL, NAME, ID, UID = "n" * 63, "n" * 253, "c" * 64, "u" * 36
LAST = 2**64 - 1


def longest(pod: int) -> Owner:
    """A launcher pod of which every name is as long as Kubernetes takes."""
    return pod_owner(
        namespace=LABEL,
        pod=f"{NAME[:-5]}{pod:05}",
        node=NAME,
        timestamp=START.replace(microsecond=123_456),
        container_id=ID,
        pod_uid=UID,
        vmi_name=NAME,
        vmi_uid=UID,
        vm_uid=UID,
        vmim_uid=UID,
    )


def held(text: str, count: int) -> Block:
    """A block with addresses of so many VMs that migrate; the last of them has the rest."""
    empty = new_block(ip_network(text), node=NAME, now=START)
    size = len(empty.allocations)
    attributes = tuple(
        Attribute(handle_id="h" * 123 + f"{n:05}", active=longest(n), alternate=longest(n + 50_000))
        for n in range(count)
    )
    return replace(
        empty,
        allocations=(*range(count), *[count - 1] * (size - count)),
        unallocated=(),
        attributes=attributes,
        sequence_number=LAST,
        sequence_numbers=dict.fromkeys(range(size), LAST),
    )


def test_what_is_light_is_short_with_the_longest_names_in_the_largest_blocks() -> None:
    pair = [held("10.0.0.0/20", FEW // 2), held("fd00::/116", FEW - FEW // 2)]
    assert is_light(pair)
    assert sum(map(size_of, pair)) < MOST_BYTES
    assert not is_light([*pair, held("10.0.0.0/30", 1)])


def filled(attribute: Callable[[int], Attribute]) -> Block:
    """A block of 4,096 addresses, as full as it is given."""
    empty = new_block(ip_network("10.0.0.0/20"), node="n1", now=START)
    low, high = 0, len(empty.allocations)
    while low + 1 < high:
        count = (low + high) // 2
        block = with_attributes(empty, [attribute(n) for n in range(count)])
        low, high = (low, count) if is_heavy(block, ()) else (count, high)
    return with_attributes(empty, [attribute(n) for n in range(low + 1)])


def with_attributes(empty: Block, attributes: Sequence[Attribute]) -> Block:
    rest = [None] * (len(empty.allocations) - len(attributes))
    return replace(
        empty,
        allocations=(*range(len(attributes)), *rest),
        unallocated=tuple(range(len(attributes), len(empty.allocations))),
        attributes=tuple(attributes),
    )


def short(pod: int) -> Owner:
    return pod_owner(
        namespace="shop",
        pod=f"virt-launcher-db-{pod:05}",
        node=f"node-{pod:04}",
        timestamp=START,
        container_id=ID,
        pod_uid=UID,
        vmi_name=f"db-{pod:05}",
        vmi_uid=UID,
        vm_uid=UID,
        vmim_uid=UID,
    )


@pytest.mark.parametrize("owner", [short, longest])
def test_all_vms_of_a_block_that_is_full_may_migrate_at_once(owner: Callable[[int], Owner]) -> None:
    full = filled(lambda n: Attribute(handle_id=f"k8s-pod-network.vmi.{n:05}", active=owner(n)))
    moving = [replace(one, alternate=one.active) for one in full.attributes]
    assert MOST_BYTES < size_of(with_attributes(full, moving)) < REQUEST - 60_000


def test_nothing_is_kept_free_for_second_owners_of_pods_or_of_those_that_have_one() -> None:
    def pod(number: int) -> Attribute:
        plain = {key: value for key, value in longest(number).items() if key != "vmi-name"}
        return Attribute(handle_id=f"k8s-pod-network.{number:064}", active=plain)

    def moving(number: int) -> Attribute:
        return replace(pod(number), active=longest(number), alternate=longest(number))

    assert size_of(filled(pod)) > FULL - 3000
    assert size_of(filled(moving)) > FULL - 6000


@pytest.mark.parametrize(
    ("text", "count", "most"), [("10.0.0.0/32", 1, MOST_BLOCKS), ("10.0.0.0/26", 64, None)]
)
def test_a_portion_is_as_much_as_fits_and_never_nothing(
    text: str, count: int, most: int | None
) -> None:
    block, portion, taken = held(text, count), Portion(), 0
    while portion.takes(block):
        taken += 1
    assert taken == (most or MOST_BYTES // size_of(block))
    assert not portion.takes(block)


def test_one_block_that_is_too_long_by_itself_is_taken_and_no_other() -> None:
    portion = Portion()
    assert portion.takes(held("10.0.0.0/22", 1024))
    assert not portion.takes(held("10.0.4.0/32", 1))
