"""One form for clusters that behave alike from now on. What it changes, nobody can tell: which
numbers raises have (only their order counts), and history that every watch has passed."""

from __future__ import annotations

from dataclasses import replace

from felix_shim.migration import Machine
from lab.simulate.values import Ledger, Node, Pod, World

Numbers = dict[int, int]


def canonical(world: World) -> World:
    """See the module."""
    for number in range(len(world.nodes)):
        world = _renumbered(world, number)
    return _trimmed(world)


def _trimmed(world: World) -> World:
    """Histories from the oldest entry that a watch stands at; a watch that has not begun begins
    at the end."""
    jobs = min((n.jobs for n in world.nodes if n.jobs is not None), default=len(world.jobs) - 1)
    seen = [n.instances for n in world.nodes if n.instances is not None]
    instances = min(seen, default=len(world.instances) - 1)
    if world.left.stale:
        jobs = max(0, jobs - 1)
    if not jobs and not instances:
        return world
    nodes = tuple(
        node._replace(
            jobs=None if node.jobs is None else node.jobs - jobs,
            instances=None if node.instances is None else node.instances - instances,
        )
        for node in world.nodes
    )
    return world._replace(
        nodes=nodes, jobs=world.jobs[jobs:], instances=world.instances[instances:]
    )


def _renumbered(world: World, number: int) -> World:
    """A node's raises numbered from 1, in the order they have."""
    node = world.nodes[number]
    pods = world.on(number)
    used = {node.ledger.last, node.saved_ledger.last}
    used |= {one[2] for one in (*node.ledger.numbers, *node.saved_ledger.numbers)}
    for pod in pods:
        machines = (pod.machine, pod.saved.machine if pod.saved is not None else None)
        for machine in machines:
            if machine is not None:
                used |= {
                    machine.seen_raise,
                    machine.last_raise,
                    machine.facts.raised_elsewhere,
                }
    order = sorted(used - {0})
    if not order or order[-1] == len(order):
        return world
    new: Numbers = {0: 0} | {old: place + 1 for place, old in enumerate(order)}
    world = world.with_node(number, _node(node, new))
    for pod in pods:
        world = world.with_pod(_pod(pod, new))
    return world


def _node(node: Node, new: Numbers) -> Node:
    return node._replace(
        ledger=_ledger(node.ledger, new), saved_ledger=_ledger(node.saved_ledger, new)
    )


def _ledger(ledger: Ledger, new: Numbers) -> Ledger:
    numbers = tuple((family, node, new[number]) for family, node, number in ledger.numbers)
    return Ledger(new[ledger.last], numbers)


def _pod(pod: Pod, new: Numbers) -> Pod:
    machine = None if pod.machine is None else _machine(pod.machine, new)
    saved = pod.saved
    if saved is not None:
        saved = saved._replace(machine=_machine(saved.machine, new))
    return pod._replace(machine=machine, saved=saved)


def _machine(machine: Machine, new: Numbers) -> Machine:
    return replace(
        machine,
        seen_raise=new[machine.seen_raise],
        last_raise=new[machine.last_raise],
        facts=replace(machine.facts, raised_elsewhere=new[machine.facts.raised_elsewhere]),
    )
