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

from felix_shim.host_order import HostStage
from felix_shim.host_rules import HostPlan
from felix_shim.label_index import LabelIndex, Labelled
from felix_shim.peer_sets import PeerKind, PeerSets
from felix_shim.policy_compile import LOG_PREFIX, sets_of
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
    """An endpoint that a policy closes because it cannot be obeyed; `partly`: one of its rules."""

    endpoint: Key
    policy: PolicyId
    problem: str
    partly: bool = False


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
    """What endpoints come to that the same selectors select and that have the same profiles.

    `host` is a host endpoint's; no other has the same plan.
    """

    ways: Ways = field(default_factory=Ways)
    chains: Mapping[str, Chain] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[tuple[PolicyId, str], ...] = ()
    limits: tuple[tuple[PolicyId, str], ...] = ()
    sets: frozenset[SetKey] = frozenset()
    host: HostPlan | None = None


_Subject = tuple[str, ...] | HostEnd
"""A workload's profiles, or a host endpoint."""


@dataclass(slots=True)
class PolicyBook:
    """See the module. Items and local endpoints are named by their stored keys."""

    sets: PolicySets[Key] = field(default_factory=PolicySets)
    peers: PeerSets = field(default_factory=PeerSets)
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
    _plans: dict[tuple[frozenset[str], _Subject], _Plan] = field(default_factory=dict)
    _taken: dict[Key, _Plan] = field(default_factory=dict)
    _log_prefix: str = LOG_PREFIX
    _outdated_plans: bool = False
    _outdated_parts: set[str] = field(default_factory=set)
    _turned: set[Key] = field(default_factory=set)
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
        self._outdated_parts.add(policy.selector)

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
        self._outdated(policy, before.selector)

    def refuse(self, policy: PolicyId, problem: str) -> None:
        """The kernel does not take a policy's rules: until it says something else, it is closed."""
        if policy in self._policies or policy.kind == "Profile":
            self._refused[policy] = problem
            self._outdated_parts.add(self._part(policy))

    @property
    def refusals(self) -> tuple[PolicyId, ...]:
        """Whose rules the kernel did not take when it was last asked."""
        return tuple(self._refused)

    def forgive(self, policy: PolicyId) -> None:
        """The kernel takes its rules now: what was in the way was not theirs, or is mended."""
        if self._refused.pop(policy, None) is not None:
            self._outdated_parts.add(self._part(policy))

    def log_as(self, prefix: str) -> None:
        """The lines of Log rules begin so."""
        if prefix != self._log_prefix:
            self._log_prefix, self._outdated_plans, self._own = prefix, True, {}

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
            self._outdated(profile_id(profile.name), _profile_part(profile.name))

    def remove_profile(self, name: str) -> None:
        """A profile is no more."""
        if self._profiles.pop(name, None) is not None:
            self._refused.pop(profile_id(name), None)
            self._inherit(name, {})
            self._outdated(profile_id(name), _profile_part(name))

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

    def put_peer(self, kind: PeerKind, namespace: str, name: str, item: Item) -> None:
        """Something of Kubernetes that rules can be about is this now."""
        self.peers.put(kind, (namespace, name), item)

    def remove_peer(self, kind: PeerKind, namespace: str, name: str) -> None:
        """It is no more."""
        self.peers.remove(kind, (namespace, name))

    def put_local(self, key: Key, item: Item) -> None:
        """An endpoint of this node, which needs rules."""
        if self._locals.get(key) != item.profiles:
            self._locals[key] = item.profiles
            self._turned.add(key)
        self._subjects.put(key, Labelled(dict(item.labels), item.profiles))

    def put_host(self, key: Key, end: HostEnd, item: Item) -> None:
        """A host endpoint of this node."""
        if self._hosts.get(key) != end:
            self._hosts[key] = end
            self._turned.add(key)
        self._subjects.put(key, Labelled(dict(item.labels), item.profiles))

    def remove_local(self, key: Key) -> None:
        """It is no more, or no longer this node's."""
        known = self._locals.pop(key, None) is not None
        if self._hosts.pop(key, None) is not None or known:
            self._subjects.remove(key)
            self._turned.add(key)

    # -- what it comes to --------------------------------------------------------------------

    def rules(self) -> PolicyRules:
        """The rules of what there is; parts that did not change are the same values as before."""
        self._turned |= {key for _, key in self._subjects.drain()}
        self._drop_outdated()
        if self._turned or not self._rules.chains:
            self._arrange()
            self._turned = set()
        before, elements = self._rules, self.peers.added_to(self.sets.elements())
        if elements is not before.sets:
            self._rules = replace(before, sets=elements)
        return self._rules

    def own_chains(self) -> dict[PolicyId, dict[str, Chain]]:
        """Each policy and profile of a local endpoint by itself: chains that lead to nothing but
        where allowed packets go."""
        keys = (*self._locals, *self._hosts)
        texts = frozenset().union(*(self._subjects.selecting(key) for key in keys))
        found: dict[PolicyId, dict[str, Chain]] = {}
        stages = _STAGES if self._hosts else tuple(Direction)
        for owner in sorted(one for text in texts for one in self._selecting[text]):
            policy = self._policies[owner]
            found[owner] = {
                chain_name(way, owner): own_chain(
                    way, rules_of(policy, way) or (), self._log_prefix
                )
                for way in stages
                if isinstance(way, Direction) or way.takes(policy)
            }
        mine = (*self._locals.values(), *(end.profiles for end in self._hosts.values()))
        for name in sorted({name for profiles in mine for name in profiles}):
            owner = profile_id(name)
            found[owner] = {
                chain_name(way, owner): own_chain(
                    way, self._profile_rules(name, way), self._log_prefix
                )
                for way in Direction
            }
        return found

    # -- inside ------------------------------------------------------------------------------

    def _inherit(self, profile: str, labels: dict[str, str]) -> None:
        self._subjects.inherit(profile, labels)
        self.sets.inherit(profile, labels)
        self._outdated_plans |= bool(self._unreadable)

    def _outdated(self, owner: PolicyId, part: str) -> None:
        for direction in _STAGES:
            self._own.pop((owner, direction), None)
        self._outdated_parts.add(part)

    def _part(self, owner: PolicyId) -> str:
        """What the plans have in common that a policy or profile is in."""
        known = self._policies.get(owner)
        return known.selector if known else _profile_part(owner.name)

    def _drop_outdated(self) -> None:
        """Forget plans that are made of something that is another now, and who goes by them."""
        parts = self._outdated_parts
        if not parts and not self._outdated_plans:
            return
        dropped = {
            key: plan
            for key, plan in self._plans.items()
            if self._outdated_plans
            or not parts.isdisjoint(key[0])
            or not parts.isdisjoint(map(_profile_part, _profiles(key[1])))
        }
        for key in dropped:
            del self._plans[key]
        gone = {id(plan) for plan in dropped.values()}
        self._turned |= {key for key, plan in self._taken.items() if id(plan) in gone}
        self._outdated_plans, self._outdated_parts = False, set()

    def _arrange(self) -> None:
        """Courses of the local endpoints that have turned, and the chains of all courses."""
        before = {id(plan): plan for plan in self._taken.values()}  # alive, or ids tell nothing
        for key in self._turned:
            self._taken.pop(key, None)
            subject = self._hosts.get(key) or self._locals.get(key)
            if subject is not None:
                self._taken[key] = self._plan(self._subjects.selecting(key), subject)
        taken = {id(plan): plan for plan in self._taken.values()}
        chains = self._rules.chains
        if before.keys() != taken.keys() or not chains:
            chains = {CLOSED: (DROP,)}
            for plan in taken.values():
                chains |= plan.chains
            wanted = frozenset().union(*(plan.sets for plan in taken.values()))
            self.sets.use(self.peers.use(wanted))
            self._plans = {key: plan for key, plan in self._plans.items() if id(plan) in taken}
        ways = {key: plan.ways for key, plan in self._taken.items() if plan.host is None}
        hosts = (plan.host for plan in self._taken.values() if plan.host is not None)
        placed = tuple(sorted(hosts, key=lambda one: one.end.name))
        closed = tuple(
            Closed(key, policy, problem)
            for key, plan in self._taken.items()
            for policy, problem in plan.problems
        )
        closed += tuple(
            Closed(key, policy, limit, partly=True)
            for key, plan in self._taken.items()
            for policy, limit in plan.limits
        )
        self._rules = PolicyRules(chains, self._rules.sets, ways, closed, placed)

    def _plan(self, selecting: frozenset[str], subject: _Subject) -> _Plan:
        plan = self._plans.get((selecting, subject))
        if plan is None:
            found = sorted(one for text in selecting for one in self._selecting[text])
            policies = [self._policies[one] for one in found]
            if isinstance(subject, HostEnd):
                plan = self._host_plan(subject, policies)
            else:
                plan = self._workload_plan(subject, policies)
            self._plans[selecting, subject] = plan
        return plan

    def _workload_plan(self, profiles: tuple[str, ...], policies: list[Policy]) -> _Plan:
        if problems := tuple(self._problems(policies, profiles)):
            return _Plan(problems=problems)
        courses = [course(one, policies, profiles, self._tiers) for one in Direction]
        chains: dict[str, Chain] = {}
        for wanted in courses:
            chains |= self._chains(wanted)
        ingress, egress = courses
        limits = tuple((one.id, limit) for one in policies for limit in one.limits)
        ways = Ways(ingress.chain, egress.chain)
        return _Plan(ways, chains, limits=limits, sets=_sets_of(chains))

    def _host_plan(self, end: HostEnd, policies: list[Policy]) -> _Plan:
        """What is wrong closes it; for what goes through it only if that is policed at all, and
        what the others say of that, before conntrack and before DNAT too, stays in force."""
        problems = list(self._problems(policies, end.profiles))
        if end.problem:
            problems.append((PolicyId(end.name, "", "HostEndpoint"), end.problem))
        wrong = {policy for policy, _ in problems}
        forward = any(one.forwarded for one in policies if one.id in wrong)
        chains: dict[str, Chain] = {}
        courses: dict[HostStage, str] = {}
        for stage in HostStage:
            if wrong and (forward or stage.has_profiles):
                continue
            profiles = end.profiles if stage.has_profiles else ()
            wanted = course(stage, policies, profiles, self._tiers)
            if wanted.stretches or stage.has_profiles:
                courses[stage] = wanted.chain
                chains |= self._chains(wanted)
        host = HostPlan(end, MappingProxyType(courses), bool(wrong), forward)
        return _Plan(Ways(), chains, tuple(problems), sets=_sets_of(chains), host=host)

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

        chains = course_chains(wanted, said, self._log_prefix)
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
            found = self._own[owner, direction] = self._written(direction, rules)
        return found

    def _written(self, direction: Stage, rules: tuple[PolicyRule, ...]) -> Chain:
        return own_chain(direction, rules, self._log_prefix)

    def _profile_rules(self, name: str, direction: Stage) -> tuple[PolicyRule, ...]:
        """A namespace's profile allows all, stored or not, as Calico's controllers make it."""
        profile = self._profiles.get(name)
        if profile is not None:
            return profile.ingress if direction.ingress else profile.egress
        return ANY if name == DEFAULT_ALLOW or name.startswith(NAMESPACE_PROFILE) else ()


def _profiles(subject: _Subject) -> tuple[str, ...]:
    return subject.profiles if isinstance(subject, HostEnd) else subject


def _sets_of(chains: Mapping[str, Chain]) -> frozenset[SetKey]:
    return frozenset().union(*map(sets_of, chains.values()))


def _profile_part(name: str) -> str:
    """A profile as a part of a plan; no selector reads like that."""
    return f"profile {name}"


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
