"""What comes, goes, and cannot be read for a while leaves no trace in the node's rules.

The book works out anew only what a change is about: everything here asks for rules in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.drivers.nftables_change import steps
from felix_shim.policy import PolicySet, policy_set
from felix_shim.policy_book import PolicyBook, PolicyRules
from felix_shim.policy_desk import wanted_sets
from felix_shim.policy_sets import literal
from felix_shim.surroundings import NOTHING_AROUND, NodeRules, Surroundings
from felix_shim.unreadable_sets import Unreadable
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.policy import DEFAULT_ALLOW, Profile
from libtortie.model.policy_wire import read_host_end, read_host_endpoint
from tests.fakes.host_meaning import Hep, HostMeaning
from tests.fakes.host_worlds import (
    ALL_HEP,
    UP_HEP,
    host_book,
    host_policies,
    host_resource,
    host_worlds,
    surroundings,
)
from tests.fakes.policy_meaning import Written
from tests.fakes.policy_worlds import (
    NETSETS,
    item_of,
    key_of,
    netset_of,
    policy_of,
    profiles_of,
    tiers_of,
)


@dataclass
class Told:
    """A book, and the rules that were last made of it."""

    book: PolicyBook
    node: NodeRules = field(default_factory=NodeRules)
    around: Surroundings = NOTHING_AROUND
    last: PolicySet = field(default_factory=PolicySet)

    def rules(self) -> PolicyRules:
        """Those of now, which the quick way to the difference leads to as well as the slow one."""
        found = self.node.added_to(self.book.rules(), self.around)
        before, self.last = self.last, policy_set([], rules=found)
        slow = replace(self.last, sets=dict(found.sets), chains=dict(found.chains))
        old = replace(before, sets=dict(before.sets), chains=dict(before.chains))
        assert steps(before, self.last, "-0") == steps(old, slow, "-0")
        return found

    def look_around(self, around: Surroundings) -> None:
        self.around = around


Step = Callable[[Told], object]


def host_key(hep: Hep) -> ResourceKey:
    return ResourceKey(Kind.HOST_ENDPOINT, hep.name)


def put_host(told: Told, hep: Hep) -> None:
    found = host_resource(hep)
    item = read_host_endpoint(found)
    told.book.put_item(host_key(hep), item)
    told.book.put_host(host_key(hep), read_host_end(found), item)


def remove_host(told: Told, hep: Hep) -> None:
    told.book.remove_item(host_key(hep))
    told.book.remove_local(host_key(hep))


def _tell(put: Callable[..., None], *values: object) -> Step:
    return lambda told: put(told.book, *values)


PASSES = "passes"
"""The name of a policy that the last state does not have."""


@st.composite
def passing(draw: st.DrawFn) -> Step:
    """Something that the last state does not have."""
    other = policy_of(draw(host_policies(PASSES)))
    hep, around = draw(st.sampled_from((UP_HEP, ALL_HEP))), surroundings(draw(host_worlds()))
    netset, _ = netset_of(draw(st.sampled_from(NETSETS)))
    some: list[Step] = [
        _tell(PolicyBook.put_policy, other),
        _tell(PolicyBook.put_policy, replace(other, problem="no")),
        _tell(PolicyBook.remove_policy, other.id),
        _tell(PolicyBook.refuse, other.id, "the kernel said no"),
        _tell(PolicyBook.put_unreadable, netset, Unreadable("no nets")),
        _tell(PolicyBook.remove_item, netset),
        _tell(PolicyBook.put_profile, Profile("kns.red", (("pcns.env", "odd"),))),
        _tell(PolicyBook.put_profile, Profile(DEFAULT_ALLOW, problem="no")),
        _tell(PolicyBook.remove_tier, "first"),
        lambda told: told.look_around(around),
        partial(put_host, hep=replace(hep, labels={"app": "db"}, link="other0")),
        partial(remove_host, hep=hep),
    ]
    return draw(st.sampled_from(some))


def steps_to(world: HostMeaning) -> list[Step]:
    """What there is in the end; in any order."""
    meaning, there = world.meaning, {hep.name for hep in world.heps}
    pods = [(key_of(pod), item_of(pod)) for pod in meaning.pods]
    return [
        *(_tell(PolicyBook.put_tier, one) for one in tiers_of(meaning)),
        *(_tell(PolicyBook.put_profile, one) for one in profiles_of(meaning)),
        *(_tell(PolicyBook.put_policy, policy_of(one)) for one in meaning.policies),
        *(_tell(PolicyBook.put_item, *netset_of(one)) for one in meaning.netsets),
        *(_tell(put, key, item) for key, item in pods for put in PUTS),
        *(partial(put_host, hep=one) for one in world.heps),
        *(partial(remove_host, hep=one) for one in (UP_HEP, ALL_HEP) if one.name not in there),
        _tell(PolicyBook.remove_policy, policy_of(Written(PASSES, {})).id),
        _tell(PolicyBook.remove_profile, DEFAULT_ALLOW),
        lambda told: told.look_around(surroundings(world)),
    ]


PUTS: tuple[Callable[..., None], ...] = (PolicyBook.put_item, PolicyBook.put_local)


@settings(deadline=None, max_examples=150)
@given(host_worlds(), host_worlds(), st.lists(passing(), max_size=8), st.booleans(), st.data())
def test_what_came_before_does_not_matter(
    world: HostMeaning,
    earlier: HostMeaning,
    before: list[Step],
    unreadable: bool,
    data: st.DataObject,
) -> None:
    """Of earlier policies those of the same names are replaced; the others go."""
    told, fresh = Told(PolicyBook()), host_book(world)
    gone = [_tell(PolicyBook.remove_policy, policy_of(one).id) for one in earlier.meaning.policies]
    ending = data.draw(st.permutations(steps_to(world)))
    for step in (*steps_to(earlier), *before, *gone, *ending):
        step(told)
        if data.draw(st.booleans()):
            told.rules()
    if unreadable:
        key, _ = netset_of(data.draw(st.sampled_from(NETSETS)))
        for book in (told.book, fresh):
            book.put_unreadable(key, Unreadable("no nets"))
    found = told.rules()
    policies, around = fresh.rules(), surroundings(world)
    wanted = NodeRules().added_to(policies, around)
    assert dict(found.chains) == dict(wanted.chains)
    known = {**around.sets, **policies.sets}
    assert dict(found.sets) == {
        key: literal(key) if key.kind.literal else known[key] for key in wanted_sets(wanted.chains)
    }
    assert found.ways == wanted.ways
    assert found.hosts == wanted.hosts
    assert set(found.closed) == set(wanted.closed)
