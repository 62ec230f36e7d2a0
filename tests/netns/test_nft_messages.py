"""Netlink messages against `nft`: what the kernel lists afterwards is the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from felix_shim.drivers.nftables_change import steps
from felix_shim.drivers.nftables_messages import batch
from felix_shim.drivers.nftables_text import FIRST_TAG, render, render_delta
from felix_shim.policy import NODE_CHAINS, PolicySet
from felix_shim.rules import OnPort, Plain, Rule, Side
from libtortie.linux.netns import Netns
from libtortie.linux.nft_batch import NftSocket, read_generation
from libtortie.model.policy import PortRange
from tests.fakes.fresh_names import fresh_name
from tests.fakes.rule_changes import policy_sets

pytestmark = pytest.mark.root

T = TypeVar("T")
OURS, PEER = fresh_name("msg"), fresh_name("nft")
NOTHING = PolicySet()
UNKNOWN_TYPE = " [invalid type]"


def inside(namespace: str, work: Callable[[], T]) -> T:
    return Netns(deadline=120.0).call(f"/run/netns/{namespace}", work)


def nft(namespace: str, *words: str, text: str = "") -> str:
    command = ["ip", "netns", "exec", namespace, "nft", *words]
    done = subprocess.run(command, input=text, text=True, check=False, capture_output=True)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> Iterator[None]:
    try:
        for name in (OURS, PEER):
            subprocess.run(["ip", "netns", "add", name], check=True)
        yield
    finally:
        for name in (OURS, PEER):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def by_messages(before: PolicySet, after: PolicySet) -> None:
    found = batch(steps(before, after, FIRST_TAG), after, FIRST_TAG)

    def send() -> None:
        generation = read_generation()
        after = NftSocket().commit(found.messages, generation)
        assert after == read_generation() == generation + bool(found.messages), "one transaction"

    inside(OURS, send)


def listed(namespace: str) -> list[Any]:
    """What the kernel has, each chain's rules in order, whatever the order of the rest."""
    found = json.loads(nft(namespace, "-j", "list", "ruleset"))["nftables"]
    rules = [comparable(one) for one in found if "rule" in one]
    others = [comparable(one) for one in found if not {"rule", "metainfo"} & one.keys()]
    by_chain = sorted(rules, key=lambda one: (one["rule"]["family"], one["rule"]["chain"]))
    return [*sorted(others, key=json.dumps), *by_chain]


def comparable(value: Any) -> Any:
    """Without handles; nft 1.0.6 does not know what it has put into a set of conntrack's ports."""
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items() if key != "handle"}
    if isinstance(value, str) and value.endswith(UNKNOWN_TYPE):
        return int(value.removesuffix(UNKNOWN_TYPE), 16)
    return [comparable(one) for one in value] if isinstance(value, list) else value


ONE_PORT = (PortRange(80, 80),)
NEITHER_PORT = Rule(
    (
        OnPort(Side.SOURCE, ONE_PORT, negated=True),
        OnPort(Side.DESTINATION, ONE_PORT, negated=True),
    ),
    Plain.ACCEPT,
)
"""nft would make one comparison of two such matches, were they written plainly."""


@settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@example([PolicySet(chains={**NODE_CHAINS, "closed": (NEITHER_PORT,)})])
@given(st.lists(policy_sets(), min_size=1, max_size=3))
def test_the_kernel_lists_the_same_rules_by_messages_and_by_nft(states: list[PolicySet]) -> None:
    for name in (OURS, PEER):
        nft(name, "-f", "-", text=f"flush ruleset\n{render(NOTHING)}")
    empty = listed(PEER)
    assert listed(OURS) == empty
    before = NOTHING
    for after in (*states, NOTHING):
        by_messages(before, after)
        nft(PEER, "-f", "-", text=render_delta(before, after))
        assert listed(OURS) == listed(PEER)
        before = after
    assert listed(OURS) == empty, "nothing is left over"
