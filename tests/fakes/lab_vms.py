"""VMs of a running lab: named after their test, created, and gone without a trace."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from lab import control, names
from lab.cluster import until
from lab.measure import guest_ip, guest_ips
from lab.objects import LabVMI
from tests.fakes.running_lab import Lab, allocation, everywhere, traces

EXT = names.netns(names.EXT)


def vm_name(test: str) -> str:
    """A name for a test's VM, the same in every run."""
    return f"vm-{zlib.crc32(test.encode()):08x}"


def address_of(vm: str) -> str:
    """The address of a VM that runs."""
    return guest_ip(control.get(LabVMI, vm))


@contextmanager
def running_vm(lab: Lab, name: str) -> Iterator[str]:
    """A VM on node1; afterwards nothing of it is left."""
    lab.cli("vm", "create", name, "--node", "node1")
    addresses = guest_ips(control.get(LabVMI, name)).values()
    yield name
    lab.cli("vm", "delete", name)
    assert_freed(lab, name, addresses)


def assert_freed(lab: Lab, name: str, addresses: Iterable[str]) -> None:
    """Nothing of a deleted VM is left, and its addresses are free."""
    until(lambda: not traces(lab, name), f"something of {name} is left")
    for address in addresses:
        until(partial(_is_free, lab, address), f"{address} is not free")
        until(partial(_leads_nowhere, address), f"routes to {address} are left")


def _is_free(lab: Lab, address: str) -> bool:
    return allocation(lab, address) is None


def _leads_nowhere(address: str) -> bool:
    return not everywhere(address)
