"""What the node's own traffic meets: chains asked by the base chains of `nftables_text.py`. Pure.

Only links that a host endpoint is about are policed, `lo` and workloads' never as part of `*`.
A connection that was let through goes on. Before anybody's policy is asked stand the failsafe
ports and what IPv6 cannot do without (neighbour discovery, multicast listener reports): no policy
can lock anybody out of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from felix_shim.failsafe import Failsafe, failsafe_chains
from felix_shim.host_order import UNTRACKED, HostStage, by_original
from felix_shim.rules import (
    ACCEPT,
    DROP,
    Chain,
    ConnState,
    Goto,
    HasState,
    Jump,
    Match,
    OnLink,
    Plain,
    Rule,
    Way,
)
from libtortie.model.ipam import IPAddress
from libtortie.model.policy import ALL_LINKS, HostEnd

KNOWN = Rule((HasState((ConnState.ESTABLISHED, ConnState.RELATED)),), Plain.ACCEPT)
LOOPBACK = "lo"
GO_ON = "go-on"
"""An empty chain: what goes to it goes on behind the last jump."""
HOST_CHAINS = {
    HostStage.UNTRACKED_IN: "host-untracked-in",
    HostStage.UNTRACKED_OUT: "host-untracked-out",
    HostStage.PRE_DNAT: "host-pre-dnat",
    HostStage.IN: "host-in",
    HostStage.OUT: "host-out",
    HostStage.FORWARD_IN: "host-forward-in",
    HostStage.FORWARD_OUT: "host-forward-out",
}
"""The chain that each stage's base chain asks; empty where nothing is policed."""
_FAILSAFE = {
    HostStage.UNTRACKED_IN: "failsafe-in-raw",
    HostStage.UNTRACKED_OUT: "failsafe-out-raw",
    HostStage.PRE_DNAT: "failsafe-in",
    HostStage.IN: "failsafe-in",
    HostStage.OUT: "failsafe-out",
}
_AGAIN: dict[HostStage, tuple[HostStage, ...]] = {
    HostStage.PRE_DNAT: (HostStage.UNTRACKED_IN,),
    HostStage.IN: (HostStage.UNTRACKED_IN, HostStage.WAS_ALLOWED),
    HostStage.FORWARD_IN: (HostStage.UNTRACKED_IN, HostStage.WAS_ALLOWED),
    HostStage.OUT: (HostStage.UNTRACKED_OUT,),
}
"""What an earlier stage allowed is not judged again."""
_ENDING = frozenset({HostStage.IN, HostStage.OUT, HostStage.FORWARD_IN, HostStage.FORWARD_OUT})


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A host endpoint, and the first chain of its course at each stage where it has one.

    `closed`: a policy that cannot be obeyed selects it, so nothing new comes in or out but by
    failsafe; `forward_closed`: nor goes through it.
    """

    end: HostEnd
    courses: Mapping[HostStage, str] = field(default_factory=lambda: MappingProxyType({}))
    closed: bool = False
    forward_closed: bool = False


def host_chains(placed: Mapping[str, HostPlan], failsafe: Failsafe) -> dict[str, Chain]:
    """All chains, those of nobody's included; `placed` is by link, or `*` for all others."""
    chains: dict[str, Chain] = dict.fromkeys(HOST_CHAINS.values(), ())
    if not placed:
        return chains
    used = {stage for plan in placed.values() for stage in plan.courses}
    used |= _closing(placed.values())
    for stage in HOST_CHAINS.keys() & used:
        chains[HOST_CHAINS[stage]] = tuple(_stage(stage, placed))
    if used & {HostStage.UNTRACKED_IN, HostStage.UNTRACKED_OUT}:
        chains[UNTRACKED] = (Rule((), Plain.NOTRACK), ACCEPT)
    chains |= failsafe_chains(failsafe)
    for course in {plan.courses.get(HostStage.WAS_ALLOWED, "") for plan in placed.values()} - {""}:
        chains[_was_allowed(course)] = (*_spared(chains["failsafe-in"]), Rule((), Goto(course)))
        chains[GO_ON] = ()
    return chains


def placed_on(
    plans: Iterable[HostPlan], addresses: Mapping[str, frozenset[IPAddress]]
) -> dict[str, HostPlan]:
    """Which host endpoint is a link's: one that names it, or expects an address that it has.

    Of several the one with the lowest name. `*` is the key of the one for all other links.
    """
    found: dict[str, HostPlan] = {}
    for plan in sorted(plans, key=lambda one: one.end.name):
        for link in _links(plan.end, addresses):
            found.setdefault(link, plan)
    return found


def _was_allowed(course: str) -> str:
    """The chain that asks a course of `WAS_ALLOWED` about packets that were judged before DNAT."""
    return f"was-{course}"


def _spared(failsafe: Chain) -> Chain:
    """Packets that came to a failsafe port were not judged before DNAT, so nothing allowed them."""
    return by_original(tuple(Rule(rule.matches, Goto(GO_ON)) for rule in failsafe))


def _links(end: HostEnd, addresses: Mapping[str, frozenset[IPAddress]]) -> Iterator[str]:
    if end.link:
        yield end.link
        return
    for link, has in addresses.items():
        if link != LOOPBACK and not has.isdisjoint(end.expected):
            yield link


def _closing(plans: Iterable[HostPlan]) -> set[HostStage]:
    """Stages at which a closed host endpoint lets nothing pass."""
    stages: set[HostStage] = set()
    for plan in plans:
        stages |= {HostStage.IN, HostStage.OUT} if plan.closed else set()
        if plan.forward_closed:
            stages |= {HostStage.FORWARD_IN, HostStage.FORWARD_OUT}
    return stages


def _stage(stage: HostStage, placed: Mapping[str, HostPlan]) -> Iterator[Rule]:
    if stage not in (HostStage.UNTRACKED_IN, HostStage.UNTRACKED_OUT):
        yield KNOWN
    if stage in _FAILSAFE:
        yield Rule((), Jump(_FAILSAFE[stage]))
    way = Way.IN if stage.ingress else Way.OUT
    for link in sorted(placed.keys() - {ALL_LINKS}):
        yield from _of_link(stage, (OnLink(way, link),), placed[link])
    if ALL_LINKS in placed:
        yield Rule((OnLink(way, LOOPBACK),), Plain.ACCEPT)
        yield from _of_link(stage, (), placed[ALL_LINKS])


def _of_link(stage: HostStage, here: tuple[Match, ...], plan: HostPlan) -> Iterator[Rule]:
    """What a link's packets meet at a stage, up to a rule that ends it."""
    forward = stage in (HostStage.FORWARD_IN, HostStage.FORWARD_OUT)
    if (plan.forward_closed if forward else plan.closed) and stage in _ENDING:
        yield Rule(here, DROP.verdict)
        return
    for earlier in _AGAIN.get(stage, ()):
        if earlier not in plan.courses:
            continue
        if earlier is HostStage.WAS_ALLOWED:
            yield Rule(here, Jump(_was_allowed(plan.courses[earlier])))
        else:
            untracked = HasState((ConnState.UNTRACKED,))
            yield Rule((untracked, *here), Jump(plan.courses[earlier]))
    course = plan.courses.get(stage, "")
    if course and stage in _ENDING:  # it decides; but a chain that has just gone is an empty one
        yield Rule(here, Jump(course))
        yield Rule(here, DROP.verdict)
        return
    if course:
        yield Rule(here, Jump(course))
    yield Rule(here, Plain.ACCEPT)
