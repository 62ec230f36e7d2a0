"""A cluster and a model of it: which addresses each pod and each VM has, as a dictionary.

`take` does one step on the real store and says what is wrong with the outcome. Steps are plain
values, so that a random driver and Hypothesis draw the same ones and any run can be replayed.
The model is simple on purpose: it knows no blocks, only who holds what, what may not be given,
and that a VM's addresses are its own for life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import TypeVar

from ipam.client import AddressRequest, Allocation, IPAMClient, Retry
from ipam.gc import Means, Memory, sweep
from libtortie.datastore.memory import MemoryDatastore
from libtortie.datastore.port import Datastore
from libtortie.errors import (
    Conflict,
    InvalidInput,
    MigrationRefused,
    NoFreeAddresses,
    OwnerMismatch,
    TortieError,
    Unavailable,
)
from libtortie.kube.objects import KubeNode, Meta, VirtualMachine
from libtortie.model.ipam import AffinityState, Block, IPAddress, Owner
from libtortie.model.keys import Kind
from tests.fakes.faulty_store import Killed, StepwiseStore
from tests.fakes.ipam_steps import (
    CONFIGS,
    NODES,
    OF_OPERATORS,
    OF_PODS,
    OF_VMS,
    PODS,
    POOLS,
    RESERVATIONS,
    VMS,
    Api,
    Machine,
    Step,
    Trouble,
)
from tests.fakes.ipam_world import UNHURRIED, World, plain_pod, pool, vm_pod
from tests.fakes.mortal_store import told

T = TypeVar("T")

BRIEF = Retry(attempts=4, seconds=60.0, pause=0.0, longest_pause=0.0)
GRACE = 900.0
REFUSALS = (NoFreeAddresses, OwnerMismatch, MigrationRefused, InvalidInput)


@dataclass
class Cluster:
    """The real thing and its model, side by side."""

    stepwise: bool = False
    world: World = field(default_factory=lambda: World(MemoryDatastore()))
    elapsed: float = 0.0
    """Seconds that really went by; the wall clock may jump."""

    def __post_init__(self) -> None:
        self.kube = Api(*(KubeNode(metadata=Meta(name=name)) for name in NODES))
        self.machines = {name: Machine(name) for name in VMS}
        self.holds: dict[str, set[IPAddress]] = {}
        self.disabled: set[str] = set()
        self.reserved = ""
        self.config: Mapping[str, object] = {}
        self.freed: dict[IPAddress, float] = {}
        self.configured = self.jumped = 0.0
        self.places: dict[str, int] = {}
        self.memory: Memory = {}
        self.made = 0
        self.depth = 0
        self.trouble: Trouble | None = None
        self.clients: dict[str, IPAMClient] = {}
        for name in POOLS:
            self._put_pool(name)

    # -- a step ----------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        """Do it, and compare. Raises `AssertionError`."""
        self.elapsed += 1
        self.world.later(1)
        getattr(self, f"_{step.verb}")(step)
        self.compare()

    def compare(self) -> None:
        """The store against the model: nobody has more, less or other than the model says."""
        blocks = self.world.blocks()
        stored = self.stored(blocks)
        assert stored == {handle: held for handle, held in self.holds.items() if held}
        every = [address for held in stored.values() for address in held]
        assert len(set(every)) == len(every), "an address has two holders"
        self.world.audit(exact=not self.stepwise)
        if not self.stepwise:
            owners = {block.cidr: block.node for block in blocks}
            for key, claim in self.world.affinities().items():
                if claim.state is AffinityState.CONFIRMED:
                    assert owners.get(key.cidr) == key.node, f"{key} claims what is not its own"

    def stored(self, blocks: list[Block] | None = None) -> dict[str, set[IPAddress]]:
        """Who holds what, by the blocks alone."""
        found: dict[str, set[IPAddress]] = {}
        for block in self.world.blocks() if blocks is None else blocks:
            for ordinal, index in enumerate(block.allocations):
                handle = None if index is None else block.attributes[index].handle_id
                if handle is not None:
                    found.setdefault(handle, set()).add(block.address(ordinal))
        return found

    def finish(self) -> None:
        """Give everything back: then nothing is left, on a store without transactions, too."""
        for handle in {*self.holds, *self.world.handles()}:
            self.world.client("n1", self._over()).release(handle)
        assert self.world.handles() == {}
        assert self.stored() == {}
        self.world.audit()

    # -- pods ------------------------------------------------------------------------------------

    def _assign(self, step: Step) -> None:
        self._give(step, AddressRequest(ipv6=bool(step.choice % 2)))

    def _explicit(self, step: Step) -> None:
        wanted = ip_address("10.0.0.0") + step.choice % 8
        self._give(step, AddressRequest(addresses=(wanted,)), explicit=True)

    def _give(self, step: Step, want: AddressRequest, *, explicit: bool = False) -> None:
        pod = PODS[step.subject % len(PODS)]
        handle = f"k8s-pod-network.{pod}"
        if not self.holds.get(handle):
            self.places[handle] = step.node
        step = replace(step, node=self.places[handle])  # a sandbox stays where it is
        node = self._node(step)
        owner = plain_pod(pod, node=node)
        self._allocate(
            step, handle, want, lambda client: client.assign(handle, owner, want), explicit=explicit
        )

    def _release(self, step: Step) -> None:
        handle = f"k8s-pod-network.{PODS[step.subject % len(PODS)]}"
        self._free(step, handle, lambda client: client.release(handle))

    # -- VMs -------------------------------------------------------------------------------------

    def _start(self, step: Step) -> None:
        """A new pod of the VM, which is made if there is none; the old pod is gone without DEL."""
        vm, node = self._vm(step), self._node(step)
        if not vm.uid:
            vm.uid = f"vm-{self._next()}"
            self.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name=vm.name, uid=vm.uid)))
        pod = vm_pod(
            f"{vm.name}-{self._next()}", node=node, vm=vm.name, vm_uid=vm.uid, vmi_uid=f"i-{vm.uid}"
        )
        self.kube.forget_pods(vm)
        self.kube.put_pod(pod)
        vm.active = pod
        want = AddressRequest(ipv6=bool(step.choice % 2))

        def work(client: IPAMClient) -> tuple[Allocation, ...]:
            return client.claim_vm(
                vm.handle, pod, want, previous_owner_gone=lambda o: o.get("vm-uid") != vm.uid
            )

        got = self._allocate(step, vm.handle, want, work)
        if got:
            assert all(one.active == pod for one in got), "the new pod is the active owner"

    def _migrate(self, step: Step) -> None:
        vm, node = self._vm(step), self._node(step)
        if not vm.active or not vm.uid:
            return
        target = vm_pod(
            f"{vm.name}-{self._next()}",
            node=node,
            vm=vm.name,
            vm_uid=vm.uid,
            vmi_uid=f"i-{vm.uid}",
            vmim_uid=f"m-{self.made}",
        )
        self.kube.put_pod(target)
        got, _ = self._do(step, lambda client: client.claim_vm_target(vm.handle, target))
        self._settle(vm.handle, may_gain=False, may_lose=False)
        if got:
            vm.target = target
            assert {one.address for one in got} == self.holds[vm.handle]

    def _promote(self, step: Step) -> None:
        vm = self._vm(step)
        if not vm.target:
            return
        target = vm.target
        done, _ = self._do(step, lambda client: client.promote(vm.handle, target))
        self._settle(vm.handle, may_gain=False, may_lose=False)
        if done:
            vm.source, vm.active, vm.target = vm.active, target, {}
            for one in self.world.client().by_handle(vm.handle):
                assert one.active == target, "the target is the active owner"

    def _leave(self, step: Step) -> None:
        """The DEL of a migration's former source."""
        vm = self._vm(step)
        self._disown(step, vm, vm.source)
        vm.source = {}

    def _stop(self, step: Step) -> None:
        vm = self._vm(step)
        self._disown(step, vm, vm.active)
        vm.active = {}

    def _delete(self, step: Step) -> None:
        """The VM's object goes, then its pods, each with its DEL."""
        vm = self._vm(step)
        self.kube.forget_vm(vm)
        for pod in (vm.target, vm.source, vm.active):
            self._disown(step, vm, pod)
        vm.active, vm.target, vm.source = {}, {}, {}

    def _desert(self, step: Step) -> None:
        """The VM's object and its pods go, and no DEL ever comes."""
        vm = self._vm(step)
        self.kube.forget_vm(vm)
        self.kube.forget_pods(vm)

    def _disown(self, step: Step, vm: Machine, pod: Owner) -> None:
        if not pod:
            return
        self.kube.remove_pod(pod)
        deleting = not vm.uid
        self._free(
            step,
            vm.handle,
            lambda client: client.disown_vm(vm.handle, pod, vm_deleting=deleting),
            certain=False,
            allowed=deleting,
        )

    # -- the cluster -----------------------------------------------------------------------------

    def _collect(self, step: Step) -> None:
        """Two passes, a grace apart; only what nobody has any more may go, and all of that."""
        before = {handle: set(held) for handle, held in self.holds.items()}
        living = {handle for handle in before if self._lives(handle)}
        self._show_pods()
        for _ in range(2):
            self.elapsed += GRACE
            self.world.later(GRACE)
            try:
                self._with_trouble(replace(step, other=None), self._pass)
            except (TortieError, Killed):
                self.memory = {}
            self._take_over(self.stored())
        stored = self.stored()
        for handle, held in before.items():
            if handle in living:
                assert stored.get(handle, set()) == held, f"{handle} was freed and lives"
            elif step.trouble in ("", "interlope"):
                assert not stored.get(handle), f"{handle} is nobody's and was not freed"
            else:
                assert stored.get(handle, set()) <= held
        if step.trouble in ("", "interlope"):
            self.world.audit()

    def _lives(self, handle: str) -> bool:
        """Whether the API has the VM that an owner names, or a pod: ordinary ones it always has."""
        vm = next((one for one in self.machines.values() if one.handle == handle), None)
        if vm is None:
            return True
        found = self.world.client().by_handle(handle)
        owners = [owner for one in found for owner in (one.active, one.alternate) if owner]
        pods = [owner["pod"] for owner in owners if "pod" in owner]
        return any(o.get("vm-uid") == vm.uid for o in owners) or any(map(self.kube.has_pod, pods))

    def _show_pods(self) -> None:
        """The API has a pod for whoever holds an address."""
        for name in PODS:
            found = self.world.client().by_handle(f"k8s-pod-network.{name}")
            if found:
                self.kube.show(name, found[0].active["node"], (one.address for one in found))

    def _pass(self) -> None:
        means = Means(
            self._over(told(self.world.store, self._tell)),
            self.kube,
            self.world.now,
            monotonic=lambda: self.elapsed,
            sleep=lambda _: None,
            retry=UNHURRIED,
        )
        self.memory = sweep(means, self.memory, grace=GRACE, trust_empty=True).memory

    def _configure(self, step: Step) -> None:
        self.config = CONFIGS[step.choice % len(CONFIGS)]
        self.configured = self.elapsed
        self.world.config(**self.config)

    def _toggle(self, step: Step) -> None:
        name = sorted(POOLS)[step.choice % len(POOLS)]
        self.disabled ^= {name}
        self._put_pool(name)

    def _reserve(self, step: Step) -> None:
        self.reserved = RESERVATIONS[step.choice % len(RESERVATIONS)]
        cidrs = [self.reserved] if self.reserved else []
        self.world.resource(Kind.IP_RESERVATION, "r", {"reservedCIDRs": cidrs})

    def _wait(self, step: Step) -> None:
        seconds = (5, 25, 40, 90)[step.choice % 4]
        self.elapsed += seconds
        self.world.later(seconds)

    def _jump(self, step: Step) -> None:
        """The wall clock is set, a day back or forth."""
        days = (-1, 1)[step.choice % 2]
        self.world.later(timedelta(days=days).total_seconds())
        if days > 0:
            self.jumped = self.elapsed

    # -- what an operation may do ----------------------------------------------------------------

    def _allocate(
        self,
        step: Step,
        handle: str,
        want: AddressRequest,
        work: Callable[[IPAMClient], tuple[Allocation, ...]],
        *,
        explicit: bool = False,
    ) -> tuple[Allocation, ...]:
        before = set(self.holds.get(handle, ()))
        got, error = self._do(step, work)
        gained = self._settle(handle, may_gain=True, may_lose=False)
        if step.other is None:
            for address in gained:
                self._may_be_given(address, explicit=explicit)
        if got is not None:
            answered = {one.address for one in got}
            assert answered == self.holds[handle], "the answer is what is stored"
            assert {a.version for a in answered} >= set(want.families())
        elif isinstance(error, REFUSALS) and not step.trouble:
            assert not gained, "a refusal leaves nothing"
            if isinstance(error, NoFreeAddresses) and not explicit:
                self._must_be_full(want, {address.version for address in before})
        return got or ()

    def _free(
        self,
        step: Step,
        handle: str,
        work: Callable[[IPAMClient], object],
        *,
        certain: bool = True,
        allowed: bool = True,
    ) -> None:
        done, _ = self._do(step, work)
        self._settle(handle, may_gain=False, may_lose=allowed)
        if done is not None and certain:
            assert not self.holds.get(handle), "what is released is gone"

    def _settle(self, handle: str, *, may_gain: bool, may_lose: bool) -> set[IPAddress]:
        """Take over what is stored for a handle, if that is possible; what it gained."""
        stored = self.stored()
        before, after = self.holds.get(handle, set()), stored.get(handle, set())
        if not may_lose:
            assert before <= after, f"{handle} lost {before - after}"
        if not may_gain:
            assert after <= before, f"{handle} gained {after - before}"
        gained = after - before
        self._take_over({**self.holds, handle: after})
        assert len({a.version for a in after}) == len(after), "one address of a family"
        return gained

    def _take_over(self, stored: Mapping[str, set[IPAddress]]) -> None:
        before = {address for held in self.holds.values() for address in held}
        self.holds = {handle: set(held) for handle, held in stored.items() if held}
        after = {address for held in self.holds.values() for address in held}
        for address in before - after:
            self.freed[address] = self.elapsed

    def _may_be_given(self, address: IPAddress, *, explicit: bool) -> None:
        where = next(n for n, p in POOLS.items() if address in ip_network(str(p["cidr"])))
        assert where not in self.disabled, f"{address} is of a disabled pool"
        if self.reserved and not explicit:
            assert address not in ip_network(self.reserved), f"{address} is reserved"
        cooldown, freed = self.config.get("cooldown_seconds", 0), self.freed.get(address)
        assert isinstance(cooldown, int)
        if freed is not None and freed >= self.configured and freed > self.jumped:
            assert self.elapsed - freed >= cooldown, f"{address} cools down still"

    def _must_be_full(self, want: AddressRequest, have: set[int]) -> None:
        """A refusal for want of addresses, though anybody may borrow: then none is free."""
        if self.config.get("strict_affinity"):
            return
        for version in set(want.families()) - have:
            free = [
                block.address(ordinal)
                for block in self.world.blocks()
                for ordinal in block.unallocated
                if block.cidr.version == version
            ]
            usable = [a for a in free if self._enabled(a) and not self._is_reserved(a)]
            if not usable:
                return
        raise AssertionError("refused, with addresses to give")

    def _enabled(self, address: IPAddress) -> bool:
        return any(
            address in ip_network(str(spec["cidr"]))
            for name, spec in POOLS.items()
            if name not in self.disabled
        )

    def _is_reserved(self, address: IPAddress) -> bool:
        return bool(self.reserved) and address in ip_network(self.reserved)

    # -- doing it --------------------------------------------------------------------------------

    def _do(
        self, step: Step, work: Callable[[IPAMClient], T]
    ) -> tuple[T | None, BaseException | None]:
        """The answer, or how it ended without one. A killed client never works again."""
        node = self._node(step)
        try:
            return self._with_trouble(step, lambda: work(self._client(node))), None
        except Killed as death:
            self.clients.pop(node, None)
            return None, death
        except (*REFUSALS, Conflict, Unavailable) as error:
            return None, error

    def _with_trouble(self, step: Step, work: Callable[[], T]) -> T:
        outer, self.trouble = self.trouble, Trouble(step, lambda: self._interlope(step))
        try:
            return work()
        finally:
            self.trouble = outer

    def _interlope(self, step: Step) -> None:
        other = step.other
        if other is None or self.depth or not self._may_interlope(step, other):
            return
        if step.verb in OF_PODS and other.verb in OF_PODS:
            same = step.subject % len(PODS) == other.subject % len(PODS)
            other = replace(other, node=step.node if same else other.node)  # a sandbox is on one
        busy = self.clients.pop(self._node(step), None)  # its lock is held: another process's turn
        outer, self.trouble = self.trouble, None
        self.depth += 1
        try:
            getattr(self, f"_{other.verb}")(other)
        finally:
            self.depth -= 1
            self.trouble = outer
            if busy is not None:
                self.clients[self._node(step)] = busy

    def _may_interlope(self, step: Step, other: Step) -> bool:
        """Whether the model can follow: not two at once on one VM, and an operator's change in the
        middle of a commit only where there is no middle."""
        if other.verb in OF_VMS:
            return step.verb not in OF_VMS or self._vm(step) is not self._vm(other)
        return other.verb in OF_PODS or (other.verb in OF_OPERATORS and not self.stepwise)

    def _client(self, node: str) -> IPAMClient:
        if node not in self.clients:
            store = self._over(told(self.world.store, self._tell))
            self.clients[node] = self.world.client(node, store, retry=BRIEF)
        return self.clients[node]

    def _over(self, store: Datastore | None = None) -> Datastore:
        store = store or self.world.store
        return StepwiseStore(store) if self.stepwise else store

    def _tell(self, what: str) -> None:
        if self.trouble is not None:
            self.trouble(what)

    # -- small things ----------------------------------------------------------------------------

    def _node(self, step: Step) -> str:
        return NODES[step.node % len(NODES)]

    def _vm(self, step: Step) -> Machine:
        return self.machines[VMS[step.subject % len(VMS)]]

    def _next(self) -> int:
        self.made += 1
        return self.made

    def _put_pool(self, name: str) -> None:
        resource = pool(name, disabled=name in self.disabled, **POOLS[name])  # type: ignore[arg-type]  # a table of keywords
        self.world.put(resource.key, resource)
