"""The lab with its pool in the VXLAN overlay: a VM moves, and no connection to it breaks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab import control, names
from lab.cluster import until
from lab.measure import await_echo, start_stream
from lab.objects import LabPod
from lab.stream import StreamReport
from tests.fakes.lab_vms import EXT, address_of, running_vm
from tests.fakes.running_lab import Lab, active_launcher, allocation, lab_up, metrics

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("lab") / "state"
    with lab_up(root, 1.0, "--vxlan", "Always") as found:
        yield found


def way_to(address: str, node: str) -> str:
    """How a node gets to an address."""
    command = ["ip", "-n", names.netns(node), "route", "get", address]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def client_on(lab: Lab, node: str) -> str:
    """The namespace of a pod on a node."""
    name = f"client-{node}"
    lab.cli("pod", "create", name, "--node", node)
    return names.pod_netns(name, control.get(LabPod, name).metadata.uid)


def await_settled(address: str, there: str) -> None:
    """The VM is on a node alone, and the tunnel leads the others to it."""
    others = sorted({"node1", "node2", "node3"} - {there})

    def settled() -> bool:
        led = all("dev vxlan.calico" in way_to(address, node) for node in others)
        return led and metrics(there, address) == [names.METRIC_NORMAL]

    until(settled, f"the overlay does not lead {others} to {there}")


def test_a_vm_moves_there_and_back(lab: Lab) -> None:
    with running_vm(lab, "moved") as vm, ExitStack() as stack:
        address = address_of(vm)
        stack.callback(lab.kubectl, "delete", "pod", "client-node3")
        client = client_on(lab, "node3")
        await_echo(address, EXT)
        await_echo(address, client)
        until(lambda: "dev vxlan.calico" in way_to(address, "node3"), "it goes another way")
        streams = [start_stream(lab.state, address, place) for place in ("", client)]
        for stream in streams:
            stack.callback(stream.close)
        for there in ("node2", "node3", "node1"):
            lab.cli("migrate", vm, "--to", there)
            await_settled(address, there)
            assert address_of(vm) == address
            await_echo(address, EXT)
            await_echo(address, client)
        held = allocation(lab, address)
        assert held is not None
        assert held.active["pod"] == active_launcher(vm).metadata.name
        assert [StreamReport(**stream.ask()).survived for stream in streams] == [True, True]
