"""`vm migrate`, `vm list` and `vm show` against an API server with KubeVirt's admission."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from lab.apiserver.server import ApiServer
from libtortie.datastore.crd_names import Group
from libtortie.history import keep
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.migrations import Migration, Object
from libtortie.model.history import Fact, Step, What
from libtortie.model.names import vm_handle
from tests.fakes.kubectl import Running
from tests.fakes.kubernetes_store import put_object, stores_of
from tests.fakes.vm_api import PLACE, put_site, vm_api
from tests.fakes.vm_cluster import Site, healthy
from tests.fakes.vm_ctl import Ctl
from tests.unit.tortiectl.test_downtime_domjobinfo import LIBVIRT_9
from tortiectl.kubevirt.objects import VMI

NOW = datetime.now(UTC)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with vm_api(hooks=True) as running:
        yield running


@pytest.fixture
def ctl(server: ApiServer, tmp_path: Path) -> Ctl:
    return Ctl(server, tmp_path)


@pytest.fixture
def site(server: ApiServer) -> Site:
    made = healthy(vms=3, nodes=3, now=NOW)
    put_site(server, made)
    return made


@pytest.fixture
def client(server: ApiServer) -> Iterator[HttpKubeClient]:
    made = HttpKubeClient(direct(server.url))
    yield made
    made.close()


@pytest.fixture
def started() -> Iterator[list[Running]]:
    running: list[Running] = []
    yield running
    for one in running:
        one.stop()


def set_status(client: HttpKubeClient, model: type[Object], name: str, **fields: Any) -> None:
    client.patch(model, name, "shop", {"status": fields}, subresource="status")


def the_migration(client: HttpKubeClient) -> Migration:
    (found,) = client.list(Migration, "shop")[0]
    return found


def test_a_migration_is_asked_for_and_followed(
    site: Site, ctl: Ctl, client: HttpKubeClient, started: list[Running], tmp_path: Path
) -> None:
    figures = tmp_path / "figures"
    figures.write_text(LIBVIRT_9.replace("Completed", "Unbounded"))
    ctl.program("kubectl", f'test "$6" = virt-launcher-vm1-a1b2c && exec /bin/cat {figures}')
    watch = ctl.start("vm", "migrate", "shop/vm1", "--to", "n3", "--watch")
    started.append(watch)
    line = watch.until("asked for, to n3")
    name = line.split()[2]
    assert name.startswith("kubevirt-migrate-vm-")
    found = the_migration(client)
    assert found.spec.added_node_selector == {"kubernetes.io/hostname": "n3"}
    waits = [{"type": "migrationRejectedByResourceQuota", "status": "True", "message": "no quota"}]
    set_status(client, Migration, name, phase="Pending", conditions=waits)
    watch.until("migrationRejectedByResourceQuota: no quota")
    set_status(client, Migration, name, phase="Scheduling", conditions=[])
    watch.until("phase Scheduling")
    state = {"migrationUid": found.metadata.uid, "targetNode": "n3", "targetPod": "pod3"}
    set_status(client, VMI, "vm1", migrationState=state)
    watch.until("to node n3, pod pod3")
    state["startTimestamp"] = "2026-01-01T00:00:00Z"
    set_status(client, VMI, "vm1", migrationState=state)
    watch.until("copying since 2026-01-01T00:00:00Z")
    watch.until("456.123 MiB sent, 0 B left, dirty rate 48.000 KiB/s")
    state["targetNodeDomainReadyTimestamp"] = "2026-01-01T00:00:06Z"
    set_status(client, VMI, "vm1", migrationState=state)
    watch.until("cut-over: the guest runs on n3")
    done = {**state, "sourceNode": "n2", "endTimestamp": "2026-01-01T00:00:07Z"}
    set_status(client, Migration, name, phase="Succeeded", migrationState=done)
    watch.until("moved from n2 to n3, 2026-01-01T00:00:00Z to 2026-01-01T00:00:07Z")
    assert watch.ended() == 0


def test_a_failure_has_its_reason(
    site: Site, ctl: Ctl, client: HttpKubeClient, started: list[Running]
) -> None:
    watch = ctl.start("vm", "migrate", "shop/vm1", "--watch")
    started.append(watch)
    watch.until("asked for")
    name = the_migration(client).metadata.name
    set_status(client, Migration, name, phase="Failed", migrationState={"failureReason": "no CPU"})
    watch.until("failed: no CPU")
    assert watch.ended() == 2


def test_refusals_are_verbatim_and_explained(server: ApiServer, ctl: Ctl) -> None:
    made = healthy(vms=3, nodes=3, now=NOW)
    text = "cannot migrate VMI which does not use masquerade to connect to the pod network"
    refused = {
        "type": "LiveMigratable", "status": "False", "reason": "InterfaceNotLiveMigratable",
        "message": text,
    }  # fmt: skip
    made.vmis[0]["status"]["conditions"] = [refused]
    put_site(server, made)
    shown = ctl("vm", "migrate", "shop/vm1", code=1).output
    said = f"Cannot migrate VMI, Reason: InterfaceNotLiveMigratable, Message: {text}"
    assert f"Error: {said}\nshop/vm1: its interface on the pod network" in shown
    ctl("vm", "migrate", "shop/vm2")
    shown = ctl("vm", "migrate", "shop/vm2", code=1).output
    assert "in-flight migration detected. Active migration job (" in shown
    assert "shop/vm2: another migration of this VM is running" in shown


def test_nodes_that_cannot_be_meant(site: Site, server: ApiServer, ctl: Ctl) -> None:
    assert "runs on n2 already" in ctl("vm", "migrate", "shop/vm1", "--to", "n2", code=1).output
    assert "there is no node n7" in ctl("vm", "migrate", "shop/vm1", "--to", "n7", code=1).output
    put_object(server, "nodes", {**site.nodes[2], "spec": {"unschedulable": True}})
    shown = ctl("vm", "migrate", "shop/vm1", "--to", "n3", code=1).output
    assert "node n3 is cordoned" in shown
    assert (
        "either --to" in ctl("vm", "migrate", "shop/vm1", "--to", "n3", "--cancel", code=1).output
    )


def test_a_migration_is_cancelled(
    site: Site, ctl: Ctl, client: HttpKubeClient, started: list[Running]
) -> None:
    assert "nothing to cancel" in ctl("vm", "migrate", "shop/vm1", "--cancel", code=1).output
    ctl("vm", "migrate", "shop/vm1")
    cancel = ctl.start("vm", "migrate", "shop/vm1", "--cancel", "--watch")
    started.append(cancel)
    cancel.until("cancelled: its target pod goes")
    name = the_migration(client).metadata.name
    client.patch(Migration, name, "shop", {"metadata": {"finalizers": None}})
    cancel.until("cancelled: the VM is on n2")
    assert cancel.ended() == 0


def test_a_watch_ends_at_its_limit_and_the_migration_goes_on(site: Site, ctl: Ctl) -> None:
    shown = ctl("vm", "migrate", "shop/vm1", "--watch", "--timeout", "0.1", code=1).output
    assert "still runs" in shown


@pytest.fixture
def addresses(server: ApiServer, site: Site) -> list[str]:
    """vm1 has an address in IPAM, and an endpoint that a policy selects."""
    handle = vm_handle("net", "shop", "vm1")
    owner = pod_owner(
        namespace="shop", pod="virt-launcher-vm1-a1b2c", node="n2", timestamp=NOW,
        vmi_name="vm1", vmi_uid="vmi-shop-vm1", vm_uid="vm-uid",
    )  # fmt: skip
    with stores_of(server, Group.V3) as (store,):
        got = IPAMClient(store, "n2", now=lambda: NOW).assign(handle, owner, AddressRequest())
    spec = {"selector": "all()", "ingress": [{"action": "Allow"}]}
    put_object(server, f"globalnetworkpolicies.{PLACE}", {"metadata": {"name": "p"}, "spec": spec})
    return [str(one.address) for one in got]


def test_vms_at_a_glance(ctl: Ctl, addresses: list[str]) -> None:
    rows = ctl("vm", "list", "-n", "shop").output.splitlines()
    assert rows[0].split() == [
        "NAMESPACE", "NAME", "PHASE", "NODE", "ADDRESSES", "MIGRATION", "HANDLE",
    ]  # fmt: skip
    assert rows[1].split() == [
        "shop", "vm1", "Running", "n2", addresses[0], "-", "net.vmi.shop.vm1",
    ]  # fmt: skip
    assert len(rows) == 4
    assert len(json.loads(ctl("vm", "list", "-A", "-o", "json").stdout)) == 3
    assert len(ctl("vm", "list").output.splitlines()) == 1


def test_one_vm_with_its_owners_and_the_audit(
    ctl: Ctl, addresses: list[str], tmp_path: Path, server: ApiServer
) -> None:
    log = tmp_path / "node.log"
    lines = [
        {"event": "endpoint_added", "time": f"2026-01-0{day}", "node": f"n{day}",
         "endpoint": f"shop/{pod}/eth0", "addresses": [f"{addresses[0]}/32"]}
        for day, pod in ((2, "virt-launcher-vm1-a1b2c"), (1, "older"))
    ]  # fmt: skip
    log.write_text("no JSON\n" + "".join(json.dumps(line) + "\n" for line in lines))
    shown = ctl("vm", "show", "shop/vm1", "--log", str(log)).output
    assert "  handle      net.vmi.shop.vm1\n" in shown
    assert "      active     virt-launcher-vm1-a1b2c on n2 since " in shown
    assert "  policy      no endpoint is stored for it\n" in shown
    assert shown.splitlines()[-2:] == [
        f"  audit       2026-01-01 n1: shop/older got {addresses[0]}",
        f"  audit       2026-01-02 n2: shop/virt-launcher-vm1-a1b2c got {addresses[0]}",
    ]
    with stores_of(server, Group.V3) as (store,):
        mine = Fact(NOW, What.GRANTED, "n2", namespace="shop", vm="vm1", pod="p\x1b[1m", node="n2")
        before = Fact(NOW, What.RELEASED, "n1", addresses=(ip_address(addresses[0]),), pod="older")
        keep(store, [mine, before, replace(mine, vm="another")], "test")
    shown = ctl("vm", "show", "shop/vm1").output
    stamp = NOW.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert shown.splitlines()[-2:] == [
        f"  audit       {stamp} n1: {addresses[0]} released, last held by /older",
        f"  audit       {stamp} n2: no address granted to shop/p\\x1b[1m of VM vm1 on n2",
    ]
    document = json.loads(ctl("vm", "show", "shop/vm1", "-o", "json").stdout)
    assert len(document["audit"]) == 2
    assert document["owners"][0]["active"]["vmi-name"] == "vm1"
    assert "there is no VM and no VMI shop/none" in ctl("vm", "show", "shop/none", code=1).output


def test_the_moves_of_one_vm_are_shown_with_their_downtime(
    ctl: Ctl, server: ApiServer, site: Site
) -> None:
    def step(number: int, step: Step, vm: str = "vm1", **details: str) -> Fact:
        about = {"migration_uid": f"m{number}", "step": step.value, "source": "n1"} | details
        at = NOW + timedelta(seconds=number)
        return Fact(at, What.MIGRATION, "n2", namespace="shop", vm=vm, node="n2", details=about)

    def shown() -> list[str]:
        lines = ctl("vm", "show", "shop/vm1").output.splitlines()
        return [line.split(maxsplit=2)[2] for line in lines if line.startswith("  moved ")]

    assert shown() == []
    with stores_of(server, Group.V3) as (store,):
        first = step(0, Step.PREPARED), step(0, Step.REACHED, downtime_ms="3.250")
        keep(store, [*first, step(0, Step.SETTLED), step(0, Step.LEFT, "vm2")], "test")
        assert shown() == ["n1 to n2: settled, network downtime 3.25 ms"]
        keep(store, [step(number, Step.LEFT) for number in range(1, 12)], "more")
    found = shown()
    assert found[:10] == ["n1 to n2: lost"] * 10
    assert len(found) == 11
    assert found[10].endswith("before (-o json has all)")
    moves = json.loads(ctl("vm", "show", "shop/vm1", "-o", "json").stdout)["migrations"]
    assert len(moves) == 12
    assert moves[-1] | {"began": "", "ended": ""} == {
        "uid": "m0", "began": "", "ended": "", "source": "n1", "target": "n2",
        "outcome": "settled", "networkDowntimeMs": 3.25, "signToRouteMs": None,
        "clocksApartSeconds": 0.0,
    }  # fmt: skip
