"""What leads from one set of rules to another, as steps of one transaction. Pure.

`nftables_text.py` writes the steps for nft, `nftables_messages.py` as netlink messages: they do
the same, in the same order. What is new comes first, and what is old goes last, when nothing
refers to it any more. Sets and chains that did not change are the same values in both, and cost
next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from felix_shim.drivers.nftables_endpoint import chain_names, chains, elements, to_node
from felix_shim.drivers.nftables_nat import nat_change
from felix_shim.drivers.nftables_rules import SetSpec, declared
from felix_shim.policy import EndpointPolicy, PolicySet
from felix_shim.policy_compile import sets_of
from felix_shim.policy_sets import Elements
from felix_shim.rules import Chain, Rule, SetKey
from felix_shim.snapshots import touched
from libtortie.model.felix_values import EndpointToHost


class Verb(StrEnum):
    """What a step does, in nft's words."""

    ADD = "add"
    FLUSH = "flush"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class OnSet:
    """A set that is not there comes, or one that nothing looks into any more goes."""

    verb: Verb
    spec: SetSpec


@dataclass(frozen=True, slots=True)
class OnElements:
    """Elements come that are not in a set, or go that are in it."""

    verb: Verb
    spec: SetSpec
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnChain:
    """A chain comes unless it is there, loses all its rules, or goes (nothing leads to it)."""

    verb: Verb
    name: str


@dataclass(frozen=True, slots=True)
class AddRule:
    """A rule behind the others of its chain."""

    chain: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class Commands:
    """What is seldom and only `nft` says: the change is then made by it."""

    lines: tuple[str, ...]


Step = OnSet | OnElements | OnChain | AddRule | Commands


def steps(before: PolicySet, after: PolicySet, tag: str) -> tuple[Step, ...]:
    """What leads from one to the other; nothing when they are equal."""
    if before is after:
        return ()
    change = _Change(before, after, tag)
    return tuple(change.steps())


def stages(before: PolicySet, after: PolicySet) -> tuple[PolicySet, ...]:
    """The states to go through, one transaction each, the last of them `after`.

    Sets with networks or ranges of ports that rules will look into come before those rules: what
    the kernel adds to such a set in a transaction is found only when the transaction is over, a
    moment after its rules are in force (`docs/adr/0020`).
    """
    keys = touched(before.sets, after.sets)
    new = {
        key: after.sets[key]
        for key in keys
        if key in after.sets
        and after.sets[key].interval
        and not _same(before.sets.get(key), after.sets[key])
    }
    return (replace(before, prepared=new), after) if new else (after,)


_Filled = tuple[SetKey, Elements]


@dataclass(slots=True)
class _Change:
    """See the module. A set that gets its first network, or loses its last one, is another
    set."""

    before: PolicySet
    after: PolicySet
    tag: str
    _fresh: frozenset[SetKey] = field(init=False)
    _created: list[_Filled] = field(default_factory=list)
    _deleted: list[_Filled] = field(default_factory=list)
    _kept: list[tuple[SetKey, Elements, Elements]] = field(default_factory=list)

    def __post_init__(self) -> None:
        old, new = self.before, self.after
        keys = {*touched(old.sets, new.sets), *old.prepared, *new.prepared}
        for key in sorted(keys, key=str):
            known, found = _variants(old, key), _variants(new, key)
            self._created += [(key, found[one]) for one in found.keys() - known.keys()]
            self._deleted += [(key, known[one]) for one in known.keys() - found.keys()]
            both = known.keys() & found.keys()
            self._kept += [(key, known[one], found[one]) for one in both]
        self._fresh = frozenset(
            key for key in keys if key in new.sets and not _same(old.sets.get(key), new.sets[key])
        )

    def steps(self) -> Iterator[Step]:
        old, new = self.before.by_interface(), self.after.by_interface()
        gone = [one for name, one in old.items() if _differ(new.get(name), one)]
        come = [one for name, one in new.items() if _differ(old.get(name), one)]
        yield from self._new_sets()
        yield from self._elements(interval=False, removed=False)
        yield from self._chains()
        yield from self._endpoints(gone, come, staying=frozenset(new))
        if gone or come:
            yield from self._translation()
        if self.before.endpoint_to_host != self.after.endpoint_to_host:
            drop = self.after.endpoint_to_host is EndpointToHost.DROP
            yield from _refilled("to-node", to_node(drop=drop))
        yield from self._old_chains()
        yield from self._elements(interval=False, removed=True)
        yield from self._elements(interval=True, removed=True)  # networks must not overlap,
        yield from self._elements(interval=True, removed=False)  # so the old goes first
        for key, found in self._deleted:
            yield OnSet(Verb.DELETE, self._spec(key, found))

    def _new_sets(self) -> Iterator[Step]:
        for key, found in self._created:
            spec = self._spec(key, found)
            yield OnSet(Verb.ADD, spec)
            if texts := found.texts:
                yield OnElements(Verb.ADD, spec, tuple(sorted(texts)))

    def _spec(self, key: SetKey, found: Elements) -> SetSpec:
        return declared(key, {key: found}, self.tag)

    def _chains(self) -> Iterator[Step]:
        """Chains that are new, and the rules of those that are new or others."""
        if self.before.chains is self.after.chains and not self._fresh:
            return
        changed = [name for name, chain in self.after.chains.items() if self._changed(name, chain)]
        for name in changed:
            yield OnChain(Verb.ADD, name)
            if name in self.before.chains:
                yield OnChain(Verb.FLUSH, name)
        for name in changed:
            yield from (AddRule(name, rule) for rule in self.after.chains[name])

    def _changed(self, name: str, chain: Chain) -> bool:
        known = self.before.chains.get(name)
        if known is None or (known is not chain and known != chain):
            return True
        return bool(self._fresh) and not self._fresh.isdisjoint(sets_of(chain))

    def _endpoints(
        self, gone: list[EndpointPolicy], come: list[EndpointPolicy], staying: frozenset[str]
    ) -> Iterator[Step]:
        old, new = elements(gone), elements(come)
        for spec, texts in old.items():
            if less := set(texts) - set(new[spec]):
                yield OnElements(Verb.DELETE, self._tagged(spec), tuple(sorted(less)))
        for endpoint in gone:
            yield from _each(Verb.FLUSH, chain_names(endpoint))
            if endpoint.interface not in staying:
                yield from _each(Verb.DELETE, chain_names(endpoint))
        for endpoint in come:
            for name, chain in chains(endpoint).items():
                yield OnChain(Verb.ADD, name)
                yield from (AddRule(name, rule) for rule in chain)
        for spec, texts in new.items():
            if more := set(texts) - set(old[spec]):
                yield OnElements(Verb.ADD, self._tagged(spec), tuple(sorted(more)))

    def _translation(self) -> Iterator[Step]:
        lines = tuple(nat_change(self.before.translated, self.after.translated, self.tag))
        if lines:
            yield Commands(lines)

    def _old_chains(self) -> Iterator[Step]:
        """Chains that go; they may lead to each other, so all are emptied first."""
        if self.before.chains is self.after.chains:
            return
        gone = sorted(self.before.chains.keys() - self.after.chains.keys())
        yield from _each(Verb.FLUSH, gone)
        yield from _each(Verb.DELETE, gone)

    def _elements(self, *, interval: bool, removed: bool) -> Iterator[Step]:
        """Elements of sets that stay."""
        for key, known, found in self._kept:
            if found.interval is not interval:
                continue
            less, more = (known, found) if removed else (found, known)
            if texts := less.held.without(more.held):
                verb = Verb.DELETE if removed else Verb.ADD
                yield OnElements(verb, self._spec(key, found), tuple(sorted(texts)))

    def _tagged(self, spec: SetSpec) -> SetSpec:
        return replace(spec, name=f"{spec.name}{self.tag}")


def _variants(state: PolicySet, key: SetKey) -> dict[bool, Elements]:
    """The sets of a key that are there."""
    found = (state.prepared.get(key), state.sets.get(key))
    return {one.interval: one for one in found if one is not None}


def _same(one: Elements | None, other: Elements) -> bool:
    return one is not None and one.interval is other.interval


def _differ(one: EndpointPolicy | None, other: EndpointPolicy) -> bool:
    return one is not other and one != other


def _each(verb: Verb, chains: Iterable[str]) -> Iterator[Step]:
    return (OnChain(verb, name) for name in chains)


def _refilled(name: str, chain: Chain) -> Iterator[Step]:
    yield OnChain(Verb.FLUSH, name)
    yield from (AddRule(name, rule) for rule in chain)
