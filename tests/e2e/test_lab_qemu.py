"""VMs of the lab that are QEMU machines: moved over QMP, called off, and killed.

One VM serves all tests of this file, each of which leaves it running somewhere. What it was is told
by itself: it counts on its serial line, and with it the sum of random bytes in its memory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab import control, names
from lab.children import Child
from lab.cluster import CONTROL_PLANE, start_daemon, until
from lab.cutover import report_from_json
from lab.measure import await_echo, guest_ip, guest_ips, start_streams
from lab.objects import LabMigration, LabPod, LabVMI
from lab.qemu_guest import Tick, parse_ticks
from lab.qemu_process import running
from lab.stream import StreamReport
from tests.fakes.lab_tor import marked_by_community, two_moves_by_the_tor
from tests.fakes.lab_vms import EXT, running_vm
from tests.fakes.running_lab import Lab, active_launcher, assert_settled, lab_up, target_of

pytestmark = pytest.mark.root
VM = "qemu"
NODES = ("node1", "node2", "node3")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("lab") / "state"
    with lab_up(root, 1.0, "--guest", "qemu") as found:
        yield found


@pytest.fixture(scope="module")
def address(lab: Lab) -> Iterator[str]:
    """Of the VM; afterwards there is no QEMU, and no file of one."""
    with running_vm(lab, VM):
        yield guest_ip(control.get(LabVMI, VM))
    assert list(lab.state.guests.iterdir()) == []
    left = [one.name for one in lab.state.ledger.alive()]
    assert not [name for name in left if name.startswith(("qemu", "cut-over"))]


def qemu_of(lab: Lab, pod: LabPod) -> Path:
    """The directory of the QEMU in a pod."""
    (found,) = lab.state.guests.glob(f"*/{pod.metadata.uid[:8]}")
    return found


def ticks(lab: Lab) -> tuple[Tick, ...]:
    """What the guest has said where it runs."""
    serial = qemu_of(lab, active_launcher(VM)) / "serial"
    return parse_ticks(serial.read_text(errors="replace"))


def counted(lab: Lab, after: int) -> Tick:
    """Its line once it has counted on."""
    until(lambda: any(one.count > after for one in ticks(lab)), "it does not count on")
    return ticks(lab)[-1]


def elsewhere() -> tuple[str, str]:
    """The node the VM is on, and another."""
    here = control.get(LabVMI, VM).status.node_name
    return here, next(node for node in NODES if node != here)


def kill(lab: Lab, pod: LabPod) -> None:
    """SIGKILL for the QEMU in a pod."""
    found = running(qemu_of(lab, pod))
    assert found is not None
    os.kill(found.pid, signal.SIGKILL)


def held(lab: Lab, status: str) -> LabMigration:
    """A migration that stays in a status of QEMU's, once it is in it."""
    log = lab.state.logs / "daemon.log"
    words = f"guest held on its way: {status}"
    before = log.read_text().count(words)
    job = control.create_migration(VM, elsewhere()[1], {names.ANNOTATION_HOLD_MOVE: status})
    until(lambda: log.read_text().count(words) > before, f"the migration does not get to {status}")
    return job


@contextmanager
def connections(lab: Lab, address: str) -> Iterator[list[Child]]:
    """TCP from outside the cluster and from a pod on every node; none breaks meanwhile."""
    with ExitStack() as stack:
        addresses = guest_ips(control.get(LabVMI, VM))
        assert addresses[4] == address
        streams: list[Child] = []

        def connect(netns: str) -> None:
            for one in addresses.values():
                await_echo(one, netns)
            for stream in start_streams(lab.state, addresses, netns).values():
                streams.append(stack.enter_context(stream))

        connect(names.netns(names.EXT))
        for node in NODES:
            name = f"client-{node}"
            control.create_pod(name, node)
            stack.callback(control.await_gone, LabPod, name)
            stack.callback(control.delete, LabPod, name)
            netns = names.pod_netns(name, control.await_pod(name).metadata.uid)
            connect(netns)
        yield streams
        for stream in streams:
            outcome = StreamReport(**stream.ask())
            assert outcome.survived, outcome.error


def test_connections_live_through_a_move_and_the_way_back(lab: Lab, address: str) -> None:
    """Row 1: clients on other nodes than the VM's, and on its own, and outside the cluster."""
    before = counted(lab, 6)
    with connections(lab, address):
        for _ in range(2):
            lab.cli("migrate", VM, "--to", elsewhere()[1])
            assert_settled(lab, VM, address)
            last = max(
                (one for one in control.listing(LabMigration) if one.final),
                key=lambda one: one.status.migration_state.end_timestamp or "",
            )
            report = report_from_json(last.metadata.annotations[names.ANNOTATION_CUTOVER])
            assert report.plugged_ns > report.unplugged_ns > 0
            assert report.qemu_total_ms
            assert report.qemu_downtime_ms is not None
    after = counted(lab, before.count + 6)
    assert after.witness == before.witness
    assert after.uptime > before.uptime


def test_connections_live_while_the_tor_goes_by_communities(lab: Lab, address: str) -> None:
    """Row 2: eBGP to the ToR, which prefers what a BGPFilter marks as raised, and only as long."""
    here, _ = elsewhere()
    with connections(lab, address), marked_by_community(lab):
        first, second = (node for node in NODES if node != here)
        two_moves_by_the_tor(lab, VM, (first, second))
        assert_settled(lab, VM, address)


def test_a_target_that_is_killed_while_memory_moves(lab: Lab, address: str) -> None:
    """The migration fails, the guest goes on where it is, and the next migration works."""
    vmi = control.get(LabVMI, VM)
    before = counted(lab, 0)
    with connections(lab, address):
        job = held(lab, "active")
        target = target_of(job)
        assert target is not None
        kill(lab, target)
        over = control.await_migration(job.metadata.name, print)
        assert over.status.phase == "Failed"
        assert_settled(lab, VM, address)
        assert control.get(LabVMI, VM).status.node_name == vmi.status.node_name
        counted(lab, before.count)
        lab.cli("migrate", VM, "--to", elsewhere()[1])
        assert_settled(lab, VM, address)
    assert control.get(LabVMI, VM).metadata.uid == vmi.metadata.uid


@pytest.mark.parametrize("status", ["active", "pre-switchover"])
def test_a_migration_that_is_deleted_while_qemu_works(lab: Lab, address: str, status: str) -> None:
    vmi, before = control.get(LabVMI, VM), counted(lab, 0)
    job = held(lab, status)
    control.delete(LabMigration, job.metadata.name)
    control.await_gone(LabMigration, job.metadata.name)
    state = control.get(LabVMI, VM).status.migration_state
    assert state.abort_requested
    assert state.abort_status == "Succeeded"
    assert_settled(lab, VM, address)
    assert control.get(LabVMI, VM).status.node_name == vmi.status.node_name
    counted(lab, before.count)
    await_echo(address, EXT)


def test_a_control_plane_that_is_killed_while_qemu_works(lab: Lab, address: str) -> None:
    """The guest is paused then: whoever comes next finds it and lets it go on."""
    vmi, before = control.get(LabVMI, VM), counted(lab, 0)
    job = held(lab, "pre-switchover")
    daemon = next(one for one in lab.state.ledger.alive() if one.name == CONTROL_PLANE)
    os.kill(daemon.pid, signal.SIGKILL)
    until(lambda: daemon not in lab.state.ledger.alive(), "it does not die")
    start_daemon(lab.state, len(NODES))
    assert control.await_migration(job.metadata.name, print).status.phase == "Failed"
    assert_settled(lab, VM, address)
    assert control.get(LabVMI, VM).metadata.uid == vmi.metadata.uid
    counted(lab, before.count)
    await_echo(address, EXT)


def test_a_guest_whose_qemu_is_killed_on_its_way_begins_anew(lab: Lab, address: str) -> None:
    """Its address stays."""
    before, source = control.get(LabVMI, VM), active_launcher(VM)
    job = held(lab, "pre-switchover")
    kill(lab, source)
    control.delete(LabMigration, job.metadata.name)
    after = control.await_vm(VM, besides=before.metadata.uid)
    assert guest_ip(after) == address
    until(lambda: target_of(job) is None, "the target pod is left")
    assert_settled(lab, VM, address)
    await_echo(address, EXT)
