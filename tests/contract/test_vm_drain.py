"""`node drain-plan`, its --watch and `vm evacuate-cancel` against an API server that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from libtortie.errors import NotFound
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.migrations import Migration, Object
from tests.fakes.kubectl import Running
from tests.fakes.vm_api import put_site, vm_api
from tests.fakes.vm_cluster import Site, healthy
from tests.fakes.vm_ctl import Ctl
from tortiectl.kubevirt.objects import VMI, Node, Pod


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with vm_api() as running:
        yield running


@pytest.fixture
def ctl(server: ApiServer, tmp_path: Path) -> Ctl:
    return Ctl(server, tmp_path)


@pytest.fixture
def site(server: ApiServer) -> Site:
    """vm1 and vm4 are on n2; vm4 restarts."""
    made = healthy(vms=6, nodes=3, now=datetime.now(UTC))
    made.vmis[3]["spec"]["evictionStrategy"] = "None"
    put_site(server, made)
    return made


class Hand:
    """Whoever changes the cluster."""

    def __init__(self, server: ApiServer) -> None:
        self.client = HttpKubeClient(direct(server.url))

    def status(
        self, model: type[Object], name: str, namespace: str = "shop", **fields: Any
    ) -> None:
        self.client.patch(model, name, namespace, {"status": fields}, subresource="status")

    def mark(self, vm: str, node: str) -> None:
        self.status(VMI, vm, evacuationNodeName=node)

    def migrate(self, vm: str) -> str:
        name = f"kubevirt-evacuation-{vm}"
        meta = {"name": name, "namespace": "shop"}
        body = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration"}
        self.client.create(Migration, {**body, "metadata": meta, "spec": {"vmiName": vm}})
        return name


@pytest.fixture
def hand(server: ApiServer) -> Iterator[Hand]:
    made = Hand(server)
    yield made
    made.client.close()


@pytest.fixture
def started() -> Iterator[list[Running]]:
    running: list[Running] = []
    yield running
    for one in running:
        one.stop()


def test_the_plan(site: Site, ctl: Ctl) -> None:
    shown = ctl("node", "drain-plan", "n2").output.splitlines()
    assert shown[0].split() == ["ORDER", "VM", "FATE", "TURN", "POSSIBLE", "NODES", "WHY"]
    assert shown[1].split()[:4] == ["1", "shop/vm4", "ends", "-"]
    assert shown[2].split()[:5] == ["2", "shop/vm1", "migrates", "1", "n1,n3"]
    document = json.loads(ctl("node", "drain-plan", "n2", "-o", "json").stdout)
    assert [step["vm"] for step in document["steps"]] == ["shop/vm4", "shop/vm1"]
    assert (
        "there is no node n9; nodes are n1, n2, n3"
        in ctl("node", "drain-plan", "n9", code=1).output
    )


def test_a_plan_that_blocks_has_an_exit_status(site: Site, ctl: Ctl, hand: Hand) -> None:
    refused = [{"type": "LiveMigratable", "status": "False", "message": "no way"}]
    hand.status(VMI, "vm1", conditions=refused)
    shown = ctl("node", "drain-plan", "n2", code=2).output
    assert "but it cannot migrate: no way" in shown


def test_a_drain_is_followed_to_its_end(
    server: ApiServer, site: Site, ctl: Ctl, hand: Hand, started: list[Running]
) -> None:
    watch = ctl.start("node", "drain-plan", "n2", "--watch")
    started.append(watch)
    watch.until("node n2 is schedulable")
    hand.client.patch(Node, "n2", "", {"spec": {"unschedulable": True}})
    watch.until("node n2 is cordoned")
    hand.mark("vm1", "n2")
    watch.until("shop/vm1: eviction triggered")
    name = hand.migrate("vm1")
    for phase in ("Scheduling", "Running", "Succeeded"):
        hand.status(Migration, name, phase=phase)
        watch.until(f"shop/vm1: migration {name}: {phase}")
    server.cut_watches()
    hand.status(VMI, "vm1", nodeName="n3", evacuationNodeName=None)
    watch.until("shop/vm1: moved to n3")
    hand.client.delete(VMI, "vm4", "shop")
    watch.until("shop/vm4: its instance has ended")
    for pod in ("vm1", "vm4"):
        with suppress(NotFound):  # a pod goes with its instance
            hand.client.delete(Pod, f"virt-launcher-{pod}-a1b2c", "shop", grace_seconds=0)
    watch.until("node n2 is empty")
    assert watch.ended() == 0
    assert "  shop/vm1: migrated to n3" in watch.seen
    assert "  shop/vm4: ended" in watch.seen


def test_a_node_that_vanishes_while_watched(
    site: Site, ctl: Ctl, hand: Hand, started: list[Running]
) -> None:
    watch = ctl.start("node", "drain-plan", "n2", "--watch")
    started.append(watch)
    watch.until("node n2 is schedulable")
    hand.client.delete(Node, "n2")
    assert watch.ended() == 1
    assert "node n2 is gone from the API" in watch.seen[-1]
    assert watch.seen[-1].endswith("shop/vm1, shop/vm4")


def test_a_watch_with_a_time_limit(site: Site, ctl: Ctl) -> None:
    shown = ctl("node", "drain-plan", "n2", "--watch", "--timeout", "0.1", code=1).output
    assert "still on node n2: shop/vm1, shop/vm4" in shown


def test_a_leftover_mark_is_cleared(site: Site, ctl: Ctl, hand: Hand) -> None:
    assert "is not marked" in ctl("vm", "evacuate-cancel", "shop/vm1").output
    hand.mark("vm1", "n2")
    hand.migrate("vm1")
    shown = ctl("vm", "evacuate-cancel", "shop/vm1").output
    assert "shop/vm1: evacuation from n2 cancelled" in shown
    assert "still running: kubevirt-evacuation-vm1" in shown
    assert hand.client.get(VMI, "vm1", "shop").status.evacuation_node_name == ""
    assert hand.client.get(VMI, "vm1", "shop").status.node_name == "n2"


def test_a_mark_of_a_drain_that_goes_on_is_kept(site: Site, ctl: Ctl, hand: Hand) -> None:
    hand.mark("vm1", "n2")
    taint = {"key": "kubevirt.io/drain", "effect": "NoSchedule"}
    hand.client.patch(Node, "n2", "", {"spec": {"taints": [taint]}})
    shown = ctl("vm", "evacuate-cancel", "shop/vm1", code=1).output
    assert "node n2 has the taint kubevirt.io/drain: take it away first" in shown
    hand.client.patch(Node, "n2", "", {"spec": {"taints": [], "unschedulable": True}})
    done = ctl("vm", "evacuate-cancel", "shop/vm1")
    assert "n2 is cordoned" in done.stderr
    assert hand.client.get(VMI, "vm1", "shop").status.evacuation_node_name == ""
