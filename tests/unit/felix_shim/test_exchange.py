"""Whose connections go where: decided by the reconciler's facts, told at once at the cut-over."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest

from felix_shim.cluster import NODES
from felix_shim.events import Listed
from felix_shim.exchange import Exchange, Permit, Wish
from felix_shim.model import EndpointId
from libtortie.model.keys import Kind
from tests.fakes.agent_world import (
    ADDRESS,
    NODE,
    VMI_UID,
    Bench,
    endpoint_record,
    instance,
    migration,
    resource_record,
)

VM = ip_address(ADDRESS)
POD = EndpointId("default", "launcher")
OTHER, OTHER_ADDRESS = "n2", IPv4Address("172.31.1.12")
WISH = Wish("m1", VMI_UID, (VM,), OTHER, OTHER_ADDRESS)
PERMIT = Permit(OTHER, VMI_UID, frozenset({VM}))


@dataclass
class Recorder:
    """What was told, newest last; `first` sees the metrics of routes at that moment."""

    bench: Bench
    told: list[Exchange] = field(default_factory=list)
    routes: list[list[int]] = field(default_factory=list)

    def __call__(self, wanted: Exchange) -> None:
        self.told.append(wanted)
        self.routes.append(self.bench.metrics("launcher"))


def bench() -> tuple[Bench, Recorder]:
    made = Bench()
    recorder = Recorder(made)
    object.__setattr__(made.reconciler._chores.out, "exchange", recorder)
    return made, recorder


def node(name: str, address: str) -> Any:
    return resource_record(Kind.NODE, name, {"bgp": {"ipv4Address": f"{address}/24"}})


def told_nodes(made: Bench) -> None:
    made.tell(Listed(NODES, (node(NODE, "172.31.1.2"), node(OTHER, str(OTHER_ADDRESS)))))


def target(*objects: Any) -> tuple[Bench, Recorder]:
    """A node to which VM and migration m1 are on their way."""
    made, recorder = bench()
    record = endpoint_record("launcher", migration="m1")
    made.add_veth("launcher")
    made.start(record, objects=objects or (migration("m1"), instance(OTHER)))
    told_nodes(made)
    return made, recorder


def test_a_target_wants_the_connections_of_the_node_where_the_vm_runs() -> None:
    _, recorder = target()
    assert recorder.told[-1] == Exchange(wishes={POD: WISH})


@pytest.mark.parametrize(
    ("own", "theirs", "wanted"),
    [
        (("172.31.1.2", "fd31::2"), ("172.31.1.12", "fd31::12"), "172.31.1.12"),
        (("", "fd31::2"), ("172.31.1.12", "fd31::12"), "fd31::12"),
        (("172.31.1.2", "fd31::2"), ("", "fd31::12"), "fd31::12"),
        (("172.31.1.2", ""), ("", "fd31::12"), ""),
    ],
)
def test_a_node_is_reached_in_a_family_that_both_have(
    own: tuple[str, str], theirs: tuple[str, str], wanted: str
) -> None:
    made, recorder = target()
    made.tell(Listed(NODES, (dual(NODE, *own), dual(OTHER, *theirs))))
    address = recorder.told[-1].wishes[POD].source_address
    assert str(address or "") == wanted


def dual(name: str, four: str, six: str) -> Any:
    bgp = {"ipv4Address": four and f"{four}/24", "ipv6Address": six and f"{six}/64"}
    return resource_record(Kind.NODE, name, {"bgp": {k: v for k, v in bgp.items() if v}})


def test_the_migration_names_the_source_too() -> None:
    moving = migration("m1")
    moving = moving.model_copy(
        update={
            "status": moving.status.model_copy(
                update={
                    "migration_state": moving.status.migration_state.model_copy(
                        update={"source_node": OTHER}
                    )
                }
            )
        }
    )
    _, recorder = target(moving, instance(""))
    assert recorder.told[-1] == Exchange(wishes={POD: WISH})


def test_a_source_whose_address_is_unknown_is_named_when_it_is_known() -> None:
    made, recorder = bench()
    made.add_veth("launcher")
    objects = (migration("m1"), instance(OTHER))
    made.start(endpoint_record("launcher", migration="m1"), objects=objects)
    assert recorder.told[-1].wishes[POD].source_address is None
    told_nodes(made)
    assert recorder.told[-1].wishes[POD].source_address == OTHER_ADDRESS


def test_the_sign_is_told_at_once_and_after_the_route() -> None:
    made, recorder = target()
    before = len(recorder.told)
    made.sign("launcher")
    arrived = recorder.told[before].wishes[POD]
    assert arrived.arrived and arrived.source == OTHER
    assert recorder.routes[before] == [512]


def test_a_vm_that_is_at_home_is_nobodys_wish() -> None:
    made, recorder = bench()
    made.add_veth("launcher")
    made.start(endpoint_record("launcher"), objects=(instance(NODE),))
    told_nodes(made)
    assert recorder.told[-1] == Exchange()


def leaving(state: dict[str, str], phase: str = "Running", uid: str = VMI_UID) -> Exchange:
    """What the source tells while its VM is moved by m1."""
    made, recorder = bench()
    made.add_veth("launcher")
    vmi = instance(NODE, uid=uid, state={"migrationUid": "m1", **state})
    moving = migration("m1", phase, source="launcher")
    made.start(endpoint_record("launcher"), objects=(moving, vmi))
    return recorder.told[-1]


def test_the_target_node_may_have_them() -> None:
    assert leaving({"targetNode": OTHER}).permits == {"m1": PERMIT}


def test_just_after_the_end_it_still_may() -> None:
    assert leaving({"targetNode": OTHER}, "Succeeded").permits == {"m1": PERMIT}


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ({}, "Running"),
        ({"targetNode": NODE}, "Running"),
        ({"targetNode": OTHER}, "Failed"),
        ({"targetNode": OTHER, "migrationUid": "m0"}, "Running"),
    ],
)
def test_nobody_else_may(state: dict[str, str], phase: str) -> None:
    assert leaving(state, phase).permits == {}


def test_another_run_of_the_vm_gives_nothing_away() -> None:
    assert leaving({"targetNode": OTHER}, uid="another-run").permits == {}


def test_a_target_gives_nothing_of_its_own_migration_away() -> None:
    state = {"migrationUid": "m1", "targetNode": OTHER}
    _, recorder = target(migration("m1"), instance(OTHER, state=state))
    assert recorder.told[-1].permits == {}


def test_an_endpoint_that_goes_takes_its_wish_along() -> None:
    made, recorder = target()
    made.detach(endpoint_record("launcher", migration="m1"))
    assert recorder.told[-1] == Exchange()
