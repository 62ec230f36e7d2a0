"""Kinds as typed, columns, boxes, utilisation: the pure parts of `tortiectl`."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from ipam.block import assign_ordinal
from ipam.pools import parse_pool
from libtortie.errors import InvalidInput
from libtortie.model.ipam import Block
from libtortie.model.keys import Kind
from tests.fakes.ipam_world import pool
from tortiectl.cli import COMMANDS
from tortiectl.ipam_report import address_lines, borrowed_rows, use_of, use_rows
from tortiectl.kinds import SHORT, names_of, parse_kind
from tortiectl.show_columns import COLUMNS, Column, chosen
from tortiectl.text_tables import boxed, columns


def block(cidr: str, node: str | None, *owners: dict[str, str]) -> Block:
    network = ip_network(cidr)
    size = network.num_addresses
    made = Block(network, node and f"host:{node}", (None,) * size, tuple(range(size)))
    for ordinal, owner in enumerate(owners):
        made = assign_ordinal(made, ordinal, handle_id=f"h{ordinal}", owner=owner)
    return made


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_its_names_and_columns(kind: Kind) -> None:
    for name in (kind.value, kind.value.upper(), kind.plural, *names_of(kind)):
        assert parse_kind(name) is kind
    assert COLUMNS[kind][0]
    assert (
        chosen(kind, wide=True, all_namespaces=False)[: len(COLUMNS[kind][0])] == COLUMNS[kind][0]
    )


def test_no_name_means_two_kinds() -> None:
    names = [name for kind in Kind for name in set(names_of(kind))]
    assert len(names) == len(set(names))
    assert set(SHORT) == set(Kind)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("ipool", "'ipool' is not known; did you mean ippool?"),
        ("Globalnetworkpolicie", "did you mean globalnetworkpolicies?"),
        ("xyzzy", "is not known; known are ippools, ipreservations, "),
    ],
)
def test_a_wrong_kind_is_answered_with_the_right_one(typed: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_kind(typed)
    assert words in str(caught.value)


def test_short_names_of_calicoctl_and_kubectl() -> None:
    for name, kind in {
        "pools": Kind.IP_POOL,
        "policies": Kind.NETWORK_POLICY,
        "np": Kind.NETWORK_POLICY,
        "gnps": Kind.GLOBAL_NETWORK_POLICY,
        "weps": Kind.WORKLOAD_ENDPOINT,
        "heps": Kind.HOST_ENDPOINT,
        "ipamconfigs": Kind.IPAM_CONFIGURATION,
    }.items():
        assert parse_kind(name) is kind


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (100.0, "100"),
        (10.5, "10.5"),
        (["a", 1], "a,1"),
        ({"b": 1, "a": "x"}, "a=x,b=1"),
        (None, "-"),
        (0, "0"),
    ],
)
def test_cells(value: Any, text: str) -> None:
    assert Column("H", "spec.x", "-").cell({"spec": {"x": value}}) == text
    assert Column("H", "spec.x.y", "-").cell({"spec": {"x": 1}}) == "-"


def test_columns_are_aligned_without_trailing_spaces() -> None:
    assert columns(["NAME", "CIDR"], [["a", "10.0.0.0/8"], ["long-name", ""]]) == (
        "NAME        CIDR\na           10.0.0.0/8\nlong-name"
    )


def test_a_box() -> None:
    assert boxed(["A", "NUMBER"], [["x", "5"], ["long", "5 (8%)"]]) == (
        "+------+--------+\n"
        "|  A   | NUMBER |\n"
        "+------+--------+\n"
        "| x    |      5 |\n"
        "| long | 5 (8%) |\n"
        "+------+--------+"
    )
    assert boxed(["A"], []) == "+---+\n| A |\n+---+"


POD = {"namespace": "shop", "pod": "web", "node": "n1"}


def test_use_counts_each_address_once() -> None:
    made = block("10.0.0.0/30", "n1", POD, POD)
    reserved = [ip_network("10.0.0.1/32"), ip_network("10.0.0.0/31"), ip_network("10.0.0.3/32")]
    use = use_of(ip_network("10.0.0.0/30"), [made], reserved)
    assert (use.total, use.used, use.reserved) == (4, 2, 1)
    assert use.cells() == ("4", "2 (50%)", "1 (25%)", "1 (25%)")
    everything = use_of(ip_network("10.0.0.0/30"), [made], [ip_network("10.0.0.0/8")])
    assert (everything.used, everything.reserved) == (2, 2)
    assert use_of(ip_network("10.0.0.0/30"), [], [ip_network("fd00::/8")]).reserved == 0


def test_numbers_are_calicoctls() -> None:
    assert use_of(ip_network("10.0.0.0/12"), [], []).cells()[0] == "1.0486e+06"
    made = block("10.0.0.0/26", "n1", *[POD] * 5)
    assert use_of(made.cidr, [made], []).cells()[1] == "5 (8%)"


def test_pools_with_their_blocks_and_blocks_of_no_pool() -> None:
    pools = [parse_pool(pool("b", "10.1.0.0/24")), parse_pool(pool("a", "10.0.0.0/24"))]
    blocks = [block("10.9.0.0/30", "n1"), block("10.0.0.64/26", "n1"), block("fd00::/126", None)]
    rows = use_rows(pools, blocks, [], show_blocks=True)
    assert [row[:2] for row in rows] == [
        ("IP Pool", "10.0.0.0/24"),
        ("Block", "10.0.0.64/26"),
        ("IP Pool", "10.1.0.0/24"),
        ("Block", "10.9.0.0/30"),
        ("Block", "fd00::/126"),
    ]
    assert len(use_rows(pools, blocks, [], show_blocks=False)) == 2


def test_borrowed_addresses() -> None:
    vm = {"namespace": "shop", "vmi-name": "db", "pod": "virt-launcher-db-x", "node": "n2"}
    tunnel = {"node": "n3", "type": "vxlanTunnelAddress"}
    made = block("10.0.0.0/29", "n1", POD, vm, tunnel, {**POD, "node": "n4"}, {"note": "x"})
    assert borrowed_rows([made, block("10.0.1.0/30", None, vm)]) == [
        ("10.0.0.1", "n2", "10.0.0.0/29", "n1", "vmi", "shop/db"),
        ("10.0.0.2", "n3", "10.0.0.0/29", "n1", "vxlanTunnelAddress", "h2"),
        ("10.0.0.3", "n4", "10.0.0.0/29", "n1", "pod", "shop/web"),
    ]


def test_an_address_and_its_owners() -> None:
    made = block("10.0.0.0/30", "n1", POD)
    assert [*address_lines(ip_address("10.0.0.0"), made.attribute(0))] == [
        "IP 10.0.0.0 is in use",
        "Handle ID: h0",
        "Active Owner Attributes:",
        "  namespace: shop",
        "  node: n1",
        "  pod: web",
        "Alternate Owner Attributes:",
    ]
    assert [*address_lines(ip_address("10.0.0.1"), None)] == ["10.0.0.1 is not assigned"]


def test_the_help_names_commands_in_the_order_of_their_names() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)
