"""Claim, target, promote and disown in any order end as their meaning says.

The meaning is written down a second time here, over pods and sandboxes only, and the store has
to agree with it after every event, whatever faults and repeats came with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.client import AddressRequest
from ipam.ownership import same_pod
from libtortie.errors import MigrationRefused, OwnerMismatch
from libtortie.model.ipam import Owner
from tests.fakes.faulty_store import Fault, FaultyStore
from tests.fakes.ipam_world import World, pool, vm_pod

EXAMPLES = 5000 if os.environ.get("TORTIE_SOAK") else 150
HANDLE = "k8s-pod-network.vmi.shop.db"
BOTH = AddressRequest(ipv6=True)
SURVIVABLE = [Fault.NONE, Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE, Fault.UNAVAILABLE_AFTER]


@dataclass(frozen=True)
class Sandbox:
    """A pod and which of its sandboxes."""

    pod: int
    sandbox: int

    @property
    def owner(self) -> dict[str, str]:
        return vm_pod(
            f"p{self.pod}",
            node=f"n{self.pod}",
            container=f"c{self.pod}.{self.sandbox}",
            vmim_uid=f"m{self.pod}",
        )


@dataclass
class Meaning:
    """What an address should say: allocated or not, and the two owners' sandboxes."""

    held: bool = False
    active: Sandbox | None = None
    alternate: Sandbox | None = None
    target: bool = False
    """The alternate is a target that was not yet promoted, not a former source."""

    def apply(self, verb: str, who: Sandbox) -> str:
        """Change, and name the refusal that is expected."""
        return str(getattr(self, f"_{verb}")(who) or "")

    def _claim(self, who: Sandbox) -> None:
        self.held = True
        self.active = who
        if self.alternate and self.alternate.pod == who.pod:
            self.alternate = None

    def _target(self, who: Sandbox) -> str:
        if not self.held:
            return "MigrationRefused"
        if self.active and self.active.pod == who.pod:
            self.active = who
        else:
            self.alternate, self.target = who, True
        return ""

    def _promote(self, who: Sandbox) -> str:
        if self.active and self.active.pod == who.pod:
            return ""
        if not self.held or not self.alternate or self.alternate.pod != who.pod:
            return "OwnerMismatch"
        if self.active and not self.target:
            return "OwnerMismatch"
        self.active, self.alternate, self.target = self.alternate, self.active, False
        return ""

    def _disown(self, who: Sandbox) -> None:
        self.active = None if self.active == who else self.active
        self.alternate = None if self.alternate == who else self.alternate

    def _delete(self, who: Sandbox) -> None:
        self._disown(who)
        if self.active is None and self.alternate is None:
            self.held = False


events = st.tuples(
    st.sampled_from(["claim", "target", "promote", "disown", "delete"]),
    st.builds(Sandbox, st.integers(0, 2), st.integers(0, 1)),
    st.lists(st.sampled_from(SURVIVABLE), max_size=2),
    st.booleans(),
)


def play(world: World, verb: str, who: Sandbox, faults: list[Fault]) -> str:
    """Run one event on the node of its pod; the refusal's name, or nothing."""
    client = world.client(f"n{who.pod}", FaultyStore(world.store, faults))
    try:
        if verb == "claim":
            client.claim_vm(HANDLE, who.owner, BOTH)
        elif verb == "target":
            client.claim_vm_target(HANDLE, who.owner)
        elif verb == "promote":
            assert client.promote(HANDLE, who.owner)
        else:
            client.disown_vm(HANDLE, who.owner, vm_deleting=verb == "delete")
    except (MigrationRefused, OwnerMismatch) as refusal:
        return type(refusal).__name__
    return ""


def says(owner: Owner) -> Sandbox | None:
    if not owner.get("pod"):
        return None
    pod, sandbox = owner["container-id"].removeprefix("c").split(".")
    return Sandbox(int(pod), int(sandbox))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(events, max_size=20))
def test_store_agrees_with_the_meaning(
    story: list[tuple[str, Sandbox, list[Fault], bool]],
) -> None:
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    meaning = Meaning()
    addresses: set[object] = set()
    for verb, who, faults, twice in story:
        held = meaning.held
        for _ in range(1 + twice):
            expected = meaning.apply(verb, who)
            assert play(world, verb, who, faults) == expected
        found = world.client().by_handle(HANDLE)
        assert bool(found) is meaning.held
        assert len(found) in (0, 2)
        for item in found:
            assert says(item.active) == meaning.active
            assert says(item.alternate) == meaning.alternate
            assert not same_pod(item.active, item.alternate)
            assert item.active.get("vm-uid") == "vm-1"
        if held and meaning.held:
            assert {item.address for item in found} == addresses
        addresses = {item.address for item in found}
        world.audit()


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(1, 4), st.data())
def test_chain_of_migrations_ends_at_the_last(length: int, data: st.DataObject) -> None:
    """A to B to C: sources leave when they like, old events come again, the last pod owns."""
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/64"))
    first = Sandbox(0, 0)
    play(world, "claim", first, [])
    departed: list[Sandbox] = []
    for number in range(1, length + 1):
        target, source = Sandbox(number, 0), Sandbox(number - 1, 0)
        play(world, "target", target, [])
        late = [("disown", who) for who in departed]
        early = data.draw(st.booleans())
        if early:
            play(world, "disown", source, [])
        play(world, "promote", target, data.draw(st.lists(st.sampled_from(SURVIVABLE), max_size=2)))
        late += [("promote", who) for who in departed] + [("promote", source)]
        late += [("disown", source)]
        for verb, who in data.draw(st.permutations(late)):
            if data.draw(st.booleans()):
                play(world, verb, who, [])
        departed.append(source)
        for item in world.client().by_handle(HANDLE):
            assert says(item.active) == target
    for who in data.draw(st.permutations(departed)):
        play(world, "disown", who, [])
    for item in world.client().by_handle(HANDLE):
        assert (says(item.active), item.alternate) == (Sandbox(length, 0), {})


@pytest.mark.parametrize("verb", ["claim", "target", "promote", "disown", "delete"])
def test_every_event_has_a_meaning(verb: str) -> None:
    assert Meaning().apply(verb, Sandbox(0, 0)) in ("", "MigrationRefused", "OwnerMismatch")
