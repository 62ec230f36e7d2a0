"""Whoever gets an address begins without the connections of who had it before."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import ip_address

import pytest

from felix_shim.desired import speaks_of, status_body
from felix_shim.drivers.newcomers import Newcomers
from felix_shim.model import Endpoint, EndpointId, VMRef
from felix_shim.policy import PolicySet
from libtortie.errors import KernelError
from libtortie.linux.flows import UDP, Flow, FlowTuple
from libtortie.model.ipam import IPAddress
from tests.fakes.agent_world import Bench, RecordingLog, endpoint_record
from tests.fakes.conntrack import FakeTable

MINE, OTHERS, FAR = (ip_address(one) for one in ("10.65.0.2", "10.65.0.3", "192.0.2.1"))


def endpoint(pod: str = "a", container: str = "c1", *addresses: IPAddress) -> Endpoint:
    return Endpoint(
        EndpointId("default", pod),
        "k8s",
        f"default/{pod}",
        f"cali{pod}",
        "02:00:00:00:00:01",
        addresses or (MINE,),
        container,
    )


def old_flow(address: IPAddress) -> Flow:
    one = FlowTuple(FAR, address, UDP, 1, 2)
    return Flow(one, one.inverse(), 100)


@dataclass
class Node:
    """A table with one old flow of each address."""

    known: list[Endpoint] = field(default_factory=list)
    table: FakeTable = field(default_factory=FakeTable)
    newcomers: Newcomers = field(init=False)

    def __post_init__(self) -> None:
        self.fill()
        self.newcomers = Newcomers(self.table, lambda one: one in self.known, RecordingLog())

    def fill(self) -> None:
        for address in (MINE, OTHERS):
            self.table.entries[old_flow(address).original] = old_flow(address)

    def left(self) -> set[IPAddress]:
        return {flow.original.destination for flow in self.table.entries.values()}


def test_a_new_pod_begins_without_old_connections() -> None:
    node = Node()
    node.newcomers.welcome((endpoint(),))
    assert node.left() == {OTHERS}


def test_its_own_connections_are_its_own() -> None:
    node = Node()
    node.newcomers.welcome((endpoint(),))
    node.fill()
    node.newcomers.welcome((endpoint(), endpoint("b", "c2", OTHERS)))
    assert node.left() == {MINE}


def test_a_pod_that_an_earlier_run_served_keeps_its_connections() -> None:
    node = Node(known=[endpoint()])
    node.newcomers.welcome((endpoint(),))
    assert node.left() == {MINE, OTHERS}


def test_a_migrations_target_keeps_what_its_vm_has() -> None:
    node = Node()
    node.newcomers.welcome((replace(endpoint(), migration_uid="m1"),))
    assert node.left() == {MINE, OTHERS}


@pytest.mark.parametrize(
    "after", [endpoint("a", "c2"), endpoint("b", "c2"), endpoint("a", "c1", MINE, OTHERS)]
)
def test_another_sandbox_or_address_is_new(after: Endpoint) -> None:
    node = Node()
    node.newcomers.welcome((endpoint(),))
    node.fill()
    node.newcomers.welcome((after,))
    gone = set(after.addresses) - ({MINE} if after.container_id == "c1" else set())
    assert node.left() == {MINE, OTHERS} - gone


def test_one_that_went_and_came_is_new() -> None:
    node = Node()
    node.newcomers.welcome((endpoint(),))
    node.newcomers.welcome(())
    node.fill()
    node.newcomers.welcome((endpoint(),))
    assert node.left() == {OTHERS}


def test_a_departed_vm_keeps_what_its_node_knows() -> None:
    """Its DEL must not take away the connections of this node's other pods with it."""
    node = Node()
    node.newcomers.welcome((endpoint(),))
    node.fill()
    node.newcomers.welcome(())
    assert node.left() == {MINE, OTHERS}


def test_what_could_not_be_forgotten_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()

    def broken(flow: Flow) -> bool:
        raise KernelError("busy")

    with monkeypatch.context() as patched:
        patched.setattr(node.table, "delete", broken)
        with pytest.raises(KernelError):
            node.newcomers.welcome((endpoint(),))
    node.newcomers.welcome((endpoint(),))
    assert node.left() == {OTHERS}


def test_rules_wait_for_the_forgetting_and_fail_closed() -> None:
    """The reconciler's order: first the old connections go, then the rules; else no status."""
    bench, order = Bench(), []

    def welcome(endpoints: tuple[Endpoint, ...]) -> None:
        order.append([one.id.pod for one in endpoints])
        if endpoints and len(order) < 4:
            raise KernelError("busy")
        assert not any(_programmed(rules) for rules in bench.rules) or len(order) > 4

    object.__setattr__(bench.reconciler._chores.out, "welcome", welcome)
    bench.start()
    bench.attach(endpoint_record("launcher"))
    assert bench.status == {} and not any(_programmed(one) for one in bench.rules)
    bench.advance(60.0)
    assert len(bench.status) == 1 and _programmed(bench.rules[-1])


def _programmed(rules: PolicySet) -> bool:
    return bool(rules.by_interface())


@pytest.mark.parametrize("addresses", [(MINE,), (MINE, ip_address("fd00::2"))])
def test_a_status_file_speaks_of_its_own_sandbox_only(addresses: tuple[IPAddress, ...]) -> None:
    one = endpoint("a", "c1", *addresses)
    body = status_body(one, 7)
    assert speaks_of(body, one)
    assert not speaks_of(body, replace(one, container_id="c2"))
    assert not speaks_of(body, replace(one, addresses=(OTHERS,)))
    for broken in ("", "[]", "{", "null", '{"ipv4Nets": 7}', '{"containerID": "c1"}'):
        assert not speaks_of(broken, one)


def test_an_endpoint_of_a_vm_that_starts_is_new_too() -> None:
    node = Node()
    vm = VMRef("default", "vm1", "uid", "handle")
    node.newcomers.welcome((replace(endpoint(), vm=vm),))
    assert node.left() == {OTHERS}
