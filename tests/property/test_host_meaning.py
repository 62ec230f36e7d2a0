"""The rules of the node itself decide as the policies mean, at every stage."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.host_meaning import HostMeaning
from tests.fakes.host_worlds import (
    BEYOND,
    NODE_ADDRESSES,
    OTHER,
    OUTSIDE,
    UP,
    between,
    host_rules,
    host_worlds,
)
from tests.fakes.packets import Packet
from tests.fakes.policy_worlds import PODS
from tests.fakes.rule_machine import RuleMachine

MANY = settings(deadline=None, max_examples=300)
POD_ADDRESSES = tuple(address for pod in PODS for address in pod.addresses)
TRANSLATED = {4: ip_address("10.65.0.2"), 6: ip_address("fd00:65::2")}


def machine_of(world: HostMeaning) -> RuleMachine:
    found = host_rules(world)
    return RuleMachine(found.chains, found.sets, frozenset({"allowed-to", "allowed-from"}))


def passes(machine: RuleMachine, packet: Packet, *chains: str) -> bool:
    return all(machine.passes(chain, packet) for chain in chains)


@MANY
@given(host_worlds(), st.lists(between(OUTSIDE, NODE_ADDRESSES), min_size=8, max_size=20))
def test_what_gets_to_the_node(world: HostMeaning, some: list[Packet]) -> None:
    machine = machine_of(world)
    for link in (UP, OTHER, "lo"):
        for packet in (replace(one, link_in=link) for one in some):
            meant = link == "lo" or world.enters(link, packet)
            chains = "host-untracked-in", "host-pre-dnat", "host-in"
            assert passes(machine, packet, *chains) is meant, (link, packet)


@MANY
@given(host_worlds(), st.lists(between(NODE_ADDRESSES, OUTSIDE), min_size=8, max_size=20))
def test_what_leaves_the_node(world: HostMeaning, some: list[Packet]) -> None:
    machine = machine_of(world)
    for link in (UP, OTHER, "lo"):
        for packet in (replace(one, link_out=link) for one in some):
            meant = link == "lo" or world.leaves(link, packet)
            assert passes(machine, packet, "host-untracked-out", "host-out") is meant, packet


@MANY
@given(
    host_worlds(), st.lists(between(OUTSIDE, (*BEYOND, *POD_ADDRESSES)), min_size=8, max_size=20)
)
def test_what_goes_through_the_node(world: HostMeaning, some: list[Packet]) -> None:
    machine = machine_of(world)
    for one in some:
        out = OTHER if one.destination in BEYOND else "cali1"
        packet = replace(one, link_in=UP, link_out=out)
        meant = world.comes_through(UP, packet) and (
            out != OTHER or world.goes_through(OTHER, packet)
        )
        chains = ["host-untracked-in", "host-pre-dnat", "host-forward-in"]
        chains += ["host-forward-out"] if out == OTHER else []
        assert passes(machine, packet, *chains) is meant, packet


@MANY
@given(host_worlds(), st.lists(between(OUTSIDE, NODE_ADDRESSES), min_size=8, max_size=20))
def test_what_is_translated_behind_the_first_stages(world: HostMeaning, some: list[Packet]) -> None:
    """To a pod, or to another port of the node: what was allowed before is not judged again."""
    machine = machine_of(world)
    for one in some:
        came = replace(one, link_in=UP)
        original = (came.destination, came.destination_port)
        to_pod = TRANSLATED[one.version]
        through = replace(
            came, destination=to_pod, destination_port=80, original=original, link_out="cali1"
        )
        inside = replace(came, destination_port=8080, original=original)
        early = passes(machine, came, "host-untracked-in", "host-pre-dnat")
        if came in machine.untracked:
            continue  # nobody translates it
        met = early and passes(machine, through, "host-forward-in")
        assert met is world.comes_through(UP, through, came), came
        met = early and passes(machine, inside, "host-in")
        assert met is world.enters(UP, inside, came), came
