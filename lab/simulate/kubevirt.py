"""KubeVirt, the kubelets and the guest: what happens to a VM, whatever the agents make of it.

The order is KubeVirt's: the target's pod and its ADD long before the hand-off, the instance's
`migrationState` at the hand-off, the guest's move, the instance's node, then the end of the
migration. What the API says is a history; how far each agent has read it is the agent's matter.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.simulate import bgp
from lab.simulate.product import Product
from lab.simulate.values import (
    ASKED,
    FAILED,
    SUCCEEDED,
    HandOff,
    Instance,
    Instances,
    Job,
    Jobs,
    Pod,
    World,
    node_name,
)

Label = tuple[str | int, ...]


class KubeVirt:
    """See the module."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._site = product.site

    def moves(self, world: World) -> Iterator[tuple[Label, World]]:
        """What may happen next."""
        yield from self._beginnings(world)
        for job in world.jobs[-1]:
            if job.live:
                yield from self._steps(world, job)
            elif self._pair(world, job)[0] == job and world.left.jobs == 0:
                yield ("forget", job.uid), self.forget(world, job)
        for pod in world.pods:
            if self._removable(world, pod):
                yield ("remove", pod.name), self.remove(world, pod)

    # -- beginnings ----------------------------------------------------------------------------

    def _beginnings(self, world: World) -> Iterator[tuple[Label, World]]:
        live = any(job.live for job in world.jobs[-1])
        if not world.left.jobs or not world.vm or (live and not self._site.overlap):
            return
        source = self._vm(world)
        for number in range(self._site.nodes):
            if number != source.node or self._site.same_node:
                yield ("start", number), self.start(world, number)

    def start(self, world: World, number: int) -> World:
        """A migration is asked for; unless another is live, its target pod comes at once."""
        uid, vmi = f"m{world.made}", len(world.instances[-1]) - 1 if self._site.remote else 0
        source = self._vm(world)
        waits = any(job.live for job in world.jobs[-1])
        phase = ASKED if waits else self._site.early[0]
        job = Job(uid, source.name, f"p{world.made}", phase, vmi)
        new = [job]
        if vmi != source.vmi:
            new.append(job._replace(uid=f"{uid}-send", vmi=source.vmi))
        left = world.left._replace(jobs=world.left.jobs - 1)
        world = world._replace(made=world.made + 1, left=left)
        world = self._publish(world, jobs=(*world.jobs[-1], *new))
        if waits:
            asked = tuple(sorted((*world.asked, (job.target, number))))
            return world._replace(asked=asked)
        return self._target(world, job, number)

    def admit(self, world: World, job: Job) -> World:
        """A migration that waited for another's end begins, from where the VM is now."""
        number = dict(world.asked)[job.target]
        asked = tuple(one for one in world.asked if one[0] != job.target)
        world = self._publish(
            world._replace(asked=asked),
            jobs=tuple(
                one._replace(phase=self._site.early[0], source=world.vm) if one == job else one
                for one in world.jobs[-1]
            ),
        )
        return self._target(world, job, number)

    def _target(self, world: World, job: Job, number: int) -> World:
        """The target pod, whose ADD claims the address; refused, the migration fails."""
        pod = Pod(job.target, number, job.vmi, job.uid)
        lives = frozenset(one.name for one in world.pods)
        instance = world.instances[-1][job.vmi]
        seats = self._product.claim(world.seats[job.vmi], pod, lives, instance)
        if seats is None:
            return self._change(world, job, phase=FAILED)
        held = (*world.seats[: job.vmi], seats, *world.seats[job.vmi + 1 :])
        return world._replace(pods=(*world.pods, pod), seats=held)

    # -- one migration -------------------------------------------------------------------------

    def _steps(self, world: World, job: Job) -> Iterator[tuple[Label, World]]:
        site, arrived = self._site, world.vm == job.target
        pair = self._pair(world, job)
        if pair[0] != job:
            return  # the sending half goes with the receiving one
        if job.phase == ASKED:
            yield from self._asked(world, job)
            return
        phases = (*site.early, *site.late)
        place = phases.index(job.phase)
        if place + 1 < len(phases):
            yield ("proceed", job.uid), self.proceed(world, job)
        if job.phase == phases[-1] and world.vm == job.source:
            yield ("switch", job.uid), self.switch(world, job)
        if arrived and not self._told(world, job):
            yield ("tell", job.uid), self.tell(world, job)
        if arrived and self._told(world, job):
            yield ("succeed", job.uid), self.succeed(world, job)
        if not arrived:
            yield ("fail", job.uid), self.fail(world, job)
            if job.phase in site.early:
                yield ("cancel", job.uid), self.remove_target(self.forget(world, job), job)
        elif not self._told(world, job):
            yield from self._mishaps(world, job)

    def _mishaps(self, world: World, job: Job) -> Iterator[tuple[Label, World]]:
        """What may go wrong after the guest ran on the target."""
        if self._site.untold:
            yield ("untold", job.uid), self.fail(world, job)._replace(at_odds=True)
        if self._site.rollback and world.pod(job.source) is not None:
            back = self.fail(world, job)._replace(vm=job.source)
            yield ("rollback", job.uid), self.remove_target(back, job)

    def _asked(self, world: World, job: Job) -> Iterator[tuple[Label, World]]:
        yield ("fail", job.uid), self.fail(world, job)
        alone = not any(one.live for one in world.jobs[-1] if one != job)
        if alone and world.vm and dict(world.asked)[job.target] != self._vm(world).node:
            yield ("admit", job.uid), self.admit(world, job)

    def proceed(self, world: World, job: Job) -> World:
        """The next phase; the first one after the hand-off comes with the hand-off."""
        phases = (*self._site.early, *self._site.late)
        phase = phases[phases.index(job.phase) + 1]
        if phase != self._site.late[0]:
            return self._change(world, job, phase=phase)
        world = self._publish(world, instances=self._handed_off(world, job))
        state = world.instances[-1][job.vmi].state
        return self._change(world, job, phase=phase, state=state)

    def _handed_off(self, world: World, job: Job) -> Instances:
        target = world.pod(job.target)
        node = node_name(target.node) if target else ""
        source = self._vm(world)
        found = []
        for vmi, instance in enumerate(world.instances[-1]):
            pair = [one for one in self._pair(world, job) if one.vmi == vmi]
            now = instance
            if pair:
                state = HandOff(pair[0].uid, job.source, job.target, node_name(source.node), node)
                active = {**dict(instance.active)}
                if target is not None and target.vmi == vmi:
                    active[target.name] = node
                now = instance._replace(state=state, active=tuple(sorted(active.items())))
            found.append(now)
        return tuple(found)

    def switch(self, world: World, job: Job) -> World:
        """The guest resumes on the target."""
        pod = world.pod(job.target)
        assert pod is not None
        return world.with_pod(pod._replace(ran=True))._replace(vm=job.target)

    def tell(self, world: World, job: Job) -> World:
        """The instance says where the guest is."""
        instance = world.instances[-1][job.vmi]
        state = instance.state._replace(completed=True)
        return self._instance(
            world, job.vmi, instance._replace(node=state.target_node, state=state)
        )

    def succeed(self, world: World, job: Job) -> World:
        """The migration's end; the sending instance of two is over with it."""
        state = world.instances[-1][job.vmi].state
        for one in self._pair(world, job):
            if one.vmi != job.vmi:
                sender = world.instances[-1][one.vmi]._replace(phase=SUCCEEDED)
                world = self._instance(world, one.vmi, sender)
        return self._change(world, job, phase=SUCCEEDED, state=state)

    def fail(self, world: World, job: Job) -> World:
        """The migration is called failed."""
        instance = world.instances[-1][job.vmi]
        if instance.state.job == job.uid:
            state = instance.state._replace(failed=True, completed=True)
            world = self._instance(world, job.vmi, instance._replace(state=state))
        return self._change(world, job, phase=FAILED)

    def forget(self, world: World, job: Job) -> World:
        """The migration's object is deleted."""
        pair = self._pair(world, job)
        return self._publish(world, jobs=tuple(one for one in world.jobs[-1] if one not in pair))

    # -- pods ----------------------------------------------------------------------------------

    def _removable(self, world: World, pod: Pod) -> bool:
        """Whether its end is nobody's failure: not the guest's, not a live migration's target."""
        if pod.name == world.vm:
            return False
        return not any(job.live and job.target == pod.name for job in world.jobs[-1])

    def remove(self, world: World, pod: Pod) -> World:
        """A pod's sandbox and its route go, DEL takes it out of IPAM, the endpoint is deleted."""
        seats = self._product.disown(world.seats[pod.vmi], pod)
        pods = tuple(one for one in world.pods if one.name != pod.name)
        held = (*world.seats[: pod.vmi], seats, *world.seats[pod.vmi + 1 :])
        instance = world.instances[-1][pod.vmi]
        active = tuple(one for one in instance.active if one[0] != pod.name)
        world = world._replace(pods=pods, seats=held)
        node = world.nodes[pod.node]
        kernel = frozenset(entry for entry in node.kernel if entry.pod != pod.name)
        world = world.with_node(pod.node, node._replace(kernel=kernel))
        world = bgp.tell(world, pod.node, self._site)
        return self._instance(world, pod.vmi, instance._replace(active=active))

    def remove_target(self, world: World, job: Job) -> World:
        """The same for a migration's target, if it is there."""
        pod = world.pod(job.target)
        return world if pod is None else self.remove(world, pod)

    # -- inside --------------------------------------------------------------------------------

    def _vm(self, world: World) -> Pod:
        pod = world.pod(world.vm)
        assert pod is not None
        return pod

    @staticmethod
    def _told(world: World, job: Job) -> bool:
        instance = world.instances[-1][job.vmi]
        return instance.state.job == job.uid and instance.state.completed

    @staticmethod
    def _pair(world: World, job: Job) -> tuple[Job, ...]:
        """A migration and, of a decentralised one, its other half; the receiving one first."""
        uid = job.uid.removesuffix("-send")
        return tuple(one for one in world.jobs[-1] if one.uid in (uid, f"{uid}-send"))

    def _change(self, world: World, job: Job, *, phase: str, state: HandOff | None = None) -> World:
        pair = {one.uid for one in self._pair(world, job)}

        def changed(one: Job) -> Job:
            own = state._replace(job=one.uid) if state is not None else one.state
            return one._replace(phase=phase, state=own)

        jobs = tuple(changed(one) if one.uid in pair else one for one in world.jobs[-1])
        return self._publish(world, jobs=jobs)

    def _instance(self, world: World, vmi: int, changed: Instance) -> World:
        instances = world.instances[-1]
        return self._publish(world, instances=(*instances[:vmi], changed, *instances[vmi + 1 :]))

    @staticmethod
    def _publish(
        world: World, *, jobs: Jobs | None = None, instances: Instances | None = None
    ) -> World:
        if jobs is not None and jobs != world.jobs[-1]:
            world = world._replace(jobs=(*world.jobs, jobs))
        if instances is not None and instances != world.instances[-1]:
            world = world._replace(instances=(*world.instances, instances))
        return world
