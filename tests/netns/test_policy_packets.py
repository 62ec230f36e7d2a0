"""Policies against real packets: what the kernel lets through is what they mean."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from felix_shim.drivers.nftables import Nftables, read_generation
from felix_shim.rules import InNets, Plain, Rule, Side
from tests.fakes.packets import Packet
from tests.fakes.policy_matrix import RULES, matrix_packets, matrix_world
from tests.fakes.policy_meaning import Meaning, NetSet, Written
from tests.fakes.policy_wires import all_wires, local, meant, rules_of
from tests.fakes.policy_worlds import book_of, packets, pointed, worlds
from tests.fakes.wired_pods import WiredNode, wired

pytestmark = pytest.mark.root

TAG = re.compile(r"(?<=[0-9a-z])-[0-9]+(?=\")")

ALL_SETS = Written(
    "all-sets",
    {
        "tier": "first",
        "order": 1,
        "selector": "all()",
        "ingress": [
            {"action": "Log", "source": {"selector": f"app == '{app}'"}} for app in ("far", "web")
        ],
    },
)


def members() -> st.SearchStrategy[tuple[NetSet, ...]]:
    """Members of the sets that `ALL_SETS` looks into."""
    nets = st.sampled_from(
        ["10.9.0.1", "10.9.0.2", "10.9.0.0/24", "10.9.0.0/16", "fd00:9::1", "fd00:9::/64", "::/0"]
    )
    some = st.lists(nets, max_size=4, unique=True).map(tuple)
    pairs = st.tuples(some, some)
    return pairs.map(
        lambda pair: tuple(
            NetSet("", app, found, {"app": app})
            for app, found in zip(("far", "web"), pair, strict=True)
        )
    )


@pytest.fixture(scope="module")
def node() -> Iterator[WiredNode]:
    with wired(all_wires()) as made:
        yield made


@pytest.fixture(scope="module")
def nft() -> Nftables:
    """One for all: each example's rules come about by the difference to those before."""
    return Nftables(quiet=0.0)


def test_every_kind_of_match(node: WiredNode, nft: Nftables) -> None:
    verdicts = Counter[bool]()
    for rule in RULES:
        world = matrix_world(rule)
        node.call(partial(nft.apply, rules_of(book_of(world))))
        for packet in matrix_packets():
            wanted = meant(world.allows, packet)
            assert node.reaches(packet) is wanted, (rule, packet)
            verdicts[wanted] += 1
    assert min(verdicts[True], verdicts[False]) > 500


@settings(
    deadline=None,
    max_examples=40,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.one_of(worlds(), pointed(), pointed()), st.lists(packets(), min_size=15, max_size=15))
def test_the_kernel_decides_as_the_policies_mean(
    node: WiredNode, nft: Nftables, world: Meaning, some: list[Packet]
) -> None:
    some = [one for one in some if local(one.source) is not local(one.destination)]
    assume(some)
    node.call(lambda: nft.apply(rules_of(book_of(world))))
    for packet in some:
        assert node.reaches(packet) is meant(world.allows, packet), packet


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(world=worlds(), more=members())
def test_differences_lead_to_what_the_rules_whole_would_be(
    node: WiredNode, nft: Nftables, world: Meaning, more: tuple[NetSet, ...]
) -> None:
    """Also in sets that stay while their elements, hosts and networks, come and go."""
    world = replace(world, netsets=(*world.netsets, *more), policies=(*world.policies, ALL_SETS))
    node.call(lambda: nft.apply(rules_of(book_of(world))))
    by_differences = listing(node)
    node.call(lambda: Nftables(quiet=0.0).apply(rules_of(book_of(world))))
    assert by_differences == listing(node)
    node.call(
        lambda: nft.apply(rules_of(book_of(world)))
    )  # notices that somebody replaced its tables


def test_the_kernel_says_whose_rules_it_refuses(node: WiredNode, nft: Nftables) -> None:
    found = book_of(matrix_world(RULES[0])).rules()
    before = node.call(read_generation)
    assert node.call(lambda: nft.check({}, {})) == ""
    own = {name: chain for name, chain in found.chains.items() if name.startswith("pi-")}
    assert own
    assert node.call(lambda: nft.check(own, found.sets)) == ""
    wrong = {"pi-wrong": (Rule((InNets(Side.SOURCE, 4, ("fd00::/64",)),), Plain.DROP),)}
    assert "nft: " in str(node.call(lambda: nft.check(own | wrong, found.sets)))
    assert node.call(read_generation) == before, "nothing was committed"


def listing(node: WiredNode) -> list[str]:
    """Our table's contents in order, names without their tags."""

    def read() -> str:
        command = ["nft", "-j", "-s", "list", "table", "inet", "tortie"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    objects = json.loads(TAG.sub("", str(node.call(read))))["nftables"]
    rules = [one["rule"] for one in objects if "rule" in one]
    others = [one for one in objects if "rule" not in one and "metainfo" not in one]
    by_chain = sorted(rules, key=lambda rule: str(rule["chain"]))  # within one, the order counts
    return [
        *sorted(json.dumps(plain(one)) for one in others),
        *(json.dumps(plain(one)) for one in by_chain),
    ]


def plain(value: Any) -> Any:
    """Without handles, and what is a set in order."""
    if isinstance(value, dict):
        found = {key: plain(one) for key, one in value.items() if key != "handle"}
        for key in ("elem", "set"):
            if isinstance(found.get(key), list):
                found[key] = sorted(found[key], key=json.dumps)
        return found
    return [plain(one) for one in value] if isinstance(value, list) else value
