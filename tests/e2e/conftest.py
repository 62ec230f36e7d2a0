"""A lab for all tests of a file, and a VM for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.lab_vms import running_vm, vm_name
from tests.fakes.running_lab import Lab, lab_up


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three nodes whose raised routes last a second."""
    with lab_up(tmp_path_factory.mktemp("lab") / "state", 1.0) as found:
        yield found


@pytest.fixture
def vm(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """A running VM on node1, named after its test; afterwards nothing of it is left."""
    with running_vm(lab, vm_name(request.node.name)) as name:
        yield name
