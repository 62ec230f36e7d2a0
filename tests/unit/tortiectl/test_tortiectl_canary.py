"""The canary: what it asks the nodes for, what it concludes of the router, what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest

from libtortie.datastore.memory import MemoryDatastore
from libtortie.errors import Conflict, NotFound
from libtortie.model.bgp_canary import ANNOTATION, parse_canary
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node, parse_resource
from tortiectl.canary import CanaryError, Means, Perch, chosen, prove

ADDRESS = ip_address("10.65.0.9")
A, B = Perch("a", ip_address("172.31.1.2")), Perch("b", ip_address("172.31.1.20"))
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
Choose = Callable[[dict[Perch, int]], list[Perch]]


def best(announced: dict[Perch, int]) -> list[Perch]:
    """A router that obeys."""
    return [min(announced, key=lambda one: announced[one])] if announced else []


def by_name(announced: dict[Perch, int]) -> list[Perch]:
    """One that goes by router id, and so is right by chance, once."""
    return [max(announced, key=lambda one: one.node)] if announced else []


def everyone(announced: dict[Perch, int]) -> list[Perch]:
    """One that shares the load."""
    return list(announced)


class World:
    """Two nodes, a router, and a clock that goes on with each pause."""

    def __init__(self, choose: Choose) -> None:
        self.store = MemoryDatastore()
        self.choose = choose
        self.clock = 0.0
        self.said: list[str] = []
        self.seen: list[dict[str, int]] = []
        for perch in (A, B):
            meta = {"name": perch.node, "annotations": {"other": "kept"}}
            body = {"kind": "Node", "metadata": meta, "spec": {}}
            key = ResourceKey(Kind.NODE, perch.node)
            self.store.create(key, parse_resource(Kind.NODE, body))

    def annotations(self, perch: Perch) -> dict[str, str]:
        value = self.store.get(ResourceKey(Kind.NODE, perch.node)).value
        assert isinstance(value, Node)
        return dict(value.metadata.annotations)

    def look(self) -> str:
        announced = {}
        for perch in (A, B):
            if text := self.annotations(perch).get(ANNOTATION):
                asked = parse_canary(text)
                assert str(asked.cidr) == "10.65.0.9/32"
                announced[perch] = asked.metric
        self.seen.append({perch.node: metric for perch, metric in announced.items()})
        return "\n".join(f"  * {one.address}, via eth0" for one in self.choose(announced))

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def prove(self, **changes: Any) -> None:
        store = changes.get("store", self.store)
        look = changes.get("look", self.look)
        means = Means(
            store, look, self.said.append, lambda: NOW, lambda: self.clock, self.pause, 5.0
        )
        prove(means, ADDRESS, (A, B), (1024, 512))

    def left(self) -> list[dict[str, str]]:
        return [self.annotations(perch) for perch in (A, B)]


def test_a_router_that_obeys_is_proved_both_ways_round() -> None:
    world = World(best)
    world.prove()
    assert {"a": 1024, "b": 512} in world.seen
    assert {"a": 512, "b": 1024} in world.seen
    assert world.said[-1] == (
        "the router prefers the raised route to 10.65.0.9, whichever node has it"
    )
    assert world.left() == [{"other": "kept"}] * 2


@pytest.mark.parametrize(
    ("choose", "uses"), [(by_name, "uses b, not a"), (everyone, "uses a and b, not b")]
)
def test_a_router_that_does_not_is_told_of(choose: Choose, uses: str) -> None:
    world = World(choose)
    with pytest.raises(CanaryError, match=uses):
        world.prove()
    assert world.left() == [{"other": "kept"}] * 2


def test_a_router_that_takes_no_host_route_at_all() -> None:
    world = World(lambda _: [])
    with pytest.raises(
        CanaryError, match=r"a announces 10\.65\.0\.9 at 1024: .* uses neither node"
    ):
        world.prove()


def test_whatever_ends_it_nothing_is_left() -> None:
    world = World(best)

    def look() -> str:
        if len(world.seen) > 2:
            raise KeyboardInterrupt
        return world.look()

    with pytest.raises(KeyboardInterrupt):
        world.prove(look=look)
    assert world.left() == [{"other": "kept"}] * 2


def test_a_node_that_is_written_by_others_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(best)
    real, refused = world.store.update, [0]

    def update(key: Any, value: Any, revision: str) -> Any:
        refused[0] += 1
        if refused[0] % 2:
            raise Conflict("somebody else's")
        return real(key, value, revision)

    monkeypatch.setattr(world.store, "update", update)
    world.prove()
    assert world.left() == [{"other": "kept"}] * 2


def test_a_node_that_is_deleted_meanwhile_needs_no_cleaning() -> None:
    world = World(best)

    def look() -> str:
        if world.seen and world.seen[-1]:
            world.store.delete(ResourceKey(Kind.NODE, "b"))
            world.seen.append({})
            raise NotFound("b")
        return world.look()

    with pytest.raises(NotFound):
        world.prove(look=look)
    assert world.annotations(A) == {"other": "kept"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.65.0.9 via 172.31.1.2 dev eth0 proto bgp", {"a"}),
        ("10.65.0.9/32 via 172.31.1.20 dev eth0", {"b"}),
        ("nexthop via 172.31.1.2\nnexthop via 172.31.1.20", {"a", "b"}),
        ("B>* 10.65.0.9/32 [20/512] via 172.31.1.20, swp1, weight 1", {"b"}),
        ('{"ip":"172.31.1.2"}', {"a"}),
        ("172.31.1.200", set()),
        ("", set()),
    ],
)
def test_an_address_counts_as_a_whole_word(text: str, found: set[str]) -> None:
    assert chosen(text, (A, B)) == found
