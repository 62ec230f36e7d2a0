"""What must never be seen, in any step and at rest. Each verdict is a sentence, or nothing.

*At most one node raised*, precisely: two nodes may have a raised route only while the later raise
is still on its way to the earlier node (in a queue of BGP, in a table that its agent has not read,
or to an agent that is down). A node whose agent has read of a raise that it did not know when it
last claimed the VM is not raised once that very step is over; at rest there is one route at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from felix_shim.migration import RAISED
from lab.simulate import bgp
from lab.simulate.kubevirt import Label
from lab.simulate.product import PRIORITIES, Product
from lab.simulate.values import Pod, Site, World, node_name


def of_step(before: World, label: Label, after: World, product: Product) -> str | None:
    """What is wrong with a step, or with where it led."""
    return next(_of_step(before, label, after, product), None)


def _of_step(before: World, label: Label, after: World, product: Product) -> Iterator[str]:
    for pod in after.pods:
        if pod.machine is None or pod.machine.state not in RAISED:
            continue
        if not pod.ran and not after.strayed:
            yield f"{pod.name} is raised, and the VM has never run in it"
        if newer := after.nodes[pod.node].ledger.shown - pod.older:
            names = ", ".join(node_name(one) for one in sorted(newer))
            yield f"{pod.name} stays raised although its agent has read of a newer raise by {names}"
    yield from _of_address(after, product)
    yield from _of_kept_route(before, label, after)


def _of_address(world: World, product: Product) -> Iterator[str]:
    vm = world.pod(world.vm)
    if vm is not None and product.is_free(world.seats[vm.vmi]):
        yield f"the VM runs in {vm.name}, and its address is free"


def _of_kept_route(before: World, label: Label, after: World) -> Iterator[str]:
    """A VM that stays where it has a route keeps one, as long as no other node is raised."""
    pod = after.pod(after.vm)
    if pod is None or before.vm != after.vm or after.at_odds or after.strayed:
        return
    node = after.nodes[pod.node]
    rivals = any(bgp.is_raised(metric) for vector in node.heard for metric in vector)
    if not _routed(before, pod) or _routed(after, pod) or node.ledger.shown or rivals:
        return
    if len(after.on(pod.node)) == 1:
        yield f"{pod.name} lost its route although the VM runs in it and nobody else is raised"


def _routed(world: World, pod: Pod) -> bool:
    return any(entry.pod == pod.name for entry in world.nodes[pod.node].kernel)


def of_gap(stages: tuple[World, ...], number: int) -> str | None:
    """Between a route before and a route after, whether there was a moment without one."""
    kernels = [stage.nodes[number].kernel for stage in stages]
    for family in (0, 1):
        has = [any(entry.family == family for entry in kernel) for kernel in kernels]
        if has[0] and has[-1] and not all(has):
            return f"{node_name(number)} had no route for a moment while it changed its metric"
    return None


def at_rest(world: World, site: Site, product: Product, *, heard: bool) -> str | None:
    """What is wrong where nothing happens any more. `heard`: the VM has spoken where it is."""
    return next(_at_rest(world, site, product, heard), None)


def _at_rest(world: World, site: Site, product: Product, heard: bool) -> Iterator[str]:
    vm = world.pod(world.vm)
    routes = {entry for node in world.nodes for entry in node.kernel}
    owners = {entry.pod for entry in routes}
    if len(owners) > 1:
        yield f"at rest {', '.join(sorted(owners))} have routes"
    if vm is None:
        return
    told = world.instances[-1][vm.vmi].node == node_name(vm.node) and not world.at_odds
    if not heard and (world.strayed or not told):
        return  # nobody can know where the VM is, or one frame against no frame is believed
    if owners != {vm.name}:
        yield f"at rest the VM runs in {vm.name}, and {', '.join(owners) or 'nobody'} has a route"
    metrics = {entry.metric for entry in routes}
    if told and metrics != {PRIORITIES.normal}:
        yield f"at rest the route of {vm.name} has metric {metrics}, not {PRIORITIES.normal}"
    if len(routes) != site.families:
        yield f"at rest there are {len(routes)} routes for {site.families} addresses"
    active = dict(world.seats[vm.vmi].active).get("pod")
    if active != vm.name and not world.strayed:
        yield f"at rest the VM runs in {vm.name}, and the address's owner is {active}"
    yield from _of_others(world, site, vm)


def _of_others(world: World, site: Site, vm: Pod) -> Iterator[str]:
    """Where every node and the ToR send what is for the VM."""
    for family in range(site.families):
        for number in range(site.nodes):
            ends = _follow(world, site, number, family)
            if ends != vm.node:
                yield f"at rest {node_name(number)} sends the VM's traffic to {ends}"
        raised = [vector[family] for vector in world.tor]
        offers = [metric for metric in raised if metric]
        first = raised.index(min(offers)) if offers else site.block_node
        if first is not None and _follow(world, site, first, family) != vm.node:
            yield f"at rest the ToR sends the VM's traffic to node{first}"


def _follow(world: World, site: Site, number: int, family: int) -> int | None:
    """The node that a packet ends at, from hop to hop; None where it is dropped or goes round."""
    for _ in range(len(world.nodes) + 1):
        node = world.nodes[number]
        own = bgp.own_metric(node.kernel, family)
        learned = bgp.best(node, family)
        if own and (learned in (None, -1) or own < PRIORITIES.bird):
            return number
        if learned not in (None, -1):
            assert learned is not None
            number = learned
        elif site.block_node is not None and number != site.block_node:
            number = site.block_node
        else:
            return None
    return None
