"""A real agent and API server: a VM that was stopped and is deleted gives its addresses back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.kube.objects import KubeNode, VirtualMachine
from libtortie.model.keys import Kind, ResourceKey
from tests.fakes.agent_world import NODE
from tests.fakes.fresh_names import fresh_name
from tests.fakes.ipam_world import pool
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root
HANDLE = "k8s-pod-network.vmi.default.web"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with a short grace and a VM that is stopped."""
    made = NodeProcess(tmp_path, fresh_name("gc"), api=True, vm_gone_grace_seconds=1.0)
    try:
        key = ResourceKey(Kind.IP_POOL, "test")
        made.store.create(key, pool("test", "10.65.0.0/24"))
        made.kube(lambda client: client.create(KubeNode, {"metadata": {"name": NODE}}))
        body = {"metadata": {"name": "web", "namespace": "default"}, "spec": {}}
        vm = made.kube(lambda client: client.create(VirtualMachine, body))
        stop_vm(made, vm.metadata.uid)
        yield made
    finally:
        made.close()


def ipam(node: NodeProcess) -> IPAMClient:
    return IPAMClient(node.store, NODE, now=lambda: datetime.now(UTC))


def stop_vm(node: NodeProcess, uid: str) -> None:
    """The VM ran once on this node."""
    owner = pod_owner(
        namespace="default",
        pod="virt-launcher-web-1",
        node=NODE,
        timestamp=datetime.now(UTC),
        container_id="c1",
        pod_uid="u1",
        vmi_name="web",
        vmi_uid="i1",
        vm_uid=uid,
    )
    ipam(node).claim_vm(HANDLE, owner, AddressRequest())
    ipam(node).disown_vm(HANDLE, owner, vm_deleting=False)


def delete_vm(node: NodeProcess) -> None:
    node.kube(lambda client: client.delete(VirtualMachine, "web", "default"))


def freed(node: NodeProcess) -> None:
    until("the address is free", lambda: not ipam(node).by_handle(HANDLE))
    until("the log says so", lambda: node.lines("vm_address_freed"))
    (line,) = node.lines("vm_address_freed")
    assert line["handle_id"] == HANDLE
    (address,) = line["addresses"]
    assert ipam(node).owner_of(ip_address(address)) is None
    assert "VirtualMachine default/web with UID" in line["reason"]


def test_the_deletion_of_a_stopped_vm_frees_its_address(node: NodeProcess) -> None:
    node.start()
    assert ipam(node).by_handle(HANDLE)
    delete_vm(node)
    freed(node)
    assert node.stop() == 0


def test_a_deletion_while_the_agent_was_away(node: NodeProcess) -> None:
    node.start()
    node.stop(signal.SIGKILL)
    delete_vm(node)
    assert ipam(node).by_handle(HANDLE)
    node.start()
    freed(node)
