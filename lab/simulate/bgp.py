"""BIRD on every node and on the ToR: what is best, what is announced, what is under way.

The preferences are those that `felix_shim.bgp` renders (a unit test reads them from its text). A
session is TCP: nothing is lost or overtaken but with the session, after which all is told again.
"""

from __future__ import annotations

from collections.abc import Iterator

from felix_shim.routes import Priorities
from lab.simulate.values import Entry, Node, Site, Vector, World

PRIORITIES = Priorities()
KERNEL_RAISED, PEER_RAISED, KERNEL, PEER = 250, 200, 150, 100
"""Preferences, best first."""


def is_raised(metric: int) -> bool:
    """Whether a metric says that the VM was heard."""
    return 0 < metric < PRIORITIES.bird


def own_metric(kernel: frozenset[Entry], family: int) -> int:
    """The metric of the node's own route, the best if there are two; 0 for none."""
    return min((entry.metric for entry in kernel if entry.family == family), default=0)


def best(node: Node, family: int) -> int | None:
    """Where BIRD's best route comes from: another node's number, -1 for our kernel, or nowhere."""
    own = own_metric(node.kernel, family)
    found = [(KERNEL_RAISED if is_raised(own) else KERNEL, -own, 0, -1)] if own else []
    for number, vector in enumerate(node.heard):
        if metric := vector[family]:
            preference = PEER_RAISED if is_raised(metric) else PEER
            found.append((preference, -metric, -number, number))
    return max(found)[3] if found else None


def announced(node: Node, number: int, site: Site) -> Vector:
    """What a node tells its neighbours: its own route while it is the best; a normal one inside
    its own block is aggregated."""
    vector = []
    for family in range(site.families):
        own = own_metric(node.kernel, family) if best(node, family) == -1 else 0
        vector.append(own if is_raised(own) or number != site.block_node else 0)
    return tuple(vector)


def tell(world: World, number: int, site: Site) -> World:
    """Put a node's update under way if what it announces has changed."""
    node = world.nodes[number]
    vector = announced(node, number, site)
    if vector == node.told:
        return world
    if site.prompt_tor:
        world = world._replace(tor=(*world.tor[:number], vector, *world.tor[number + 1 :]))
    deaf = (number, site.nodes) if site.prompt_tor else (number,)
    row = tuple(
        (*queue, vector) if other not in deaf else queue
        for other, queue in enumerate(world.wire[number])
    )
    wire = (*world.wire[:number], row, *world.wire[number + 1 :])
    return world._replace(wire=wire).with_node(number, node._replace(told=vector))


def deliver(world: World, source: int, target: int, site: Site) -> World:
    """The oldest update from one node to another arrives."""
    vector, *rest = world.wire[source][target]
    world = _queue(world, source, target, tuple(rest))
    if target == site.nodes:
        heard = world.tor
        return world._replace(tor=(*heard[:source], vector, *heard[source + 1 :]))
    node = world.nodes[target]
    heard = (*node.heard[:source], vector, *node.heard[source + 1 :])
    return tell(world.with_node(target, node._replace(heard=heard)), target, site)


def disturbed(world: World, source: int, target: int) -> Iterator[tuple[str, World]]:
    """A queue in which updates are lost (the session ends: what was told is kept for a graceful
    restart, or is withdrawn), repeated or overtaken; in the end the session tells all anew."""
    queue, last = world.wire[source][target], world.nodes[source].told
    if queue:
        yield "lose", _queue(world, source, target, (last,))
        yield "repeat", _queue(world, source, target, (queue[0], *queue))
    if len(queue) > 1:
        yield "overtake", _queue(world, source, target, (queue[1], queue[0], *queue[2:], last))
    yield "reset", _queue(world, source, target, (tuple(0 for _ in last), last))


def _queue(world: World, source: int, target: int, queue: tuple[Vector, ...]) -> World:
    row = world.wire[source]
    row = (*row[:target], queue, *row[target + 1 :])
    return world._replace(wire=(*world.wire[:source], row, *world.wire[source + 1 :]))
