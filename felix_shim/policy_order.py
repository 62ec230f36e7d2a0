"""In which order an endpoint's policies are asked, and the chains that ask them. Pure.

A *course* is what an endpoint's packets of one direction go through: its policies by tier, then
its profiles. Endpoints with the same course share its chains: one for each tier, in which a
policy's own chain is jumped into. A policy that can pass a packet to the next tier depends on
what that is, so its rules stand in the tier's chain itself; thus no chain is ever jumped into
from another policy's, however many tiers there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from felix_shim.policy_compile import LOG_PREFIX, Verdicts, compile_rules
from felix_shim.rules import DROP, Chain, Goto, Jump, Rule, Verdict, digest
from libtortie.model.policy import (
    ADMIN_TIER,
    BASELINE_TIER,
    DEFAULT_TIER,
    V1ALPHA1_ADMIN_TIER,
    V1ALPHA1_BASELINE_TIER,
    Action,
    Policy,
    PolicyId,
    PolicyRule,
    TierRank,
)

CLOSED = "closed"
"""The chain that lets nothing pass."""
NAME_MAX = 120
_SPEAKABLE = re.compile(r"[A-Za-z0-9./-]+")
_SHORT_KIND = {
    "NetworkPolicy": "np",
    "GlobalNetworkPolicy": "gnp",
    "KubernetesNetworkPolicy": "knp",
    "AdminNetworkPolicy": "anp",
    "BaselineAdminNetworkPolicy": "banp",
    "ClusterNetworkPolicy": "cnp",
    "Profile": "profile",
}
BUILT_IN_TIERS = {
    tier.name: tier
    for tier in (
        TierRank(ADMIN_TIER, 1_000, passes=True),
        TierRank(V1ALPHA1_ADMIN_TIER, 1_000, passes=True),
        TierRank(V1ALPHA1_BASELINE_TIER, 10_000_000, passes=True),
        TierRank(DEFAULT_TIER, 1_000_000),
        TierRank(BASELINE_TIER, 10_000_000, passes=True),
    )
}


class Stage(Protocol):
    """A place at which packets are judged, and what its verdicts are there."""

    @property
    def value(self) -> str:
        """What tells its chains' names from those of other stages."""
        ...

    @property
    def ingress(self) -> bool:
        """Whether the policies' ingress rules are asked; else their egress rules."""
        ...

    @property
    def allow(self) -> Verdict:
        """What becomes of a packet that is allowed."""
        ...

    @property
    def end(self) -> Chain:
        """What becomes of a packet about which nobody has said anything, of any tier."""
        ...

    @property
    def tiers_deny(self) -> bool:
        """Whether a tier has the last word about a packet that none of its policies decides."""
        ...

    def takes(self, policy: Policy) -> bool:
        """Whether a policy is asked here."""
        ...

    def fitted(self, chain: Chain) -> Chain:
        """Rules as they have to be looked at here."""
        ...


class Direction(StrEnum):
    """As a workload sees it: `i`ngress is what it gets, `e`gress what it sends."""

    INGRESS = "i"
    EGRESS = "e"

    @property
    def allowed(self) -> str:
        """The chain where packets go on that are allowed in this direction."""
        return "allowed-to" if self.ingress else "allowed-from"

    @property
    def ingress(self) -> bool:
        """See `Stage`."""
        return self is Direction.INGRESS

    @property
    def allow(self) -> Verdict:
        """See `Stage`."""
        return Goto(self.allowed)

    @property
    def end(self) -> Chain:
        """See `Stage`."""
        return (DROP,)

    @property
    def tiers_deny(self) -> bool:
        """See `Stage`."""
        return True

    def takes(self, policy: Policy) -> bool:
        """See `Stage`."""
        return not (policy.untracked or policy.pre_dnat)

    def fitted(self, chain: Chain) -> Chain:
        """See `Stage`."""
        return chain


@dataclass(frozen=True, slots=True)
class Stretch:
    """The policies of one tier that an endpoint has, in order."""

    tier: str
    passes: bool
    policies: tuple[PolicyId, ...]


@dataclass(frozen=True, slots=True)
class Course:
    """See the module."""

    direction: Stage
    stretches: tuple[Stretch, ...] = ()
    profiles: tuple[str, ...] = ()

    @property
    def chain(self) -> str:
        """The name of its first chain: the same for the same course on every run."""
        return f"c{self.direction.value}-{digest(repr((self.stretches, self.profiles)))}"

    @property
    def rest(self) -> Course:
        """What comes behind its first tier."""
        return Course(self.direction, self.stretches[1:], self.profiles)


def rules_of(policy: Policy, direction: Stage) -> tuple[PolicyRule, ...] | None:
    """What a policy says about a direction; None: nothing."""
    return policy.ingress if direction.ingress else policy.egress


def tier_of(name: str, tiers: Mapping[str, TierRank]) -> TierRank:
    """A tier that is not stored is last, and denies: its policies are in force all the same."""
    return tiers.get(name) or BUILT_IN_TIERS.get(name) or TierRank(name)


def course(
    direction: Stage,
    policies: Iterable[Policy],
    profiles: tuple[str, ...],
    tiers: Mapping[str, TierRank],
) -> Course:
    """What an endpoint goes through that all of these policies select."""
    by_tier: dict[str, list[Policy]] = {}
    for policy in policies:
        if direction.takes(policy) and rules_of(policy, direction) is not None:
            by_tier.setdefault(policy.tier, []).append(policy)
    ranks = sorted((tier_of(name, tiers) for name in by_tier), key=_tier_rank)
    stretches = tuple(
        Stretch(
            rank.name,
            rank.passes,
            tuple(policy.id for policy in sorted(by_tier[rank.name], key=_policy_rank)),
        )
        for rank in ranks
    )
    return Course(direction, stretches, profiles)


def _tier_rank(tier: TierRank) -> tuple[bool, float, str]:
    return tier.order is None, tier.order or 0.0, tier.name


def _policy_rank(policy: Policy) -> tuple[bool, float, PolicyId]:
    return policy.order is None, policy.order or 0.0, policy.id


def chain_name(direction: Stage, owner: PolicyId) -> str:
    """The name of a policy's or profile's own chain; speakable wherever it can be."""
    kind = _SHORT_KIND.get(owner.kind, "")
    words = "/".join(part for part in (kind, owner.namespace, owner.name) if part)
    if not kind or len(words) > NAME_MAX or not _SPEAKABLE.fullmatch(words):
        words = digest(repr((owner.kind, owner.namespace, owner.name)))
    return f"p{direction.value}-{words}"


def passes_on(rules: Iterable[PolicyRule]) -> bool:
    """Whether a policy of these rules can send packets to the next tier."""
    return any(rule.action is Action.PASS for rule in rules)


def own_chain(direction: Stage, rules: Iterable[PolicyRule], log_prefix: str = LOG_PREFIX) -> Chain:
    """The rules of a policy that passes nothing (what one passes is dropped), or of a profile."""
    verdicts = Verdicts(direction.allow, log_prefix=log_prefix)
    return direction.fitted(compile_rules(rules, verdicts))


def course_chains(
    wanted: Course,
    rules: Callable[[PolicyId], tuple[PolicyRule, ...]],
    log_prefix: str = LOG_PREFIX,
) -> dict[str, Chain]:
    """The chains of a course by name; `rules` are a policy's in its direction.

    They end as the stage does, and lead to no chains but each other, those of the policies and
    profiles, and where the stage's allowed packets go.
    """
    direction, rest = wanted.direction, wanted
    chains: dict[str, Chain] = {}
    while rest.stretches:
        stretch, here, rest = rest.stretches[0], rest.chain, rest.rest
        onwards = Goto(rest.chain)
        lines: list[Rule] = []
        for policy in stretch.policies:
            said = rules(policy)
            if passes_on(said):
                verdicts = Verdicts(direction.allow, onwards, log_prefix)
                lines += direction.fitted(compile_rules(said, verdicts))
            else:
                lines.append(Rule((), Jump(chain_name(direction, policy))))
        lines.append(DROP if direction.tiers_deny and not stretch.passes else Rule((), onwards))
        chains[here] = tuple(lines)
    last = [Rule((), Jump(chain_name(direction, profile_id(one)))) for one in rest.profiles]
    chains[rest.chain] = (*last, *direction.end)
    return chains


def profile_id(name: str) -> PolicyId:
    """What a profile's chains are named after."""
    return PolicyId(name, "", "Profile")
