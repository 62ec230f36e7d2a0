"""What Calico's own end-to-end tests of live migration ask, in the lab: metrics, the ToR, owners.

`README.md` beside this has the whole list, and where the rest of it is asked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from lab import control, names, seed
from lab.children import Child
from lab.cluster import until
from lab.measure import await_echo, guest_ips, start_stream, start_streams
from lab.objects import LabPod, LabVM, LabVMI
from lab.stream import StreamReport
from lab.tools import run
from tests.fakes.bird_lab import Watch
from tests.fakes.lab_settings import convergence
from tests.fakes.lab_tor import FOR_EVER, all_at, marked_by_community, move, two_moves_by_the_tor
from tests.fakes.lab_vms import EXT, assert_freed, running_vm, vm_name
from tests.fakes.running_lab import Lab, allocation, assert_settled, target_of

pytestmark = pytest.mark.root
WAITS_S = 15
"""How long a target waits in vain in Calico's test."""
OURS = {4: "10.65.200.5", 6: "fd00:10:65::c805"}


@pytest.fixture
def streams(lab: Lab, vm: str) -> Iterator[dict[int, Child]]:
    """Connections to a VM from outside, by family; none of them breaks."""
    found = start_streams(lab.state, guest_ips(control.get(LabVMI, vm)))
    try:
        yield found
        for stream in found.values():
            report = StreamReport(**stream.ask())
            assert report.survived, report
    finally:
        for stream in found.values():
            stream.close()


def test_the_metric_is_the_sources_then_raised_on_the_target_then_normal_there_twice(
    lab: Lab, vm: str
) -> None:
    """Row 3: 1024 on the source, 512 on the target, 1024 on the target; and once more."""
    here = "node1"
    for there in ("node2", "node3"):
        assert all_at(vm, here, [names.METRIC_NORMAL])()
        with convergence(lab, there, FOR_EVER):
            move(vm, there)
            until(all_at(vm, there, [names.METRIC_ELEVATED]), "the target's is not raised")
            until(all_at(vm, here, []), "the source's is left")
        until(all_at(vm, there, [names.METRIC_NORMAL]), "the target's is not normal again")
        assert all_at(vm, here, [])()
        here = there


def test_a_target_that_waits_in_vain_has_no_route_and_leaves_the_owner_alone(
    lab: Lab, vm: str, streams: dict[int, Child]
) -> None:
    """Row 4: the migration runs out of time. Nothing but the source is the owner afterwards."""
    addresses = guest_ips(control.get(LabVMI, vm))
    with ExitStack() as stack:
        watches = [
            stack.enter_context(Watch(names.netns("node2"), ip_address(one)))
            for one in addresses.values()
        ]
        job = control.create_migration(vm, "node2", {names.ANNOTATION_COPY: "3600"})
        until(lambda: _alternate(lab, addresses[4]) == "node2", "the target is no owner in waiting")
        time.sleep(WAITS_S)
        assert [watch.drain() for watch in watches] == [[], []]
        target = target_of(job)
        assert target is not None
        control.delete(LabPod, target.metadata.name, force=True)
        assert control.await_migration(job.metadata.name, print).status.phase == "Failed"
        for address in addresses.values():
            assert_settled(lab, vm, address)
        assert [watch.drain() for watch in watches] == [[], []]
    assert control.get(LabVMI, vm).status.node_name == "node1"


def _alternate(lab: Lab, address: str) -> str:
    found = allocation(lab, address)
    return found.alternate.get("node", "") if found is not None else ""


@pytest.fixture
def marked(lab: Lab) -> Iterator[None]:
    with marked_by_community(lab):
        yield


@pytest.mark.usefixtures("marked")
def test_the_tor_prefers_what_is_marked_as_raised_and_only_as_long(
    lab: Lab, vm: str, streams: dict[int, Child]
) -> None:
    """Row 6: the block's route from the start, the host route raised and marked, then as others."""
    two_moves_by_the_tor(lab, vm, ("node2", "node3"))


@pytest.fixture
def fixed(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """A VM on node1 that asks for its addresses, in no node's block."""
    name = vm_name(request.node.name)
    body = seed.vm_body(name, "default", "node1", {})
    asked = json.dumps(list(OURS.values()))
    body["spec"]["template"]["metadata"]["annotations"]["cni.projectcalico.org/ipAddrs"] = asked
    control.with_client(lambda api: api.create(LabVM, body))
    control.await_vm(name)
    yield name
    lab.cli("vm", "delete", name)
    assert_freed(lab, name, OURS.values())


def test_addresses_that_a_vm_asks_for_are_its_own_through_moves_and_a_reboot(
    lab: Lab, fixed: str
) -> None:
    """Row 7f: `cni.projectcalico.org/ipAddrs`, which the target's pod asks for, too."""
    assert guest_ips(control.get(LabVMI, fixed)) == OURS
    connections = start_streams(lab.state, OURS)
    for node in ("node2", "node3", "node1"):
        job = control.create_migration(fixed, node)
        assert control.await_migration(job.metadata.name, print).status.phase == "Succeeded"
        assert guest_ips(control.get(LabVMI, fixed)) == OURS
        for address in OURS.values():
            assert_settled(lab, fixed, address)
    for stream in connections.values():
        report = StreamReport(**stream.ask())
        assert report.survived, report
        stream.close()
    lab.cli("vm", "restart", fixed)
    assert guest_ips(control.get(LabVMI, fixed)) == OURS
    for address in OURS.values():
        assert_settled(lab, fixed, address)
        await_echo(address, EXT)


def neighbours(netns: str, version: int) -> dict[str, str]:
    """A guest's gateway in a family → its MAC, as the guest knows it."""
    default = json.loads(run(["ip", "-n", netns, "-j", f"-{version}", "route", "show", "default"]))
    known = json.loads(run(["ip", "-n", netns, "-j", "neigh", "show", "dev", "eth0"]))
    gateways = {one["gateway"] for one in default}
    return {one["dst"]: one["lladdr"] for one in known if one["dst"] in gateways}


def test_a_guests_gateway_is_the_same_on_three_nodes_and_never_asked_for_again(
    lab: Lab, vm: str, streams: dict[int, Child]
) -> None:
    """What the guest has cached is nailed down: a gateway with another MAC would be no gateway."""
    vmi = control.get(LabVMI, vm)
    netns = names.guest_netns(vm, vmi.metadata.uid)
    for version in names.FAMILIES:
        ((gateway, mac),) = neighbours(netns, version).items()
        words = ["neigh", "replace", gateway, "lladdr", mac, "dev", "eth0", "nud", "permanent"]
        run(["ip", "-n", netns, *words])
    for node in ("node2", "node3", "node1"):
        move(vm, node)
        for address in guest_ips(vmi).values():
            await_echo(address, EXT)
            assert_settled(lab, vm, address)


SHARED = "long-" * 12 + "nam"
"""63 characters, all that a label's value may have."""


def test_vms_whose_names_share_63_characters_have_nothing_else_in_common(lab: Lab) -> None:
    """One moves and is deleted; routes, owner and connection of the other are as they were."""
    with running_vm(lab, f"{SHARED}e-of-one") as still, ExitStack() as stack:
        address = guest_ips(control.get(LabVMI, still))[4]
        stream = stack.enter_context(start_stream(lab.state, address))
        before = allocation(lab, address)
        with ExitStack() as watches, running_vm(lab, f"{SHARED}e-of-another") as moving:
            watch = watches.enter_context(Watch(names.netns("node1"), ip_address(address)))
            for node in ("node2", "node3"):
                move(moving, node)
                assert_settled(lab, moving, guest_ips(control.get(LabVMI, moving))[4])
            assert watch.drain() == []
        assert allocation(lab, address) == before
        assert_settled(lab, still, address)
        assert StreamReport(**stream.ask()).survived
