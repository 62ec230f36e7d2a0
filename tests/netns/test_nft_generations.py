"""A packet that is under way while rules change, and change again, meets one state of them.

nf_tables keeps two generations of a chain's rules: a packet that outlives two commits reads, where
it jumps, those of the second. Here packets are slow: they are compared with a hundred thousand
rules before they come to the chain that decides, while changes follow each other at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.host_order import HostStage
from felix_shim.host_rules import HOST_CHAINS
from felix_shim.policy import NODE_CHAINS, PolicySet
from felix_shim.rules import ACCEPT, DROP, Chain, Goto, IsProtocol, Jump, OnPort, Rule, Side
from libtortie.linux.settled import Settled
from libtortie.model.policy import PortRange
from tests.fakes.datagram_probe import inside, probe, two_spaces

pytestmark = pytest.mark.root

UDP, SCTP, PORT = 17, 132, 7801
WAYS = "abc"
AT_LEAST, CHANGES = 300, 1000
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
