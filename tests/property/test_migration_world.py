"""One VM, three nodes, lost signs, lagging watches, crashes: who ends up with the route?"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from felix_shim.routes import Priorities
from tests.fakes.migration_world import World

NODES = 3
EXAMPLES = 20_000 if os.environ.get("TORTIE_SOAK") else 600
NORMAL = Priorities().normal

Action = tuple[str, Callable[[World, int, int], None]]


def migrate(world: World, node: int, heard: int) -> None:
    """A whole migration, with the VM heard at once, after the end, or never."""
    world.start_migration(node)
    world.switch()
    if heard == 0:
        world.speak()
    world.finish()
    if heard == 1:
        world.speak()


def inform(world: World, node: int, how: int) -> None:
    """One node hears all news, in this order or that."""
    if how % 2:
        world.look(node)
    world.watch_migrations(node, 1000)
    world.watch_places(node, 1000)
    world.look(node)


ACTIONS: tuple[Action, ...] = (
    ("migrate", lambda world, a, b: migrate(world, a % NODES, b % 3)),
    ("inform", lambda world, a, b: inform(world, a % NODES, b)),
    ("start", lambda world, a, b: world.start_migration(a % NODES)),
    ("switch", lambda world, a, b: world.switch()),
    ("speak", lambda world, a, b: world.speak()),
    ("finish", lambda world, a, b: world.finish()),
    ("delete", lambda world, a, b: world.delete_pod(a)),
    ("migrations", lambda world, a, b: world.watch_migrations(a % NODES, b)),
    ("places", lambda world, a, b: world.watch_places(a % NODES, b)),
    ("look", lambda world, a, b: world.look(a % NODES)),
    ("sleep", lambda world, a, b: world.sleep(a % NODES)),
    ("wake", lambda world, a, b: world.wake(a % NODES)),
    ("crash", lambda world, a, b: world.crash_after_raise(a % NODES)),
    ("amnesia", lambda world, a, b: world.wake(a % NODES, lost_state=True)),
    ("advance", lambda world, a, b: world.advance((1.0, 10.0, 31.0, 61.0)[b % 4])),
)
BY_NAME = dict(ACTIONS)
steps = st.tuples(
    st.sampled_from([name for name, _ in ACTIONS]), st.integers(0, 5), st.integers(0, 5)
)


def play(script: list[tuple[str, int, int]]) -> World:
    world = World(NODES)
    for name, a, b in script:
        BY_NAME[name](world, a, b)
    return world


def judge(world: World) -> None:
    assert world.routes() == {world.vm_pod: NORMAL}, {
        pod.name: (pod.node, pod.machine) for pod in world.pods.values()
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(steps, max_size=60))
def test_whatever_happened_one_normal_route_is_left_where_the_vm_is(
    script: list[tuple[str, int, int]],
) -> None:
    world = play(script)
    world.calm_down()
    judge(world)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(steps, max_size=60))
def test_a_talkative_vm_ends_the_same(script: list[tuple[str, int, int]]) -> None:
    """Frames after the end of all migrations must not upset what settled."""
    world = play(script)
    world.calm_down()
    for _ in range(3):
        world.speak()
        world.calm_down()
    judge(world)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.sampled_from(["migrations", "places", "look"]), min_size=0, max_size=12),
    st.booleans(),
)
def test_a_heard_vm_is_reachable_at_once_however_late_the_api_is(
    order: list[str], finished: bool
) -> None:
    """From the sign on, no lag of the source's or the target's agent leaves the VM unrouted."""
    world = World(NODES)
    world.start_migration(1)
    world.switch()
    world.speak()
    if finished:
        world.finish()
    for count, name in enumerate(order):
        BY_NAME[name](world, count % 2, 1)
        assert world.pods["pod1"].kernel is not None


def test_a_node_that_slept_through_the_vms_departure_lets_go() -> None:
    """Raised, then asleep while the VM is moved on and everybody else is done with it."""
    world = World(NODES)
    migrate(world, 1, heard=0)
    world.sleep(1)
    migrate(world, 2, heard=0)
    inform(world, 2, 0)
    world.advance(61.0)
    assert world.routes()[world.vm_pod] == NORMAL
    world.wake(1)
    world.calm_down()
    judge(world)


@pytest.mark.parametrize("converged", [True, False])
@pytest.mark.parametrize("heard", [0, 2])
def test_a_raise_seen_while_the_api_lags_is_not_answered_with_an_older_truth(
    converged: bool, heard: int
) -> None:
    """B knows that A's migration is over; the VM is moved on to C and heard there; B's API lags."""
    world = World(NODES)
    migrate(world, 1, heard=heard)
    inform(world, 1, 0)
    if converged:
        world.calm_down()
    migrate(world, 2, heard=0)
    for _ in range(3):
        world.look(1)
        world.look(2)
        assert world.routes()[world.vm_pod] == Priorities().elevated
        assert "pod1" not in world.routes()
    world.calm_down()
    judge(world)


def test_a_raise_that_was_not_saved_is_found_in_the_kernel() -> None:
    world = World(NODES)
    world.start_migration(1)
    world.switch()
    world.crash_after_raise(1)
    world.wake(1)
    assert world.routes()[world.vm_pod] == Priorities().elevated


def test_back_and_forth_with_every_sign_heard() -> None:
    world = World(NODES)
    for node in (1, 2, 0, 1):
        world.start_migration(node)
        assert world.routes().get(world.vm_pod) is not None, "the source serves until the switch"
        world.switch()
        world.speak()
        assert world.routes()[world.vm_pod] == Priorities().elevated
        world.calm_down()
        judge(world)
        for _ in range(4):
            world.delete_pod(0)


@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("heard", [0, 1, 2])
@pytest.mark.parametrize("first", ["pod0", "pod1"])
def test_two_guests_that_go_on_and_speak_in_turn_do_not_move_the_route_to_and_fro(
    heard: int, first: str, asleep: bool
) -> None:
    """A migration is over, and its source runs on. Whether or not it had seen the raise, it has
    the address at most once more; and two nodes are never raised, once they have looked."""
    world = World(NODES)
    if asleep:
        world.sleep(0)
    migrate(world, 1, heard=heard)
    world.calm_down()
    judge(world)
    taken = 0
    for turn in range(20):
        before = world.routes().get("pod0")
        world.speak(("pod0", "pod1")[(turn + (first == "pod1")) % 2])
        taken += before is None and "pod0" in world.routes()
        for node in (*range(NODES), *range(NODES)):
            world.look(node)
        world.advance(1.0 if turn % 3 else 31.0)
        raised = [name for name, metric in world.routes().items() if metric != NORMAL]
        assert len(raised) <= 1, world.routes()
    assert taken <= 1
    world.speak()
    world.calm_down()
    judge(world)
