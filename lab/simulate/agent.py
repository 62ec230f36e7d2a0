"""One node's agent: what it is told, what it changes, and in which order, so that it can die
between any two changes.

Every function gives the stages of one deed: the cluster after each change that outlives the
agent. The order is the reconciler's (`felix_shim.reconciler`): machine, routes one by one, file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from felix_shim.migration import RAISED, Facts, Machine
from lab.simulate import bgp
from lab.simulate.product import Product, canonical, who
from lab.simulate.values import (
    CONVERGENCE,
    CURRENT,
    NONE,
    OUTDATED,
    Ledger,
    Node,
    Pod,
    Saved,
    World,
)

Stages = tuple[World, ...]
EMPTY = Machine()


class Agents:
    """The agents of all nodes; they differ by the world's node only."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._site = product.site

    # -- what an agent is told -----------------------------------------------------------------

    def adopt(self, world: World, number: int, *names: str) -> Stages:
        """The agent hears of endpoints and looks at BGP for them at once."""
        product, node = self._product, world.nodes[number]
        for name in names:
            pod = world.pod(name)
            assert pod is not None
            machine = product.begin(who(pod), pod.saved, node.kernel)
            returned = pod.saved.returned if pod.saved is not None else False
            world = world.with_pod(
                pod._replace(machine=canonical(machine), returned=returned, sign=NONE)
            )
        return self._settle(self._seen(world, number), number)

    def watch(self, world: World, number: int, *, jobs: int = 0, instances: int = 0) -> Stages:
        """One watch or both come some way; before its first list, a watch comes to the end."""
        node = world.nodes[number]
        node = node._replace(
            jobs=_position(node.jobs, jobs, len(world.jobs)),
            instances=_position(node.instances, instances, len(world.instances)),
        )
        return self._settle(world.with_node(number, node), number)

    def look(self, world: World, number: int) -> Stages:
        """The agent asks BIRD."""
        return self._settle(self._seen(world, number), number)

    def hear(self, world: World, name: str) -> Stages:
        """A sign that waited in the inbox is taken."""
        pod = world.pod(name)
        assert pod is not None
        assert pod.machine is not None
        after = self._product.hear(pod.machine, pod.sign == CURRENT)
        world = world.with_pod(pod._replace(sign=NONE))
        return self._effects(world, pod.node, {name: after})

    def tick(self, world: World) -> World:
        """A convergence time passes; every agent looks at its timers. What lies further back than
        two of them makes no difference."""
        world = world._replace(pods=tuple(_aged(pod) for pod in world.pods))
        for number, node in enumerate(world.nodes):
            if node.up:
                world = self._settle(world, number)[-1]
        return world

    def own(self, world: World, name: str) -> World:
        """The keeper of owners attempts what it wants for an endpoint."""
        pod = world.pod(name)
        assert pod is not None
        assert pod.machine is not None
        node = world.nodes[pod.node]
        in_sync = node.jobs is not None and node.instances is not None
        wanted = self._product.wants_owner(who(pod), pod.machine, pod.returned, in_sync)
        if wanted is None:
            return world
        seats = self._product.promote(world.seats[pod.vmi], wanted)
        return world._replace(seats=(*world.seats[: pod.vmi], seats, *world.seats[pod.vmi + 1 :]))

    # -- the agent's own life ------------------------------------------------------------------

    @staticmethod
    def die(world: World, number: int) -> World:
        """The agent is killed: what was not saved is lost, kernel and BIRD stay."""
        node = world.nodes[number]._replace(
            up=False, instances=None, jobs=None, ledger=Ledger(), announced=frozenset()
        )
        pods = tuple(
            pod._replace(machine=None, returned=False, sign=NONE) if pod.node == number else pod
            for pod in world.pods
        )
        return world.with_node(number, node)._replace(pods=pods)

    def wake(self, world: World, number: int, *, forgetful: bool = False) -> Stages:
        """It starts again; `forgetful`: its file is lost."""
        node = world.nodes[number]
        if forgetful:
            node = node._replace(saved_ledger=Ledger())
            pods = tuple(
                pod._replace(saved=None) if pod.node == number else pod for pod in world.pods
            )
            world = world._replace(pods=pods)
        world = world.with_node(number, node._replace(up=True, ledger=node.saved_ledger))
        return self.adopt(world, number, *(pod.name for pod in world.on(number)))

    # -- inside --------------------------------------------------------------------------------

    def _seen(self, world: World, number: int) -> World:
        """The agent's knowledge after it has asked BIRD what is worth asking."""
        product, node = self._product, world.nodes[number]
        known = [pod for pod in world.on(number) if pod.machine is not None]
        asked = set()
        for family in range(self._site.families):
            learned = bgp.best(node, family) not in (None, -1)
            noted = any(one == family for one, _, _ in node.ledger.numbers)
            if any(product.asks(pod, learned, noted) for pod in known):
                asked.add(family)
        raised = tuple(
            (family, frozenset(n for n, v in enumerate(node.heard) if bgp.is_raised(v[family])))
            for family in sorted(asked)
        )
        ledger = product.observe(node.ledger, frozenset(asked), raised)
        announced = {family for family in asked if any(vector[family] for vector in node.heard)}
        node = node._replace(
            ledger=ledger, announced=frozenset((node.announced - asked) | announced)
        )
        world = world.with_node(number, node)
        for pod in known:
            world = world.with_pod(pod._replace(older=pod.older & ledger.shown))
        return world

    def _settle(self, world: World, number: int) -> Stages:
        """Every known machine of a node agrees with the facts."""
        node = world.nodes[number]
        if not node.up:
            return (world,)
        after = {}
        for pod in world.on(number):
            if pod.machine is not None:
                after[pod.name] = self._product.settle(pod.machine, self._facts(world, node, pod))
        return self._effects(world, number, after)

    def _facts(self, world: World, node: Node, pod: Pod) -> Facts:
        assert pod.machine is not None
        return self._product.derive(
            who(pod),
            (
                None if node.jobs is None else world.jobs[node.jobs],
                None if node.instances is None else world.instances[node.instances],
            ),
            pod.machine.facts,
            self._product.raised(node.ledger),
            bool(node.announced),
        )

    def _effects(self, world: World, number: int, machines: dict[str, Machine]) -> Stages:
        """What new machines lead to: routes, one change at a time, then the file."""
        shown = world.nodes[number].ledger.shown
        for name, machine in machines.items():
            pod = world.pod(name)
            assert pod is not None
            world = world.with_pod(self._moved(pod, machine, shown))
        stages = [world]
        stages += self._routes(world, number)
        stages.append(self._saved(stages[-1], number))
        return tuple(_distinct(stages))

    def _moved(self, pod: Pod, machine: Machine, shown: frozenset[int]) -> Pod:
        assert pod.machine is not None
        raised = machine.state in RAISED and pod.machine.state not in RAISED
        outdated = machine.episode != pod.machine.episode and pod.sign == CURRENT
        return pod._replace(
            machine=canonical(machine),
            returned=self._product.came_back(pod, machine),
            older=shown if raised else pod.older,
            sign=OUTDATED if outdated else pod.sign,
        )

    def _routes(self, world: World, number: int) -> Iterator[World]:
        locals_ = tuple(
            (who(pod), pod.machine.state) for pod in world.on(number) if pod.machine is not None
        )
        kernel = world.nodes[number].kernel
        for entry, add in self._product.plan(locals_, kernel):
            if add:  # takes the place of a route of the same metric by another interface
                kernel = frozenset(one for one in kernel if one[:2] != entry[:2]) | {entry}
            else:
                kernel -= {entry}
            world = world.with_node(number, world.nodes[number]._replace(kernel=kernel))
            world = bgp.tell(world, number, self._site)
            yield world

    def _saved(self, world: World, number: int) -> World:
        node = world.nodes[number]
        for pod in world.on(number):
            if pod.machine is not None:
                world = world.with_pod(pod._replace(saved=Saved(pod.machine, pod.returned)))
        return world.with_node(number, node._replace(saved_ledger=node.ledger))


def _position(known: int | None, steps: int, length: int) -> int | None:
    if not steps:
        return known
    return length - 1 if known is None else min(known + steps, length - 1)


def _aged(pod: Pod) -> Pod:
    machine = None if pod.machine is None else _older(pod.machine)
    saved = None if pod.saved is None else pod.saved._replace(machine=_older(pod.saved.machine))
    return pod._replace(machine=machine, saved=saved)


def _older(machine: Machine) -> Machine:
    if machine.since is None:
        return machine
    since = max(machine.since - CONVERGENCE, -2 * CONVERGENCE)
    deadline = None if machine.deadline is None else max(machine.deadline - CONVERGENCE, 0.0)
    return replace(machine, since=since, deadline=deadline)


def _distinct(stages: Iterable[World]) -> Iterator[World]:
    before: World | None = None
    for stage in stages:
        if stage != before:
            yield stage
        before = stage
