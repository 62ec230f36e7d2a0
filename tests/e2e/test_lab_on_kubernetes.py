"""The lab with all its data in its own API server: a VM is made, moved, rebooted and deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import control
from lab.cluster import until
from lab.measure import await_echo
from lab.objects import LabVMI
from tests.fakes.lab_vms import EXT, address_of, running_vm
from tests.fakes.running_lab import Lab, allocation, lab_up, metrics

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("lab") / "state"
    with lab_up(root, 1.0, "--datastore", "kubernetes") as found:
        yield found


def test_a_vm_keeps_its_address(lab: Lab) -> None:
    assert not lab.state.database.exists()
    with running_vm(lab, "db") as vm:
        address = address_of(vm)
        await_echo(address, EXT)
        lab.cli("migrate", vm, "--to", "node2")
        assert address_of(vm) == address
        await_echo(address, EXT)
        held = allocation(lab, address)
        assert held is not None
        assert held.active["node"] == "node2"
        assert (held.handle_id or "").endswith(f".vmi.default.{vm}")
        until(lambda: metrics("node2", address) == [1024], "the route is not normal again")
        lab.cli("vm", "restart", vm)
        until(lambda: control.get(LabVMI, vm).status.phase == "Running", "it does not run again")
        assert address_of(vm) == address
        await_echo(address, EXT)
