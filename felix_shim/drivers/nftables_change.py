"""What leads from one rule model to another, as nft commands for one transaction. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from felix_shim.drivers.nftables_rules import chain_text, element_lists, set_name, set_type
from felix_shim.policy import PolicySet
from felix_shim.policy_compile import sets_of
from felix_shim.rules import Chain, SetKey

TABLE = "tortie"


@dataclass(slots=True)
class ModelChange:
    """The parts of a transaction, to be put in the order that the kernel needs.

    Sets and chains that did not change are the same values in both, and cost next to nothing.
    """

    before: PolicySet
    after: PolicySet
    tag: str
    _fresh: frozenset[SetKey] = field(init=False)
    _stale: frozenset[SetKey] = field(init=False)

    def __post_init__(self) -> None:
        """A set that gets its first network, or loses its last one, is another set."""
        old, new = self.before.sets, self.after.sets
        turned = {
            key for key in old.keys() & new.keys() if old[key].interval is not new[key].interval
        }
        self._fresh = frozenset(new.keys() - old.keys() | turned)
        self._stale = frozenset(old.keys() - new.keys() | turned)

    def new_sets(self) -> Iterator[str]:
        """Sets that were not there, with their elements."""
        sets = self.after.sets
        for key in sorted(self._fresh, key=str):
            name = set_name(key, sets, self.tag)
            yield f"add set inet {TABLE} {name} {{ {set_type(key, sets[key])}; }}"
            for some in element_lists(sets[key].texts):
                yield f"add element inet {TABLE} {name} {{ {some} }}"

    def new_elements(self) -> Iterator[str]:
        """What comes into sets that stay, unless networks go from them: see `old_elements`."""
        yield from self._elements(interval=False, removed=False)

    def old_elements(self) -> Iterator[str]:
        """What leaves sets that stay. Of networks, which must not overlap, the old goes first."""
        yield from self._elements(interval=False, removed=True)
        yield from self._elements(interval=True, removed=True)
        yield from self._elements(interval=True, removed=False)

    def chains(self) -> Iterator[str]:
        """Chains that are new, and the rules of those that are new or others."""
        changed = [name for name in self.after.chains if self._changed(name)]
        for name in changed:
            yield f"add chain inet {TABLE} {name}"
            if name in self.before.chains:
                yield f"flush chain inet {TABLE} {name}"
        for name in changed:
            for rule in chain_text(self.after.chains[name], self.after.sets, self.tag):
                yield f"add rule inet {TABLE} {name} {rule}"

    def old_chains(self) -> Iterator[str]:
        """Chains that go; they may lead to each other, so all are emptied first."""
        gone = sorted(self.before.chains.keys() - self.after.chains.keys())
        yield from (f"flush chain inet {TABLE} {name}" for name in gone)
        yield from (f"delete chain inet {TABLE} {name}" for name in gone)

    def old_sets(self) -> Iterator[str]:
        """Sets that go."""
        for key in sorted(self._stale, key=str):
            yield f"delete set inet {TABLE} {set_name(key, self.before.sets, self.tag)}"

    def _changed(self, name: str) -> bool:
        chain: Chain = self.after.chains[name]
        known = self.before.chains.get(name)
        if known is None or (known is not chain and known != chain):
            return True
        return bool(self._fresh) and not self._fresh.isdisjoint(sets_of(chain))

    def _elements(self, *, interval: bool, removed: bool) -> Iterator[str]:
        old, new = self.before.sets, self.after.sets
        verb = "delete" if removed else "add"
        for key, elements in new.items():
            known = old.get(key)
            if known is None or known is elements or key in self._fresh:
                continue
            if elements.interval is not interval:
                continue
            less, more = (elements, known) if removed else (known, elements)
            for some in element_lists(more.texts - less.texts):
                yield f"{verb} element inet {TABLE} {set_name(key, new, self.tag)} {{ {some} }}"
