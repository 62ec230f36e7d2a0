"""The stages at which traffic of the node itself, and through it, is judged. Pure.

Each stage is asked in a base chain of its own (`host_rules.py`), where to accept a packet ends
that stage and no other. In the order in which an incoming packet meets them:

* `UNTRACKED_IN`: before conntrack. What is allowed is kept from it; what nobody speaks of goes on.
* `PRE_DNAT`: before the destination is translated. What nobody speaks of goes on.
* `IN`, to the node itself: policies, profiles, and nothing else gets in.
* `FORWARD_IN`, through it: the policies that apply on forward, if there are any.

Allowed by one of the first two, a packet is not judged again by the last two. No mark says so:
those ask once more. An untracked packet is as it was; of another the connection remembers the
destination it had (`WAS_ALLOWED`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

from felix_shim.rules import (
    ACCEPT,
    DROP,
    Chain,
    Goto,
    InNets,
    InSet,
    IsProtocol,
    IsVersion,
    Match,
    OnPort,
    Plain,
    Rule,
    Side,
    Verdict,
)
from libtortie.model.policy import WITH_PORTS, Policy

UNTRACKED = "untracked"
"""The chain that keeps packets from conntrack."""


class HostStage(StrEnum):
    """See the module, and `policy_order.Stage` for what each says."""

    IN = "hi"
    OUT = "he"
    FORWARD_IN = "fi"
    FORWARD_OUT = "fe"
    UNTRACKED_IN = "ui"
    UNTRACKED_OUT = "ue"
    PRE_DNAT = "di"
    WAS_ALLOWED = "oi"

    @property
    def ingress(self) -> bool:
        """Whether the policies' ingress rules are asked; else their egress rules."""
        return self not in (HostStage.OUT, HostStage.FORWARD_OUT, HostStage.UNTRACKED_OUT)

    @property
    def allow(self) -> Verdict:
        """What becomes of a packet that is allowed."""
        return Goto(UNTRACKED) if self in _BEFORE_CONNTRACK else Plain.ACCEPT

    @property
    def end(self) -> Chain:
        """What becomes of a packet about which nobody has said anything, of any tier."""
        if self in _TO_OR_FROM_NODE:
            return (DROP,)
        return (ACCEPT,) if self in FORWARDED else ()

    @property
    def tiers_deny(self) -> bool:
        """Whether a tier has the last word about a packet that none of its policies decides."""
        return self in _TO_OR_FROM_NODE or self in FORWARDED

    @property
    def has_profiles(self) -> bool:
        """Whether profiles are asked behind the policies."""
        return self in _TO_OR_FROM_NODE

    def takes(self, policy: Policy) -> bool:
        """Whether a policy is asked here."""
        if policy.untracked:
            return self in _BEFORE_CONNTRACK
        if policy.pre_dnat:
            return self in _BEFORE_DNAT
        return self in _TO_OR_FROM_NODE or (self in FORWARDED and policy.forwarded)

    def fitted(self, chain: Chain) -> Chain:
        """Rules as they have to be looked at here."""
        return by_original(chain) if self is HostStage.WAS_ALLOWED else chain


_TO_OR_FROM_NODE = frozenset({HostStage.IN, HostStage.OUT})
FORWARDED = frozenset({HostStage.FORWARD_IN, HostStage.FORWARD_OUT})
_BEFORE_CONNTRACK = frozenset({HostStage.UNTRACKED_IN, HostStage.UNTRACKED_OUT})
_BEFORE_DNAT = frozenset({HostStage.PRE_DNAT, HostStage.WAS_ALLOWED})


def by_original(chain: Chain) -> Chain:
    """The same rules, about the destination that a connection's first packet came with."""
    return tuple(
        Rule(tuple(map(_original, matches)), rule.verdict)
        for rule in chain
        for matches in _by_protocol(rule.matches)
    )


def _original(match: Match) -> Match:
    if isinstance(match, InNets | InSet | OnPort) and match.side is Side.DESTINATION:
        return replace(match, side=Side.ORIGINAL)
    return match


def _by_protocol(matches: tuple[Match, ...]) -> Iterator[tuple[Match, ...]]:
    """Matches of named destination ports need a protocol before them (`Side.ORIGINAL`): one
    conjunction for each that has ports, and one of all others, which have no such port."""
    named = [
        match
        for match in matches
        if isinstance(match, InSet) and match.key.has_ports and match.side is Side.DESTINATION
    ]
    if not named or any(isinstance(one, IsProtocol) and not one.negated for one in matches):
        yield matches
        return
    for protocol in sorted(WITH_PORTS):
        yield (IsProtocol(protocol), *matches)
    if all(match.negated for match in named):
        others = (IsProtocol(protocol, negated=True) for protocol in sorted(WITH_PORTS))
        yield (*others, *(_without_ports(match) for match in matches))


def _without_ports(match: Match) -> Match:
    """What is left of "none of these named ports" for a packet that has none: the set's family."""
    if isinstance(match, InSet) and match.key.has_ports and match.negated:
        return IsVersion(match.key.version) if match.side is Side.DESTINATION else match
    return match
