"""Four nodes give and take addresses while their etcd is maltreated.

Leaders are killed, stopped without closing anything, and history is compacted all the while. At
the end nobody has another's address, what was promised is held, and when everything is released
the store is empty but for the nodes' blocks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

import pytest

from ipam.client import AddressRequest, Allocation, IPAMClient, Retry
from libtortie.errors import Conflict, Unavailable
from tests.fakes.etcd_client import BRISK, DEADLINE, eventually, store_at
from tests.fakes.etcd_server import EtcdMember, leader_of
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

BOTH = AddressRequest(ipv6=True)
PATIENT = Retry(attempts=1000, seconds=DEADLINE)
WRITERS = 4
CYCLES_AFTER = 6
"""Each writer goes on for so many cycles once the fault is over."""


class Writer:
    """One node: it starts pods and a VM, and stops every other pod, until it is told to end."""

    def __init__(self, number: int, urls: list[str]) -> None:
        self.node = f"n{number}"
        self.promised: dict[str, set[str]] = {}
        self.error: BaseException | None = None
        self.cycles = 0
        self.quota: int | None = None
        self._changed = threading.Condition()
        self._urls = urls[number % len(urls) :] + urls[: number % len(urls)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with closing(store_at(*self._urls, timing=BRISK)) as store:
                client = IPAMClient(store, self.node, now=lambda: datetime.now(UTC), retry=PATIENT)
                for number in itertools.count():
                    if self.quota is not None and self.cycles >= self.quota:
                        break
                    self._cycle(client, number)
                    with self._changed:
                        self.cycles += 1
                        self._changed.notify_all()
        except BaseException as error:
            self.error = error
            with self._changed:
                self._changed.notify_all()

    def _cycle(self, client: IPAMClient, number: int) -> None:
        handle, vm = f"{self.node}-{number % 8}", f"vm.vmi.shop.{self.node}"
        pod = plain_pod(f"{handle}-{number}", node=self.node)
        self._give(handle, lambda: client.assign(handle, pod, BOTH))
        launcher = vm_pod(f"{self.node}-{number}", node=self.node, vm=vm)
        self._give(vm, lambda: client.claim_vm(vm, launcher, BOTH))
        if number % 2:
            _insist(lambda: client.release(handle))
            del self.promised[handle]

    def _give(self, handle: str, work: Callable[[], tuple[Allocation, ...]]) -> None:
        def once() -> None:
            got = {str(one.address) for one in work()}
            assert len(got) == 2
            assert self.promised.setdefault(handle, got) == got, "a repeat is given the same"

        _insist(once)

    def wait(self, cycles: int) -> None:
        """Until it went through so many more cycles."""
        with self._changed:
            target = self.cycles + cycles
            assert self._changed.wait_for(
                lambda: self.cycles >= target or self.error is not None, 4 * DEADLINE
            )
        assert self.error is None, self.error

    def end(self) -> None:
        self.quota = self.cycles + CYCLES_AFTER
        self._thread.join(4 * DEADLINE)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def _insist(work: Callable[[], object]) -> None:
    """As kubelet does: until there is an answer."""

    def once() -> None:
        try:
            work()
        except Conflict as error:
            raise Unavailable(str(error)) from error

    eventually(once)


def _kill(trio: list[EtcdMember], writers: list[Writer]) -> None:
    leader = leader_of(trio)
    leader.stop()
    _all_go_on(writers)
    leader.start()
    leader.wait_healthy()


def _freeze(trio: list[EtcdMember], writers: list[Writer]) -> None:
    leader = leader_of(trio)
    leader.freeze()
    try:
        _all_go_on(writers)
    finally:
        leader.thaw()
    leader.wait_healthy()


def _compact(trio: list[EtcdMember], writers: list[Writer]) -> None:
    for member in trio:
        member.compact()
        _all_go_on(writers)


def _all_go_on(writers: list[Writer]) -> None:
    for writer in writers:
        writer.wait(2)


@pytest.mark.parametrize("faults", [[_kill, _compact], [_freeze, _compact]])
def test_four_nodes_survive_what_befalls_etcd(
    trio: list[EtcdMember], faults: list[Callable[[list[EtcdMember], list[Writer]], None]]
) -> None:
    urls = [one.url for one in trio]
    with closing(store_at(*urls)) as judge:
        world = World(judge).pools(
            pool("a", "10.0.0.0/24", blockSize=28), pool("b", "fd00::/120", blockSize=124)
        )
        writers = [Writer(number, urls) for number in range(WRITERS)]
        _all_go_on(writers)
        for fault in faults:
            fault(trio, writers)
        for writer in writers:
            writer.end()
        world.audit()
        client = world.client()
        promised = {handle: held for writer in writers for handle, held in writer.promised.items()}
        every = [address for held in promised.values() for address in held]
        assert len(set(every)) == len(every)
        for handle, addresses in promised.items():
            assert {str(one.address) for one in client.by_handle(handle)} == addresses
        assert world.allocated() == dict.fromkeys(promised, 2), "nothing leaked"
        for handle in promised:
            client.release(handle)
        assert world.allocated() == {}
        assert world.handles() == {}
        assert {(key.cidr, key.node) for key in world.affinities()} == {
            (block.cidr, block.node) for block in world.blocks()
        }
