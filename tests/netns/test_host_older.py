"""Connections of failsafe ports that are older than the node's rules go on under them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from felix_shim.drivers.nftables import Nftables
from felix_shim.failsafe import Failsafe
from felix_shim.host_order import HostStage
from felix_shim.host_rules import HostPlan, host_chains, placed_on
from felix_shim.policy import NODE_CHAINS, PolicySet
from felix_shim.rules import DROP
from libtortie.model.policy import ALL_LINKS, HostEnd
from tests.fakes.datagram_probe import FAR, NODE, inside, two_spaces

pytestmark = pytest.mark.root

BGP, OTHER = 179, 8080
_LOOSE = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
PATIENCE, DENIED_SECONDS = 60.0, 2.0


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    with two_spaces() as (here, far):
        inside(here, partial(_LOOSE.write_text, "0"))
        yield here, far


def connection(here: str, far: str, port: int, *, called: bool) -> tuple[socket.socket, ...]:
    """A connection that the node, or who is far, has opened: the node's end, and the other."""
    caller, callee = (far, here) if called else (here, far)
    address = NODE if called else FAR
    ear = inside(callee, lambda: socket.create_server((address, port)))
    with ear:
        one = inside(caller, lambda: socket.create_connection((address, port), PATIENCE))
        other, _ = ear.accept()
    other.settimeout(PATIENCE)
    return (other, one) if called else (one, other)


def deny_all() -> PolicySet:
    """Nothing passes a link of the node but what is failsafe."""
    courses = {HostStage.IN: "nothing", HostStage.OUT: "nothing"}
    plans = (HostPlan(HostEnd("all", "n", ALL_LINKS), courses),)
    chains = {**NODE_CHAINS, **host_chains(placed_on(plans, {}), Failsafe()), "nothing": (DROP,)}
    return PolicySet(chains=chains)


def passes(one: socket.socket, other: socket.socket, patience: float) -> bool:
    other.settimeout(patience)
    one.sendall(b"x")
    try:
        return other.recv(1) == b"x"
    except TimeoutError:
        return False


@pytest.mark.parametrize("called", [True, False])
def test_a_bgp_session_from_before_the_rules_goes_on(spaces: tuple[str, str], called: bool) -> None:
    """The connection table does not know it, and does not learn of it in its middle."""
    ours, theirs = connection(*spaces, BGP, called=called)
    stranger, strange = connection(*spaces, OTHER, called=called)
    with ours, theirs, stranger, strange:
        inside(spaces[0], lambda: Nftables().apply(deny_all()))
        for _ in range(2):
            assert passes(ours, theirs, PATIENCE)
            assert passes(theirs, ours, PATIENCE)
        assert not passes(strange, stranger, DENIED_SECONDS)
        assert not passes(stranger, strange, DENIED_SECONDS)
