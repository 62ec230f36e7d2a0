"""Questions of a decision: asked once, with nothing held; their failures are no conflicts."""

from __future__ import annotations

import pytest

from ipam.client import IPAMClient
from ipam.request import AddressRequest
from ipam.witness import Witness, answered
from libtortie.errors import OwnerMismatch, Unauthorized, Unavailable
from libtortie.model.ipam import Owner
from tests.fakes.faulty_store import Fault, FaultyStore
from tests.fakes.ipam_world import World, pool, vm_pod

HANDLE = "k8s-pod-network.vmi.shop.db"
V4 = AddressRequest()
FIRST, SECOND = vm_pod("first", node="n1"), vm_pod("second", node="n2")


def running() -> World:
    world = World().pools(pool("a", "10.0.0.0/24"))
    world.client("n1").claim_vm(HANDLE, FIRST, V4)
    return world


def test_each_owner_is_asked_about_once_however_many_attempts_there_are() -> None:
    world = running()
    asked: list[Owner] = []

    def dead(owner: Owner) -> bool:
        asked.append(owner)
        return False

    store = FaultyStore(world.store, [Fault.CONFLICT, Fault.UNAVAILABLE_BEFORE])
    world.client("n2", store).claim_vm(HANDLE, SECOND, V4, rival_lives=dead)
    assert asked == [FIRST]
    assert world.client().by_handle(HANDLE)[0].active == SECOND


def test_a_question_is_asked_without_the_lock() -> None:
    world = running()
    client = world.client("n2")
    seen: list[bool] = []

    def look(_: Owner) -> bool:
        seen.append(client._lock.locked())
        return False

    client.claim_vm(HANDLE, SECOND, V4, rival_lives=look)
    assert seen == [False]


@pytest.mark.parametrize("error", [Unavailable, Unauthorized])
@pytest.mark.parametrize("target", [False, True])
def test_what_the_outside_raises_is_raised_at_once(error: type[Exception], target: bool) -> None:
    world = running()
    world.client("n1").claim_vm_target(HANDLE, {**vm_pod("t1"), "vmim-uid": "m"})
    calls: list[Owner] = []

    def fails(owner: Owner) -> bool:
        calls.append(owner)
        raise error("no answer")

    client: IPAMClient = world.client("n2")
    with pytest.raises(error, match=r"^no answer$"):
        if target:
            client.claim_vm_target(HANDLE, {**SECOND, "vmim-uid": "m"}, rival_lives=fails)
        else:
            client.claim_vm(HANDLE, SECOND, V4, rival_lives=fails)
    assert len(calls) == 1
    assert world.client().by_handle(HANDLE)[0].active == FIRST


def test_an_answer_that_refuses_changes_nothing() -> None:
    world = running()
    with pytest.raises(OwnerMismatch, match="first, which is alive"):
        world.client("n2").claim_vm(HANDLE, SECOND, V4, rival_lives=lambda owner: True)
    assert world.client().by_handle(HANDLE)[0].active == FIRST


def test_two_witnesses_of_one_decision() -> None:
    one, two = Witness(lambda owner: True), Witness(lambda owner: False)
    assert answered(lambda: (one(FIRST), two(FIRST), two(SECOND)), one, two) == (True, False, False)


def test_seats_are_found_by_container_and_node_alone() -> None:
    world = running()
    target = {**SECOND, "vmim-uid": "m"}
    world.client("n2").claim_vm_target(HANDLE, target)
    assert world.client("n1").seats_of(FIRST["container-id"]) == ((HANDLE, FIRST),)
    assert world.client("n2").seats_of(SECOND["container-id"]) == ((HANDLE, target),)
    assert world.client("n2").seats_of(FIRST["container-id"]) == ()
    assert world.client("n1").seats_of("nobody") == ()
