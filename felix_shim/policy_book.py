"""All policies and all they are about, and what they come to for this node's endpoints.

Kept up to date change by change: what a change costs depends on what it changes, not on how much
there is. The outcome is a function of what was put in, whatever came first and however often.

A policy or profile that cannot be obeyed never lets more pass than it would if it could: the
endpoints that it selects are closed, named in `closed` with the reason. Not thread-safe.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from felix_shim.host_order import FORWARDED, HostStage
from felix_shim.host_rules import HostPlan
from felix_shim.label_index import LabelIndex, Labelled
from felix_shim.policy_compile import sets_of
from felix_shim.policy_order import (
    CLOSED,
    Course,
    Direction,
    Stage,
    chain_name,
    course,
    course_chains,
    own_chain,
    passes_on,
    profile_id,
    rules_of,
)
from felix_shim.policy_sets import Elements, PolicySets
from felix_shim.rules import DROP, Chain, SetKey
from felix_shim.unreadable_sets import Unreadable, UnreadableSets
from libtortie.errors import InvalidInput
from libtortie.model import selectors
from libtortie.model.keys import Key
from libtortie.model.policy import (
    ANY,
    DEFAULT_ALLOW,
    NAMESPACE_PROFILE,
    HostEnd,
    Item,
    Policy,
    PolicyId,
    PolicyRule,
    Profile,
    TierRank,
)


@dataclass(frozen=True, slots=True)
class Ways:
    """The chains that an endpoint's packets go through: those it gets, and those it sends."""

    ingress: str = CLOSED
    egress: str = CLOSED


@dataclass(frozen=True, slots=True)
class Closed:
    """An endpoint that a policy closes because it cannot be obeyed."""

    endpoint: Key
    policy: PolicyId
    problem: str


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """What the policies come to: chains, the sets they look into, and whose way is which."""

    chains: Mapping[str, Chain] = field(default_factory=lambda: MappingProxyType({}))
    sets: Mapping[SetKey, Elements] = field(default_factory=lambda: MappingProxyType({}))
    ways: Mapping[Key, Ways] = field(default_factory=lambda: MappingProxyType({}))
    closed: tuple[Closed, ...] = ()
    hosts: tuple[HostPlan, ...] = ()


_STAGES: tuple[Stage, ...] = (*Direction, *HostStage)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What endpoints come to that the same selectors select and that have the same profiles."""

    ways: Ways
    chains: Mapping[str, Chain]
    problems: tuple[tuple[PolicyId, str], ...] = ()


@dataclass(slots=True)
class PolicyBook:
    """See the module. Items and local endpoints are named by their stored keys."""

    sets: PolicySets[Key] = field(default_factory=PolicySets)
    _subjects: LabelIndex[Key] = field(default_factory=LabelIndex)
    _locals: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    _hosts: dict[Key, HostEnd] = field(default_factory=dict)
    _policies: dict[PolicyId, Policy] = field(default_factory=dict)
    _selecting: defaultdict[str, set[PolicyId]] = field(default_factory=lambda: defaultdict(set))
    _refused: dict[PolicyId, str] = field(default_factory=dict)
    _tiers: dict[str, TierRank] = field(default_factory=dict)
    _profiles: dict[str, Profile] = field(default_factory=dict)
    _unreadable: UnreadableSets = field(init=False)
    _own: dict[tuple[PolicyId, Stage], Chain] = field(default_factory=dict)
    _plans: dict[tuple[frozenset[str], tuple[str, ...]], _Plan] = field(default_factory=dict)
    _outdated_plans: bool = False
    _stale: bool = True
    _rules: PolicyRules = field(default_factory=PolicyRules)

    def __post_init__(self) -> None:
        self._unreadable = UnreadableSets(self._profiles)

    # -- what there is -----------------------------------------------------------------------

    def put_policy(self, policy: Policy) -> None:
        """A policy says this now."""
        policy = readable(policy)
        if self._policies.get(policy.id) == policy:
            return
        self.remove_policy(policy.id)
        self._policies[policy.id] = policy
        self._selecting[policy.selector].add(policy.id)
        self._subjects.watch(policy.selector)
        self._outdated_plans = True

    def remove_policy(self, policy: PolicyId) -> None:
        """A policy is no more."""
        before = self._policies.pop(policy, None)
        if before is None:
            return
        self._selecting[before.selector].discard(policy)
        if not self._selecting[before.selector]:
            del self._selecting[before.selector]
            self._subjects.forget(before.selector)
        self._refused.pop(policy, None)
        self._outdated(policy)

    def refuse(self, policy: PolicyId, problem: str) -> None:
        """The kernel does not take a policy's rules: until it says something else, it is closed."""
        if policy in self._policies or policy.kind == "Profile":
            self._refused[policy] = problem
            self._outdated_plans = True

    def put_tier(self, tier: TierRank) -> None:
        """A tier is this now."""
        self._outdated_plans |= self._tiers.get(tier.name) != tier
        self._tiers[tier.name] = tier

    def remove_tier(self, name: str) -> None:
        """A tier is no more."""
        self._outdated_plans |= self._tiers.pop(name, None) is not None

    def put_profile(self, profile: Profile) -> None:
        """A profile is this now."""
        before = self._profiles.get(profile.name)
        if before == profile:
            return
        self._profiles[profile.name] = profile
        self._inherit(profile.name, dict(profile.labels))
        if before is None or replaced_rules(before, profile):
            self._refused.pop(profile_id(profile.name), None)
            self._outdated(profile_id(profile.name))

    def remove_profile(self, name: str) -> None:
        """A profile is no more."""
        if self._profiles.pop(name, None) is not None:
            self._inherit(name, {})
            self._outdated(profile_id(name))

    def put_item(self, key: Key, item: Item) -> None:
        """Something that selectors select is this now."""
        self.sets.put(key, item)
        self._outdated_plans |= self._unreadable.remove(key)

    def put_unreadable(self, key: Key, found: Unreadable) -> None:
        """It is there, but nobody knows what it is; whoever might use it is closed."""
        found = replace(found, item=found.item or self.sets.item(key))
        self._outdated_plans |= self._unreadable.put(key, found)
        self.sets.remove(key)

    def remove_item(self, key: Key) -> None:
        """It is no more."""
        self.sets.remove(key)
        self._outdated_plans |= self._unreadable.remove(key)

    def put_local(self, key: Key, item: Item) -> None:
        """An endpoint of this node, which needs rules."""
        if self._locals.get(key) != item.profiles:
            self._locals[key] = item.profiles
            self._stale = True
        self._subjects.put(key, Labelled(dict(item.labels), item.profiles))

    def put_host(self, key: Key, end: HostEnd, item: Item) -> None:
        """A host endpoint of this node."""
        if self._hosts.get(key) != end:
            self._hosts[key] = end
            self._stale = True
        self._subjects.put(key, Labelled(dict(item.labels), item.profiles))

    def remove_local(self, key: Key) -> None:
        """It is no more, or no longer this node's."""
        known = self._locals.pop(key, None) is not None
        if self._hosts.pop(key, None) is not None or known:
            self._subjects.remove(key)
            self._stale = True

    # -- what it comes to --------------------------------------------------------------------

    def rules(self) -> PolicyRules:
        """The rules of what there is; parts that did not change are the same values as before."""
        if self._outdated_plans:
            self._plans.clear()
        if self._subjects.drain() or self._stale or self._outdated_plans:
            self._arrange()
            self._stale = self._outdated_plans = False
        elements = self.sets.elements()
        before = self._rules
        self._rules = replace(before, sets=elements)
        return self._rules

    def own_chains(self) -> dict[PolicyId, dict[str, Chain]]:
        """Each policy and profile of a local endpoint by itself: chains that go nowhere else."""
        keys = (*self._locals, *self._hosts)
        texts = frozenset().union(*(self._subjects.selecting(key) for key in keys))
        found: dict[PolicyId, dict[str, Chain]] = {}
        for owner in sorted(one for text in texts for one in self._selecting[text]):
            policy = self._policies[owner]
            found[owner] = {
                chain_name(way, owner): own_chain(way, rules_of(policy, way) or ())
                for way in Direction
            }
        mine = (*self._locals.values(), *(end.profiles for end in self._hosts.values()))
        for name in sorted({name for profiles in mine for name in profiles}):
            owner = profile_id(name)
            found[owner] = {
                chain_name(way, owner): own_chain(way, self._profile_rules(name, way))
                for way in Direction
            }
        return found

    # -- inside ------------------------------------------------------------------------------

    def _inherit(self, profile: str, labels: dict[str, str]) -> None:
        self._subjects.inherit(profile, labels)
        self.sets.inherit(profile, labels)
        self._outdated_plans |= bool(self._unreadable)

    def _outdated(self, owner: PolicyId) -> None:
        for direction in _STAGES:
            self._own.pop((owner, direction), None)
        self._outdated_plans = True

    def _arrange(self) -> None:
        """Courses of all local endpoints, and the chains of these courses."""
        plans = {key: self._plan(key, profiles) for key, profiles in self._locals.items()}
        ways = {key: plan.ways for key, plan in plans.items()}
        closed = [
            Closed(key, policy, problem)
            for key, plan in plans.items()
            for policy, problem in plan.problems
        ]
        chains: dict[str, Chain] = {CLOSED: (DROP,)}
        for plan in {id(plan): plan for plan in plans.values()}.values():
            chains |= plan.chains
        hosts = tuple(self._host(key, end, chains, closed) for key, end in self._hosts.items())
        if chains != self._rules.chains:
            self.sets.use(frozenset().union(*(sets_of(chain) for chain in chains.values())))
        self._rules = PolicyRules(chains, {}, ways, tuple(closed), hosts)

    def _plan(self, key: Key, profiles: tuple[str, ...]) -> _Plan:
        selecting = self._subjects.selecting(key)
        plan = self._plans.get((selecting, profiles))
        if plan is None:
            plan = self._plans[selecting, profiles] = self._planned(selecting, profiles)
        return plan

    def _planned(self, selecting: frozenset[str], profiles: tuple[str, ...]) -> _Plan:
        found = sorted(one for text in selecting for one in self._selecting[text])
        policies = [self._policies[one] for one in found]
        if problems := tuple(self._problems(policies, profiles)):
            return _Plan(Ways(), {}, problems)
        courses = [course(one, policies, profiles, self._tiers) for one in Direction]
        chains: dict[str, Chain] = {}
        for wanted in courses:
            chains |= self._chains(wanted)
        ingress, egress = courses
        return _Plan(Ways(ingress.chain, egress.chain), chains)

    def _host(
        self, key: Key, end: HostEnd, chains: dict[str, Chain], closed: list[Closed]
    ) -> HostPlan:
        """A host endpoint's plan; adds to chains and to who is closed."""
        selecting = self._subjects.selecting(key)
        found = sorted(one for text in selecting for one in self._selecting[text])
        policies = [self._policies[one] for one in found]
        problems = list(self._problems(policies, end.profiles))
        if end.problem:
            problems.append((PolicyId(end.name, "", "HostEndpoint"), end.problem))
        closed += [Closed(key, policy, problem) for policy, problem in problems]
        wrong = {policy for policy, _ in problems}
        forward = any(one.forwarded for one in policies if one.id in wrong)
        courses: dict[HostStage, str] = {}
        for stage in HostStage if not wrong else () if forward else FORWARDED:
            profiles = end.profiles if stage.has_profiles else ()
            wanted = course(stage, policies, profiles, self._tiers)
            if wanted.stretches or stage.has_profiles:
                courses[stage] = wanted.chain
                chains |= self._chains(wanted)
        return HostPlan(end, MappingProxyType(courses), bool(wrong), forward)

    def _problems(
        self, policies: list[Policy], profiles: tuple[str, ...]
    ) -> Iterator[tuple[PolicyId, str]]:
        for policy in policies:
            tier = self._tiers.get(policy.tier)
            problem = policy.problem or self._refused.get(policy.id, "")
            problem = problem or (tier.problem if tier is not None else "")
            if problem := problem or self._unreadable.problem_of(policy):
                yield policy.id, problem
        for name in profiles:
            known = self._profiles.get(name)
            refused = self._refused.get(profile_id(name), "")
            problem = (known.problem if known else "") or refused
            if problem := problem or (self._unreadable.problem_of(known) if known else ""):
                yield profile_id(name), problem

    def _chains(self, wanted: Course) -> dict[str, Chain]:
        direction = wanted.direction

        def said(policy: PolicyId) -> tuple[PolicyRule, ...]:
            return rules_of(self._policies[policy], direction) or ()

        chains = course_chains(wanted, said)
        for policy in (one for stretch in wanted.stretches for one in stretch.policies):
            if not passes_on(said(policy)):
                chains[chain_name(direction, policy)] = self._chain(policy, direction, said(policy))
        for name in wanted.profiles:
            owner = profile_id(name)
            rules = self._profile_rules(name, direction)
            chains[chain_name(direction, owner)] = self._chain(owner, direction, rules)
        return chains

    def _chain(self, owner: PolicyId, direction: Stage, rules: tuple[PolicyRule, ...]) -> Chain:
        found = self._own.get((owner, direction))
        if found is None:
            found = self._own[owner, direction] = own_chain(direction, rules)
        return found

    def _profile_rules(self, name: str, direction: Stage) -> tuple[PolicyRule, ...]:
        """A namespace's profile allows all, stored or not, as Calico's controllers make it."""
        profile = self._profiles.get(name)
        if profile is not None:
            return profile.ingress if direction.ingress else profile.egress
        return ANY if name == DEFAULT_ALLOW or name.startswith(NAMESPACE_PROFILE) else ()


def replaced_rules(before: Profile, after: Profile) -> bool:
    """Whether two states of a profile differ in more than labels."""
    return (before.ingress, before.egress, before.problem) != (
        after.ingress,
        after.egress,
        after.problem,
    )


def readable(policy: Policy) -> Policy:
    """The policy, or, when its selector is none, one that closes everything it could be about."""
    try:
        selectors.parse(policy.selector)
    except InvalidInput as error:
        return Policy(policy.id, "all()", policy.tier, problem=str(error))
    return policy
