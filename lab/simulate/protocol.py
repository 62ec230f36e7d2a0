"""What can happen next in a cluster, and how it comes to rest when nothing new happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lab.simulate import bgp, guest
from lab.simulate.agent import Agents, Stages
from lab.simulate.canonical import canonical
from lab.simulate.kubevirt import KubeVirt, Label
from lab.simulate.product import Product
from lab.simulate.values import (
    CURRENT,
    Budget,
    HandOff,
    Instance,
    Node,
    Pod,
    Seats,
    Site,
    World,
    node_name,
)

ROUNDS = 40
"""In which a cluster without news must have come to rest."""


class Step(NamedTuple):
    """Something that can happen. `stages` are what it does, one durable change after another;
    `agent` is the node whose agent does it, and can die in between."""

    label: Label
    stages: Stages
    agent: int | None = None


class Restless(AssertionError):
    """A cluster without news that changes for ever."""


class Protocol:
    """See the module."""

    def __init__(self, site: Site, product: Product | None = None) -> None:
        self.site = site
        self.product = product or Product(site)
        self._agents = Agents(self.product)
        self._kubevirt = KubeVirt(self.product)
        self._audible = all(self.product.is_sign(frame) for frame in guest.SIGNS)
        self._fooled = any(self.product.is_sign(frame) for frame in guest.NOISE)

    def beginning(self, budget: Budget) -> World:
        """One VM that has always been on node 0, every agent awake and informed."""
        site, product = self.site, self.product
        pod = Pod("p0", 0, ran=True)
        seats = product.claim(None, pod, frozenset())
        assert seats is not None
        first = Instance(node_name(0), (("p0", node_name(0)),))
        instances = (first, Instance("", (), HandOff(), "")) if site.remote else (first,)
        silent = (0,) * site.families
        node = Node(True, 0, 0, frozenset(), (silent,) * site.nodes, silent)
        world = World(
            pods=(pod,),
            nodes=(node,) * site.nodes,
            tor=(silent,) * site.nodes,
            wire=(((),) * (site.nodes + 1),) * site.nodes,
            instances=(instances,),
            jobs=((),),
            vm="p0",
            seats=(seats, Seats(())) if site.remote else (seats,),
            left=budget,
            made=1,
        )
        world = world.with_pod(pod)
        return canonical(self._agents.adopt(world, 0, "p0")[-1])

    # -- what can happen -----------------------------------------------------------------------

    def outcomes(self, world: World) -> Iterator[tuple[Label, World]]:
        """Every next world, also those in which an agent dies half-way."""
        for step in self.steps(world):
            yield from self.endings(world, step)

    def endings(self, world: World, step: Step) -> Iterator[tuple[Label, World]]:
        """A step that goes to its end, or that its agent does not survive."""
        yield step.label, canonical(step.stages[-1])
        if step.agent is None or not world.left.crashes:
            return
        for number, stage in enumerate(step.stages):
            left = stage.left._replace(crashes=stage.left.crashes - 1)
            died = self._agents.die(stage._replace(left=left), step.agent)
            yield (*step.label, f"killed after change {number}"), canonical(died)

    def steps(self, world: World) -> Iterator[Step]:
        """Everything that can happen next, save that nothing changes."""
        for step in self._all(world):
            if step.stages[-1] != world or len(step.stages) > 1:
                yield step

    def _all(self, world: World) -> Iterator[Step]:
        for label, after in self._kubevirt.moves(world):
            yield Step(label, (after,))
        yield from self._frames(world)
        yield from self._bgp(world)
        for number in range(self.site.nodes):
            yield from self._agent(world, number)
        for pod in world.pods:
            if pod.machine is not None:
                yield Step(("own", pod.name), (self._agents.own(world, pod.name),))
        if world.left.ticks:
            left = world.left._replace(ticks=world.left.ticks - 1)
            yield Step(("tick",), (self._agents.tick(world._replace(left=left)),))

    def _frames(self, world: World) -> Iterator[Step]:
        for pod in world.pods:
            if not self.product.listens(pod):
                continue
            heard = world.with_pod(pod._replace(sign=CURRENT))
            if pod.name == world.vm:
                if self._audible:
                    yield Step(("speak", pod.name), (heard,))
            elif self._fooled:
                yield Step(("noise", pod.name), (heard,))
            elif world.left.strays and not pod.ran:
                left = world.left._replace(strays=world.left.strays - 1)
                yield Step(("stray", pod.name), (heard._replace(left=left, strayed=True),))

    def _bgp(self, world: World) -> Iterator[Step]:
        left = world.left._replace(losses=world.left.losses - 1)
        for source, row in enumerate(world.wire):
            for target, queue in enumerate(row):
                if source == target:
                    continue
                if queue:
                    after = bgp.deliver(world, source, target, self.site)
                    yield Step(("deliver", source, target), (after,))
                if world.left.losses:
                    for how, worse in bgp.disturbed(world, source, target):
                        yield Step((how, source, target), (worse._replace(left=left),))

    def _agent(self, world: World, number: int) -> Iterator[Step]:
        agents, node = self._agents, world.nodes[number]
        if not node.up:
            yield Step(("wake", number), agents.wake(world, number), number)
            if world.left.amnesia:
                left = world.left._replace(amnesia=world.left.amnesia - 1)
                after = agents.wake(world._replace(left=left), number, forgetful=True)
                yield Step(("wake with nothing", number), after, number)
            return
        for pod in world.on(number):
            if pod.machine is None:
                yield Step(("adopt", pod.name), agents.adopt(world, number, pod.name), number)
            elif pod.sign:
                yield Step(("hear", pod.name), agents.hear(world, pod.name), number)
        if world.on(number):
            yield Step(("look", number), agents.look(world, number), number)
        for kind, known, length in (
            ("jobs", node.jobs, len(world.jobs)),
            ("instances", node.instances, len(world.instances)),
        ):
            if known is None or known + 1 < length:
                after = agents.watch(world, number, **{kind: 1})
                yield Step((kind, number), after, number)
        if world.left.stale:
            yield from self._stale(world, number)

    def _stale(self, world: World, number: int) -> Iterator[Step]:
        """A list of migrations that another API server answers, a step behind."""
        node = world.nodes[number]
        if not node.jobs:
            return
        left = world.left._replace(stale=world.left.stale - 1)
        back = world.with_node(number, node._replace(jobs=node.jobs - 1))._replace(left=left)
        yield Step(("stale list", number), self._agents.look(back, number), number)

    # -- how it comes to rest ------------------------------------------------------------------

    def path_to_rest(self, world: World, *, talkative: bool) -> Iterator[tuple[Label, World]]:
        """No more news: migrations end as the guest's place has it, everybody is awake and hears
        all, the guest is silent or speaks whenever it may be heard. Ends when nothing changes.

        Raises `Restless`.
        """
        world = world._replace(left=Budget(0, 0, 0))
        for _ in range(ROUNDS):
            before = world
            for label, reached in self._round(world, talkative):
                after = canonical(reached)
                if after != world:
                    yield label, after
                    world = after
            if world == before:
                return
        raise Restless("nothing new happens, and the cluster changes for ever")

    def _round(self, world: World, talkative: bool) -> Iterator[tuple[Label, World]]:
        """One round of everybody, each step from where the one before led."""
        agents = self._agents
        while True:
            ending = next(self._endings_of_jobs(world), None)
            if ending is None:
                break
            label, world = ending
            yield label, canonical(world)
        for number in range(self.site.nodes):
            if not world.nodes[number].up:
                world = canonical(agents.wake(world, number)[-1])
                yield ("wake", number), world
        for _ in range(3):
            for label, reached in self._news(world, talkative):
                yield label, reached
                world = reached
        for name in [pod.name for pod in world.pods]:
            world = agents.own(world, name)
            yield ("own", name), world
        world = canonical(agents.tick(world))
        yield ("tick",), world

    def _news(self, world: World, talkative: bool) -> Iterator[tuple[Label, World]]:
        """All that is under way arrives, and what is waiting is heard."""
        for source in range(self.site.nodes):
            for target in range(self.site.nodes + 1):
                while world.wire[source][target]:
                    world = canonical(bgp.deliver(world, source, target, self.site))
                    yield ("deliver", source, target), world
        for number in range(self.site.nodes):
            world = canonical(self._informed(world, number))
            yield ("look", number), world
        vm = world.pod(world.vm)
        if talkative and self._audible and vm is not None and self.product.listens(vm):
            world = world.with_pod(vm._replace(sign=CURRENT))
        for name in [pod.name for pod in world.pods if pod.sign]:
            world = canonical(self._agents.hear(world, name)[-1])
            yield ("hear", name), world

    def _endings_of_jobs(self, world: World) -> Iterator[tuple[Label, World]]:
        """What a live migration does when nobody hinders it: the guest decides how it ends."""
        for label, after in self._kubevirt.moves(world):
            if label[0] in ("tell", "succeed") or (label[0] == "fail" and world.vm):
                yield label, after

    def _informed(self, world: World, number: int) -> World:
        agents = self._agents
        for pod in world.on(number):
            if pod.machine is None:
                world = agents.adopt(world, number, pod.name)[-1]
        jobs, instances = len(world.jobs), len(world.instances)
        world = agents.watch(world, number, jobs=jobs, instances=instances)[-1]
        return agents.look(world, number)[-1]
