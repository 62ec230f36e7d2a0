"""A packet that is under way while rules change, and change again, meets one state of them.

nf_tables keeps two generations of a chain's rules: a packet that outlives two commits reads, where
it jumps, those of the second. Here packets are slow: they are compared with a hundred thousand
rules before they come to the chain that decides, while changes follow each other at once.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.drivers.nftables_endpoint import chain_names
from felix_shim.failsafe import Failsafe
from felix_shim.host_order import HostStage
from felix_shim.host_rules import HOST_CHAINS, HostPlan, host_chains, placed_on
from felix_shim.policy import NODE_CHAINS, PolicySet
from felix_shim.policy_compile import in_nets, on_port, sets_of
from felix_shim.policy_sets import Elements, literal
from felix_shim.rules import (
    ACCEPT,
    DROP,
    Chain,
    Goto,
    InSet,
    IsProtocol,
    Jump,
    Match,
    OnPort,
    Rule,
    SetKey,
    SetKind,
    Side,
)
from libtortie.linux.settled import Settled
from libtortie.model.policy import HostEnd, PortRange
from tests.fakes.datagram_probe import FAR, inside, probe, two_spaces
from tests.fakes.node_process import until
from tests.fakes.rule_changes import ENDPOINTS

pytestmark = pytest.mark.root

UDP, SCTP, PORT = 17, 132, 7801
WAYS = "abc"
AT_LEAST, CHANGES = 300, 1000
LIST_CHANGES = 60
SELECTED = SetKey(SetKind.ADDRESSES, 4, "app == 'far'")
_NO_MATCH = Rule((IsProtocol(SCTP),), DROP.verdict)
_SLOW: dict[str, Chain] = {
    "slow": tuple(Rule((), Jump("slower")) for _ in range(100)),
    "slower": (_NO_MATCH,) * 1000,
}


def state(way: str) -> PolicySet:
    """The port is open, by one of three ways; the other two are shut, and lead nowhere."""
    ours = (IsProtocol(UDP), OnPort(Side.DESTINATION, (PortRange(PORT, PORT),)))
    chains: dict[str, Chain] = {
        **NODE_CHAINS,
        **_SLOW,
        HOST_CHAINS[HostStage.IN]: (Rule(ours, Goto(f"path-{way}")),),
    }
    for one in WAYS:
        chains[f"path-{one}"] = (Rule((), Jump("slow")), Rule((), Goto(f"end-{one}")))
        chains[f"end-{one}"] = (ACCEPT if one == way else DROP,)
    return PolicySet(chains=chains)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    with two_spaces() as made:
        yield made


def lost(spaces: tuple[str, str], driver: Nftables) -> int:
    """How many of the datagrams are lost while the way changes, and changes."""
    here, far = spaces
    inside(here, partial(driver.apply, state("a")))
    asked = probe(here, far, PORT)
    with asked.running():
        for number, way in enumerate(itertools.cycle(WAYS)):
            if number > CHANGES and asked.sent > AT_LEAST:
                break
            inside(here, partial(driver.apply, state(way)))
    return asked.sent - asked.received


def test_packets_under_way_never_meet_rules_of_two_states(spaces: tuple[str, str]) -> None:
    assert lost(spaces, Nftables()) == 0


def test_without_waiting_for_them_they_would(
    spaces: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above shows is no chance."""
    driver = Nftables()
    monkeypatch.setattr(driver, "_settled", Settled(wait=lambda: None))
    assert lost(spaces, driver) > 0


LISTS: dict[str, tuple[Match, ...]] = {
    "networks": (IsProtocol(UDP), in_nets(Side.SOURCE, 4, (f"{FAR}/32", "10.9.0.0/16"))),
    "networks that are not": (
        IsProtocol(UDP),
        in_nets(Side.SOURCE, 4, ("10.8.0.0/16", "10.9.0.0/16"), negated=True),
    ),
    "ports": (
        IsProtocol(UDP),
        on_port(Side.DESTINATION, (PortRange(PORT, PORT), PortRange(9000, 9009))),
    ),
    "selected": (IsProtocol(UDP), InSet(Side.SOURCE, SELECTED)),
}


def listed(matches: tuple[Match, ...], number: int) -> PolicySet:
    """The port is open by these matches, unless the number is even: then without them."""
    found = matches if number % 2 else (IsProtocol(UDP),)
    ours = (Rule(found, ACCEPT.verdict), Rule((IsProtocol(UDP),), DROP.verdict))
    chains: dict[str, Chain] = {**NODE_CHAINS, HOST_CHAINS[HostStage.IN]: (Rule((), Goto("ways")),)}
    chains["ways"] = ours
    chains |= {f"more-{one}": (_NO_MATCH,) * (300 + number % 2) for one in WAYS}
    known = {SELECTED: Elements.of((f"{FAR}/32", "10.9.0.0/16"), interval=True)}
    sets = {
        key: literal(key) if key.kind.literal else known[key]
        for chain in chains.values()
        for key in sets_of(chain)
    }
    return PolicySet(chains=chains, sets=sets)


@pytest.mark.parametrize("way", ["messages", "whole"])
@pytest.mark.parametrize("name", LISTS)
def test_what_new_rules_look_into_is_filled_before_they_are_in_force(
    spaces: tuple[str, str], name: str, way: str
) -> None:
    """The kernel finds what a transaction adds to a set of networks only when it is over: in so
    large a transaction, one packet in 30 would find the set empty."""
    here, far = spaces
    driver = Nftables()
    inside(here, partial(driver.apply, listed(LISTS[name], 0)))
    asked = probe(here, far, PORT)
    with asked.running():
        for number in itertools.count(1):
            if number > LIST_CHANGES and asked.sent > AT_LEAST:
                break
            if way == "whole":
                driver = Nftables()
            inside(here, partial(driver.apply, listed(LISTS[name], number)))
    assert asked.received == asked.sent


def test_a_chain_that_is_not_there_yet_or_no_more_lets_nothing_pass(
    spaces: tuple[str, str],
) -> None:
    """As a packet sees it that looks up where to go while the chain comes, or goes."""
    here, far = spaces
    plans = (HostPlan(HostEnd("up", "n", "up0"), {HostStage.IN: "end-a"}),)
    chains = {**NODE_CHAINS, **host_chains(placed_on(plans, {}), Failsafe()), "end-a": (ACCEPT,)}
    driver = Nftables()
    inside(here, partial(driver.apply, PolicySet(ENDPOINTS[:1], chains=chains)))
    asked = probe(here, far, PORT)
    with asked.running():
        until("it is open", lambda: asked.received > 0)
    for chain in ("end-a", *chain_names(ENDPOINTS[0])):
        subprocess.run(
            ["ip", "netns", "exec", here, "nft", "flush", "chain", "inet", "tortie", chain],
            check=True,
        )
    again = probe(here, far, PORT)
    with again.running():
        until("enough is sent", lambda: again.sent > AT_LEAST)
    assert again.received == 0
