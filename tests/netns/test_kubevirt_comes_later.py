"""KubeVirt's CRDs come after our agent, go while VMs run, and come back at another version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from libtortie.kube.objects import VirtualMachineInstanceMigration
from tests.fakes.called_node import HANDLE, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import Guest
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

GROUP = "kubevirt.io"
PLURALS = ("virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations")
FOLLOWED = {"VirtualMachineInstance", "VirtualMachineInstanceMigration"}
SOURCE, TARGET, RIVAL = (f"virt-launcher-db-{end}" for end in ("0", "b", "c"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CalledNode]:
    made = CalledNode(tmp_path, fresh_name("kl"))
    try:
        yield made
    finally:
        made.close()


def define(node: CalledNode, *versions: str) -> None:
    """Create or change the CRDs, as `kubectl apply` of KubeVirt's operator does."""
    api = node.server.api
    kind = api.kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    for plural in PLURALS:
        name = f"{plural}.{GROUP}"
        served = [{"name": version, "served": True, "storage": True} for version in versions]
        spec = {"group": GROUP, "names": {"plural": plural}, "versions": served}
        body: dict[str, Any] = {"metadata": {"name": name}, "spec": spec}
        if api.store.get(kind.resource, ("", name)) is None:
            api.create(kind, "", body)
        else:
            api.patch(kind, "", name, {"spec": spec})


def withdraw(node: CalledNode) -> None:
    """The kinds are not served any more; nobody says that their objects are gone."""
    define(node)


def synced(node: CalledNode) -> set[str]:
    return {str(line["kind"]) for line in node.lines("in_sync")}


def lost(node: CalledNode) -> int:
    """How often the agent said that it hears nothing of one of the kinds."""
    lines = node.lines("api_watch_lost")
    return sum(one["kind"] in PLURALS and "NotServed" in one["reason"] for one in lines)


def attach(node: CalledNode, stack: ExitStack, pod: str, container: str) -> tuple[Guest, str]:
    """ADD of a launcher; its guest, which has not spoken yet, and its address."""
    opened = len(node.lines("sniffer_open"))
    answer = node.done("ADD", pod, container)
    until("the agent listens", lambda: len(node.lines("sniffer_open")) > opened)
    guest = Guest(node, container, answer.address, answer.body["interfaces"][1]["mac"])
    stack.callback(guest.leave)
    return guest, answer.address


def say_target(node: CalledNode, pod: str) -> None:
    state = {"migrationUid": "vmim-m1", "sourcePod": SOURCE, "targetPod": pod}
    node.patch_status(VirtualMachineInstanceMigration, "m1", {"migrationState": state})


def test_an_agent_that_was_there_first_serves_vms_once_their_kinds_come(node: CalledNode) -> None:
    """Ordinary pods all the time; a migration's target as soon as the API can name it."""
    node.server.api.catalogue.hide(GROUP)
    node.start()
    until("it looks for both kinds", lambda: lost(node) >= len(FOLLOWED))
    node.world.put_pod("web")
    node.done("ADD", "web", "c0")
    node.world.put_launcher(SOURCE)
    early = node.call("ADD", SOURCE, "c1")
    assert (early.code, "does not serve VirtualMachineInstance" in early.body["msg"]) == (11, True)
    define(node, "v1")
    until("it hears of both", lambda: synced(node) == FOLLOWED)
    node.address = node.vm_elsewhere()
    node.world.put_migration("m1", phase="Running")
    node.world.put_launcher(TARGET, migration="m1")
    node.server.api.catalogue.define(GROUP, PLURALS[2], ())  # CRDs come one by one
    assert node.call("ADD", TARGET, "c2").code == 11, "nobody can say yet whose target it is"
    define(node, "v1")
    with ExitStack() as stack:
        guest, address = attach(node, stack, TARGET, "c2")
        assert (address, node.metrics(TARGET)) == (node.address, [])
        guest.arrive()
        until("raised, as a target's", lambda: node.metrics(TARGET) == [512])


def test_nothing_is_torn_down_when_the_kinds_go_and_they_count_when_they_are_back(
    node: CalledNode,
) -> None:
    node.server.api.catalogue.hide(GROUP)
    define(node, "v1alpha3", "v1")
    node.address = node.vm_elsewhere()
    node.world.put_migration("m1", phase="Running")
    for pod in (TARGET, RIVAL):
        node.world.put_launcher(pod, migration="m1")
    node.start()
    with ExitStack() as stack:
        guest, _ = attach(node, stack, TARGET, "c1")
        guest.arrive()
        until("raised", lambda: node.metrics(TARGET) == [512])
        until("its seat", lambda: node.owners()[node.address] == (HANDLE, TARGET, SOURCE))
        withdraw(node)
        until("the agent knows", lambda: lost(node) >= len(FOLLOWED))
        define(node, "v1alpha3")  # another KubeVirt, which does not serve what we read
        assert node.call("ADD", RIVAL, "c2").code == 11
        assert node.metrics(TARGET) == [512]
        assert node.owners()[node.address] == (HANDLE, TARGET, SOURCE)
        define(node, "v1alpha3", "v1")
        assert node.call("ADD", RIVAL, "c2").code == 103
        say_target(node, RIVAL)
        until("what is said now counts", lambda: node.metrics(TARGET) == [])


def running(node: CalledNode) -> str:
    """KubeVirt is installed and a VM runs here; its address."""
    node.server.api.catalogue.hide(GROUP)
    define(node, "v1")
    node.world.put_vm()
    node.world.put_launcher(SOURCE)
    node.start()
    address = node.done("ADD", SOURCE, "c1").address
    until("its route", lambda: node.metrics(SOURCE) == [1024])
    return address


def test_a_restart_and_a_del_while_the_kinds_are_away_keep_the_vms_address(
    node: CalledNode,
) -> None:
    address = running(node)
    withdraw(node)
    node.stop()
    before = lost(node)
    node.start()
    until("it looks for both kinds", lambda: lost(node) >= before + len(FOLLOWED))
    assert node.metrics(SOURCE) == [1024]
    assert node.owners()[address] == (HANDLE, SOURCE, "")
    assert node.call("DEL", SOURCE, "c1").code == 11, "once, since the VM may be deleted just now"
    node.done("DEL", SOURCE, "c1")
    assert node.owners()[address] == (HANDLE, "", "")


def test_a_vm_whose_kind_was_deleted_keeps_its_network_until_its_pod_goes(
    node: CalledNode,
) -> None:
    """KubeVirt is uninstalled: the API says that the VM is gone, while its pod still runs."""
    address = running(node)
    api = node.server.api
    kind = api.kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
    for plural in PLURALS:
        api.delete(kind, "", f"{plural}.{GROUP}")
    until("the agent knows", lambda: lost(node) >= len(FOLLOWED))
    assert node.metrics(SOURCE) == [1024]
    assert node.owners()[address] == (HANDLE, SOURCE, "")
    define(node, "v1")
    node.done("DEL", SOURCE, "c1")
    assert node.owners() == {}
