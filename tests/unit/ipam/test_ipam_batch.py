"""Operations that share a commit: each as if it were alone, or taken out of the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address

import pytest

from ipam import batch
from ipam.batch import Alone, Done, Operation, Raised
from ipam.client import AddressRequest, Allocation, IPAMClient
from ipam.pools import Lan
from ipam.witness import Question
from libtortie.datastore.port import Create
from libtortie.errors import Conflict, InvalidInput, NoFreeAddresses, OwnerMismatch, Unavailable
from libtortie.model.ipam import Handle
from libtortie.model.keys import HandleKey
from tests.fakes.faulty_store import Fault, FaultyStore, Killed
from tests.fakes.ipam_batches import Call, alone, captured, serve, together
from tests.fakes.ipam_world import World, plain_pod, pool, vm_pod

V4, BOTH = AddressRequest(), AddressRequest(ipv6=True)
TIMEOUT = 60.0


def add(handle: str, want: AddressRequest = V4) -> Call:
    return lambda client: client.assign(handle, plain_pod(handle), want)


def delete(handle: str) -> Call:
    return lambda client: client.release(handle)


def fix(handle: str, address: str) -> Call:
    want = AddressRequest(addresses=(ip_address(address),))
    return lambda client: client.assign(handle, plain_pod(handle), want)


class Shared:
    """A warm client of n1 and its store, with what was committed since."""

    def __init__(self, faults: tuple[Fault, ...] = (), cidr: str = "10.0.0.0/24") -> None:
        self.world = World().pools(pool("a", cidr), pool("b", "fd00::/64"))
        self.store = FaultyStore(self.world.store, (Fault.NONE, *faults))
        self.client: IPAMClient = self.world.client("n1", self.store)
        self.client.assign("first", plain_pod("first"), BOTH)
        self.store.commits.clear()

    def serve(self, *calls: Call) -> list[batch.Verdict]:
        return serve(self.client, *(captured(self.client, call) for call in calls))

    def together(self, *calls: Call) -> list[object]:
        results = together(self.client, *calls)
        self.world.audit()
        return results


def addresses(results: list[object]) -> list[str]:
    found = [one for result in results if isinstance(result, tuple) for one in result]
    return [str(one.address) for one in found if isinstance(one, Allocation)]


def freed(result: object) -> int:
    """How many addresses a release gave back."""
    assert isinstance(result, tuple)
    return len(result)


def test_operations_that_wait_together_are_one_commit() -> None:
    shared = Shared()
    results = shared.together(*(add(f"h{n}", BOTH) for n in range(10)), delete("first"))
    assert len(shared.store.commits) == 1
    assert len(set(addresses(results[:-1]))) == 20
    assert freed(results[-1]) == 2
    assert set(shared.world.handles()) == {f"h{n}" for n in range(10)}


def test_one_that_is_refused_is_taken_out_and_the_others_are_served() -> None:
    shared = Shared()
    (taken,) = shared.client.assign("taken", plain_pod("taken"), V4)
    results = shared.together(
        add("h1"), fix("h2", str(taken.address)), fix("h3", "192.0.2.1"), add("h4")
    )
    assert isinstance(results[1], OwnerMismatch)
    assert isinstance(results[2], InvalidInput)
    assert len(addresses([results[0], results[3]])) == 2
    assert shared.world.allocated() == {"first": 2, "taken": 1, "h1": 1, "h4": 1}


def test_half_of_a_refused_request_is_not_committed() -> None:
    """It had staged an IPv4 address when there was no IPv6 one."""
    world = World().pools(pool("a", "10.0.0.0/24"), pool("b", "fd00::/126", blockSize=126))
    client = world.client()
    for number in range(4):
        client.assign(f"f{number}", plain_pod(f"f{number}"), BOTH)
    results = together(client, add("h1"), add("h2", BOTH), add("h3"))
    assert isinstance(results[1], NoFreeAddresses)
    assert world.allocated()["h2"] == 0
    assert "h2" not in world.handles()
    assert len(addresses(results)) == 2
    world.audit()


def test_a_claim_of_a_refused_request_is_made_by_the_next_that_needs_it() -> None:
    """It had claimed an IPv4 block when there was no IPv6 address."""
    world = World().pools(
        pool("a", "10.0.0.0/24", blockSize=30), pool("b", "fd00::/126", blockSize=126)
    )
    store = FaultyStore(world.store)
    client = world.client("n1", store)
    for number in range(4):
        client.assign(f"f{number}", plain_pod(f"f{number}"), BOTH)
    store.commits.clear()
    results = together(client, add("h1", BOTH), add("h2"), add("h3"))
    assert isinstance(results[0], NoFreeAddresses)
    assert len(set(addresses(results))) == 2
    assert len(world.blocks()) == 3
    assert len(store.commits) == 1
    world.audit()


def test_nothing_to_do_is_no_answer_of_a_batch() -> None:
    """What is remembered says that there is nothing to do, and no commit would say otherwise."""
    shared = Shared()
    shared.world.client("n2").release("first")
    results = shared.together(add("x"), add("first", BOTH))
    assert len(addresses(results)) == 3
    assert shared.world.client().by_handle("first") == results[1]


def test_a_preparation_is_taken_out() -> None:
    shared = Shared()
    held = shared.world.handles()["first"].blocks
    lies = {cidr: count + 1 for cidr, count in held.items()}
    shared.world.put(HandleKey("first"), Handle(blocks=lies))
    results = shared.together(add("h1"), delete("first"), add("h2"))
    assert len(addresses([results[0], results[2]])) == 2
    assert freed(results[1]) == 2
    assert set(shared.world.handles()) == {"h1", "h2"}


def test_a_question_is_asked_by_its_caller_with_nothing_held() -> None:
    shared = Shared()
    old = plain_pod("web", container="old", uid="u1")
    want = AddressRequest(addresses=(ip_address("10.0.0.9"),))
    shared.client.assign("old", old, want)
    asked: list[bool] = []

    def gone(_: object) -> bool:
        asked.append(shared.client._lock.locked())
        return True

    def again(client: IPAMClient) -> object:
        new = plain_pod("web", container="new", uid="u2")
        return client.assign("new", new, want, previous_owner_gone=gone)

    verdicts = shared.serve(add("h1"), again, add("h2"))
    assert isinstance(verdicts[1], Raised)
    assert isinstance(verdicts[1].error, Question)
    assert [type(one) for one in (verdicts[0], verdicts[2])] == [Done, Done]
    results = shared.together(add("h3"), again, add("h4"))
    assert addresses([results[1]]) == ["10.0.0.9"]
    assert asked == [False]


def test_a_conflict_is_decided_again_on_fresh_reads_by_all_at_once() -> None:
    shared = Shared()
    shared.world.client("n1").assign("behind its back", plain_pod("b"), V4)
    results = shared.together(*(add(f"h{n}") for n in range(5)))
    assert len(set(addresses(results))) == 5
    assert len(shared.store.commits) == 2


def test_a_conflict_of_fresh_reads_sends_everybody_on_alone() -> None:
    shared = Shared((Fault.CONFLICT, Fault.CONFLICT))
    verdicts = shared.serve(add("h1"), add("h2"))
    assert alone(verdicts) == [True, True]
    assert shared.world.allocated() == {"first": 2}
    shared = Shared((Fault.CONFLICT, Fault.CONFLICT))
    assert len(addresses(shared.together(add("h1"), add("h2")))) == 2


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE_AFTER, Fault.UNAVAILABLE_BEFORE])
def test_each_finds_its_own_work_after_a_lost_reply(fault: Fault) -> None:
    shared = Shared((fault,))
    operations = [captured(shared.client, add(f"h{n}")) for n in range(3)]
    operations.append(captured(shared.client, delete("first")))
    verdicts = serve(shared.client, *operations)
    assert alone(verdicts) == [True] * 4
    assert all(one.progress.uncertain for one in operations)
    shared = Shared((fault,))
    results = shared.together(*(add(f"h{n}") for n in range(3)), delete("first"))
    assert len(set(addresses(results[:3]))) == 3
    assert freed(results[3]) == 2
    assert shared.world.allocated() == {f"h{n}": 1 for n in range(3)}


def test_a_caller_that_gives_up_after_a_lost_reply_takes_its_own_back_only() -> None:
    shared = Shared((Fault.UNAVAILABLE_AFTER, *(Fault.UNAVAILABLE_BEFORE,) * 4))
    calls: list[Call] = [add("h1"), add("h2")]
    operations = [captured(shared.client, call) for call in calls]
    verdicts = serve(shared.client, *operations)
    job = operations[0].decide.__self__  # type: ignore[attr-defined]  # the method of an Assignment
    shared.client._undo(job)
    assert alone(verdicts) == [True, True]
    assert shared.world.allocated() == {"first": 2, "h2": 1}
    shared.world.audit()


def test_made_and_removed_in_one_batch_must_have_been_absent() -> None:
    """Another node had stored the handle, in a block of its own: its address is not forgotten."""
    shared = Shared()
    (other,) = shared.world.client("n2").assign("h", plain_pod("h", node="n2"), V4)
    results = shared.together(add("h"), delete("h"))
    assert results[1] == (other.address,)
    assert shared.world.client().by_handle("h") == results[0]
    assert shared.world.allocated() == {"first": 2, "h": 1}


def test_one_handle_twice_gets_one_address() -> None:
    shared = Shared()
    results = shared.together(add("h"), add("h"))
    assert len(set(addresses(results))) == 1
    assert shared.world.allocated()["h"] == 1


def test_a_block_is_claimed_once_for_all_that_need_it() -> None:
    world = World().pools(pool("a", "10.0.0.0/24", blockSize=28))
    client = world.client()
    results = together(client, *(add(f"h{n}") for n in range(20)))
    assert len(set(addresses(results))) == 20
    assert len(world.blocks()) == 2
    world.audit()


def test_a_block_that_is_full_for_a_link_is_not_for_others() -> None:
    """Of four addresses a link has one for hosts: not its network's, router's and broadcast."""
    world = World().pools(pool("a", "10.0.0.0/29", blockSize=30))
    client = world.client()
    for address in ("10.0.0.3", "10.0.0.7"):  # both blocks are the node's
        fix(address, address)(client)
    lan = AddressRequest(lan=Lan())
    wants = (lan, lan, V4, V4)
    results = together(client, *(add(f"h{n}", want) for n, want in enumerate(wants)))
    assert addresses(results) == ["10.0.0.2", "10.0.0.6", "10.0.0.0", "10.0.0.1"]
    (refused,) = together(client, add("h4", lan))
    assert isinstance(refused, NoFreeAddresses)
    world.audit()


def test_no_commit_has_more_operations_than_etcd_takes() -> None:
    """Each has blocks of its own here, in both families: what does not fit is served after."""
    world = World().pools(
        pool("a", "10.0.0.0/24", blockSize=32), pool("b", "fd00::/120", blockSize=128)
    )
    world.config(max_blocks_per_host=256)
    store = FaultyStore(world.store)
    client = world.client("n1", store)
    names = [f"h{number}" for number in range(batch.MOST_OPERATIONS)]
    for work in (add, delete, add, delete):
        calls = [add(name, BOTH) if work is add else delete(name) for name in names]
        results = together(client, *calls)
        assert all(isinstance(one, tuple) and len(one) == 2 for one in results)
    sizes = [len(ops) for ops in store.commits]
    assert 2 * max(sizes) > batch.MOST_KEYS >= max(sizes)
    assert world.allocated() == {}
    world.audit()


def test_owners_of_a_vm_change_together_with_other_work() -> None:
    shared = Shared()
    shared.client.claim_vm("vm", vm_pod("src"), V4)
    target = vm_pod("dst", node="n2", vmim_uid="m")
    shared.store.commits.clear()
    results = shared.together(
        add("h"), lambda c: c.claim_vm_target("vm", target), lambda c: c.promote("vm", target)
    )
    assert len(shared.store.commits) == 1
    assert results[2] is True
    (owned,) = shared.world.client().by_handle("vm")
    assert owned.active["pod"] == "dst"


# -- the queue, with threads -------------------------------------------------------------------


def run_threads(works: list[Callable[[], object]]) -> list[object]:
    results: list[object] = [None] * len(works)

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    return results


class Gate:
    """Holds the first commit until so many operations wait behind it."""

    def __init__(self, shared: Shared, waiting: int) -> None:
        self._batches, self._waiting = shared.client._batches, waiting
        self.entered = threading.Event()
        shared.store.before_commit = self

    def __call__(self, _: object) -> None:
        assert self._batches is not None
        if self.entered.is_set():
            return
        self.entered.set()
        tick = threading.Event()
        for _ in range(int(TIMEOUT / 0.001)):
            if len(self._batches._waiting) >= self._waiting:
                return
            tick.wait(0.001)
        raise AssertionError("they did not come")


def test_whoever_comes_during_a_commit_shares_the_next_one() -> None:
    shared = Shared()
    Gate(shared, 15)
    results = run_threads([partial(add(f"h{n}"), shared.client) for n in range(16)])
    assert len(set(addresses(results))) == 16
    assert len(shared.store.commits) == 2
    shared.world.audit()


def test_the_others_go_on_when_the_leader_is_killed() -> None:
    shared = Shared((Fault.KILLED_AFTER,))
    Gate(shared, 7)
    results = run_threads([partial(add(f"h{n}"), shared.client) for n in range(8)])
    assert [type(one) for one in results].count(Killed) == 1
    assert len(set(addresses(results))) == 7
    shared.world.audit()
    assert add("afterwards")(shared.client)


def test_those_in_the_batch_of_a_killed_leader_find_what_was_done() -> None:
    shared = Shared((Fault.NONE, Fault.KILLED_AFTER))
    Gate(shared, 7)
    results = run_threads([partial(add(f"h{n}"), shared.client) for n in range(8)])
    assert [type(one) for one in results].count(Killed) == 1
    assert len(set(addresses(results))) == 7
    assert shared.world.allocated() == {"first": 2} | {f"h{n}": 1 for n in range(8)}
    shared.world.audit()


def test_who_is_by_himself_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "LINGER", 10 * TIMEOUT)
    shared = Shared()

    def work() -> object:
        for number in range(10):
            add(f"h{number}")(shared.client)
            delete(f"h{number}")(shared.client)
        return "done"

    assert run_threads([work]) == ["done"]


def test_a_crowd_that_returns_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: else those being served and those that come meanwhile would take turns."""
    monkeypatch.setattr(batch, "LINGER", 10 * TIMEOUT)
    shared = Shared()
    gate = Gate(shared, 3)

    def work(name: str, count: int) -> object:
        for number in range(count):
            add(f"{name}-{number}")(shared.client)
        return "done"

    def others(name: str) -> object:
        assert gate.entered.wait(TIMEOUT)
        return work(name, 10)

    crowd: list[Callable[[], object]] = [lambda: work("early", 11)]
    crowd += [partial(others, f"w{n}") for n in range(3)]
    assert run_threads(crowd) == ["done"] * 4
    made = [sum(isinstance(op, Create) for op in ops) for ops in shared.store.commits]
    assert made == [1, *[4] * 10]


def test_what_a_batch_raises_is_what_its_caller_would_get() -> None:
    shared = Shared()
    for error, kind in ((Conflict("c"), Alone), (Unavailable("u"), Alone), (KeyError(), Raised)):

        def decide(_: object, error: Exception = error) -> object:
            raise error

        operation = captured(shared.client, add("h"))
        broken: Operation[object] = Operation("broken", operation.reads, decide)
        verdicts = serve(shared.client, broken, captured(shared.client, add(f"ok {error}")))
        assert [type(one) for one in verdicts] == [kind, Done]
