"""Pools of different block sizes over one range come and go under two clients that allocate.

Whatever the order, and wherever a change falls between a decision and its commit: no block covers
another, no address is held twice, nobody loses one, and what is held is freed by its release.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from ipam.client import AddressRequest
from libtortie.errors import NotFound, TortieError
from libtortie.model.ipam import IPAddress
from libtortie.model.keys import Kind, ResourceKey
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.ipam_world import World, plain_pod, pool

SIZES = {"a": 28, "b": 29, "c": 30}
RANGES = {"a": "10.0.0.0/28", "b": "10.0.0.0/28", "c": "10.0.0.0/29"}
NODES = ("n1", "n2")


@dataclass
class Story:
    """The world, and who was told that he has which address."""

    world: World = field(default_factory=World)
    told: dict[str, IPAddress] = field(default_factory=dict)
    inside: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stores = {node: FaultyStore(self.world.store) for node in NODES}
        self.clients = {node: self.world.client(node, self.stores[node]) for node in NODES}

    def change(self, name: str, verb: str) -> None:
        key = ResourceKey(Kind.IP_POOL, name)
        if verb == "only":
            for other in SIZES:
                self.change(other, "enable" if other == name else "disable")
            return
        if verb == "delete":
            try:
                self.world.store.delete(key)
            except NotFound:
                return
            return
        spec = {"blockSize": SIZES[name], "disabled": verb == "disable"}
        self.world.pools(pool(name, RANGES[name], **spec))

    def allocate(self, node: str, handle: str, wish: int | str) -> None:
        """An address that is wished for, or any of a pool that is, or any."""
        want = AddressRequest(ipv4_pools=(wish,) if isinstance(wish, str) and wish else ())
        if isinstance(wish, int):
            want = AddressRequest(addresses=(ip_address("10.0.0.0") + wish,))
        try:
            (got,) = self.clients[node].assign(handle, plain_pod(handle), want)
        except TortieError:
            return
        assert self.told.setdefault(handle, got.address) == got.address, "it keeps what it has"

    def release(self, node: str, handle: str) -> None:
        freed = self.clients[node].release(handle)
        told = self.told.pop(handle, None)
        assert told is None or freed == (told,)

    def judge(self) -> None:
        cidrs = [block.cidr for block in self.world.blocks()]
        assert not [pair for pair in combinations(cidrs, 2) if pair[0].overlaps(pair[1])]
        held: Counter[IPAddress] = Counter()
        for block in self.world.blocks():
            used = [o for o, index in enumerate(block.allocations) if index is not None]
            held.update(block.address(ordinal) for ordinal in used)
        assert all(count == 1 for count in held.values())
        assert set(held) == set(self.told.values())
        self.world.audit()


changes = st.tuples(
    st.just("change"), st.sampled_from("abc"), st.sampled_from(["only", "enable", "delete"])
)
acts = st.one_of(
    changes,
    st.tuples(
        st.just("allocate"),
        st.sampled_from(NODES),
        st.sampled_from([f"h{n}" for n in range(5)]),
        st.one_of(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 15)),
    ),
    st.tuples(
        st.just("release"), st.sampled_from(NODES), st.sampled_from([f"h{n}" for n in range(5)])
    ),
    st.tuples(st.just("tidy"), st.sampled_from(NODES)),
)


def do(story: Story, act: tuple[object, ...]) -> None:
    verb, *rest = act
    if verb == "tidy":
        story.clients[str(rest[0])].give_up_stranded()
    else:
        getattr(story, str(verb))(*rest)


@settings(max_examples=300)
@given(
    steps=st.lists(
        st.tuples(acts, st.lists(st.tuples(st.integers(0, 2), acts), max_size=3)), max_size=12
    )
)
def test_no_address_is_held_twice(
    steps: list[tuple[tuple[object, ...], list[tuple[int, tuple[object, ...]]]]],
) -> None:
    story = Story()
    for name in "abc":
        story.change(name, "enable")
    for act, between in steps:
        node = next((str(one) for one in act if one in NODES), "")
        if node:
            story.stores[node].before_commit = interference(story, node, between)
        do(story, act)
        for store in story.stores.values():
            store.before_commit = lambda ops: None
        story.judge()


def interference(
    story: Story, node: str, between: list[tuple[int, tuple[object, ...]]]
) -> Callable[[object], None]:
    """At its n-th commit the others do what is due then; each once."""
    left = list(between)
    count = 0

    def before(_: object) -> None:
        nonlocal count
        due = [act for at, act in left if at == count]
        left[:] = [(at, act) for at, act in left if at > count]
        count += 1
        for act in due:
            others = tuple("n2" if one == "n1" else "n1" for one in (node,))
            swapped = tuple(others[0] if one in NODES else one for one in act)
            do(story, swapped)

    return before


def test_the_ranges_overlap_and_the_sizes_differ() -> None:
    networks = [ip_network(text) for text in RANGES.values()]
    assert all(one.overlaps(other) for one, other in combinations(networks, 2))
    assert len(set(SIZES.values())) == 3
