"""`ipam release` and `ipam split`: what nobody uses goes, what a VM has stays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from ipam.attempts import Attempts, Retry
from ipam.client import AddressRequest, IPAMClient
from ipam.free import free, seat_of
from ipam.ownership import pod_owner
from lab.apiserver.server import ApiServer
from libtortie import __version__
from libtortie.model.ipam import Block, Handle
from libtortie.model.keys import Blocks, HandleKey, Kind
from libtortie.model.resources import parse_resource
from tests.fakes.ctl_stores import STORES, CtlOn, on_sqlite, thing
from tests.fakes.kubernetes_store import put_object

GUID = "5b0e0c8a4f6d4f3e9d2a7c1b8e6f4a21"


def prepared(on: CtlOn) -> IPAMClient:
    """A pool, a cluster, and node n1 that is known."""
    on.write("create", thing(Kind.IP_POOL, "pool-a", cidr="10.65.0.0/24", blockSize=30))
    body = thing(Kind.CLUSTER_INFORMATION, "default", clusterGUID=GUID, datastoreReady=True)
    resource = parse_resource(Kind.CLUSTER_INFORMATION, body)
    on.store.create(resource.key, resource)
    return IPAMClient(on.store, "n1", now=lambda: datetime.now(UTC))


def owner(pod: str, **more: str) -> dict[str, str]:
    now = datetime(2026, 8, 1, tzinfo=UTC)
    return pod_owner(namespace="shop", pod=pod, node="n1", timestamp=now, container_id="c", **more)


def assigned(client: IPAMClient, handle: str, pod: str, **more: str) -> str:
    return str(client.assign(handle, owner(pod, **more), AddressRequest())[0].address)


@pytest.fixture(params=list(STORES))
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CtlOn]:
    with STORES[request.param](tmp_path) as made:
        yield made


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[CtlOn]:
    with on_sqlite(tmp_path) as made:
        yield made


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API that has the node, and a pod of its own."""
    with ApiServer() as server:
        put_object(server, "nodes", {"metadata": {"name": "n1"}})
        put_object(server, "namespaces", {"metadata": {"name": "shop"}})
        pod = {"metadata": {"name": "here", "namespace": "shop"}, "spec": {"nodeName": "n1"}}
        put_object(server, "pods", pod)
        yield server
        assert server.crashes == []


def test_one_address(on: CtlOn) -> None:
    client = prepared(on)
    first = assigned(client, "net.web", "web")
    said = on.run("ipam", "release", "--ip", first, "--force").output
    assert said == f"Successfully released IP address {first}\n"
    assert client.owner_of(ip_address(first)) is None
    assert client.by_handle("net.web") == ()
    said = on.run("ipam", "release", "--ip", first, status=1).stderr
    assert f"{first} is not assigned" in said
    assert "not an IP address" in on.run("ipam", "release", "--ip", "x", status=1).stderr
    assert "give --ip ADDRESS or --from-report" in on.run("ipam", "release", status=1).stderr


def test_an_address_in_use_and_a_vms_stay_unless_forced(ctl: CtlOn) -> None:
    client = prepared(ctl)
    used, vm = assigned(client, "net.web", "web"), assigned(
        client, "net.vmi.shop.vm", "launcher", vmi_name="vm", vmi_uid="u"
    )  # fmt: skip
    ctl.write(
        "create",
        thing(
            Kind.WORKLOAD_ENDPOINT,
            "n1-k8s-web-eth0",
            "shop",
            orchestrator="k8s",
            node="n1",
            pod="web",
            endpoint="eth0",
            interfaceName="cali1",
            ipNetworks=[used],
        ),
    )
    said = ctl.run("ipam", "release", "--ip", used, status=1).stderr
    assert f"{used} is used by " in said
    said = ctl.run("ipam", "release", "--ip", vm, status=1).stderr
    assert f"{vm} is the address of VM shop/vm: " in said
    for address in (used, vm):
        assert client.owner_of(ip_address(address)) is not None
        ctl.run("ipam", "release", "--ip", address, "--force")
        assert client.owner_of(ip_address(address)) is None


def report(ctl: CtlOn, name: str, **changes: Any) -> str:
    """What `ipam check -o` writes, changed."""
    path = ctl.root / name
    ctl.run("ipam", "check", "-o", str(path), status=2)
    body = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(body))
    return str(path)


def test_what_all_reports_say_and_is_so_still(ctl: CtlOn, api: ApiServer) -> None:
    client = prepared(ctl)
    ctl.environ["K8S_API_ENDPOINT"] = api.url
    leaked, later = assigned(client, "net.gone", "gone"), assigned(client, "net.other", "other")
    orphan = HandleKey("net.orphan")
    ctl.store.create(orphan, Handle({}))
    first = report(ctl, "first.json")
    newest = assigned(client, "net.newest", "newest")
    client.release("net.other")
    again = assigned(client, "net.other", "other")
    ctl.run("datastore", "migrate", "lock")
    second = report(ctl, "second.json")
    args = ("ipam", "release", "--from-report", first, "--from-report", second)
    said = ctl.run(*args).output
    assert "Releasing 1 IP addresses...\nReleased 1 IP addresses; 0 skipped" in said
    assert "Released 1 handles; 0 skipped; 0 errors." in said
    assert client.owner_of(ip_address(leaked)) is None
    assert client.owner_of(ip_address(newest)) is not None
    assert client.owner_of(ip_address(again)) is not None, f"{later} was given anew since"
    assert orphan not in ctl.store.snapshot([orphan]).records
    assert "0 errors" in ctl.run(*args).output


def test_a_stopped_vms_address_is_no_reports_to_release(ctl: CtlOn, api: ApiServer) -> None:
    """calicoctl's check calls it leaked, since no endpoint has it."""
    client = prepared(ctl)
    ctl.environ["K8S_API_ENDPOINT"] = api.url
    vm_object = {"metadata": {"name": "vm", "namespace": "shop", "uid": "w"}, "spec": {}}
    put_object(api, "virtualmachines.kubevirt.io", vm_object)
    assigned(client, "net.gone", "gone")
    vm = assigned(client, "net.vmi.shop.vm", "l", vmi_name="vm", vmi_uid="u", vm_uid="w")
    ctl.run("datastore", "migrate", "lock")
    file = report(ctl, "r.json")
    body = json.loads(Path(file).read_text())
    body["allocations"][vm][0]["inUse"] = False
    Path(file).write_text(json.dumps(body))
    said = ctl.run("ipam", "release", "--from-report", file).output
    assert "Released 1 IP addresses; 1 skipped, which are in use, changed or a VM's" in said
    assert client.owner_of(ip_address(vm)) is not None


def test_an_allocation_that_is_another_since_stays(ctl: CtlOn, api: ApiServer) -> None:
    """By its sequence number: the same address under the same handle may be another's."""
    client = prepared(ctl)
    ctl.environ["K8S_API_ENDPOINT"] = api.url
    leaked = assigned(client, "net.gone", "gone")
    ctl.run("datastore", "migrate", "lock")
    file = report(ctl, "r.json")
    body = json.loads(Path(file).read_text())
    body["allocations"][leaked][0]["sequenceNumber"] += 1
    Path(file).write_text(json.dumps(body))
    assert "Released 0 IP addresses; 1 skipped" in ctl.run(
        "ipam", "release", "--from-report", file
    ).output  # fmt: skip
    found = client.owner_of(ip_address(leaked))
    assert found is not None
    block = next(
        record.value
        for record in ctl.store.list(Blocks(4)).records
        if isinstance(record.value, Block) and ip_address(leaked) in record.value.cidr
    )
    seat = seat_of(block, ip_address(leaked))
    assert seat is not None
    attempts = Attempts(ctl.store, Retry(), time.monotonic, time.sleep)
    assert not free(attempts, replace(seat, number=7), lambda: datetime.now(UTC))
    assert client.owner_of(ip_address(leaked)) == found
    assert free(attempts, seat, lambda: datetime.now(UTC))
    assert not free(attempts, seat, lambda: datetime.now(UTC))


def test_reports_that_cannot_be_gone_by(ctl: CtlOn, api: ApiServer) -> None:
    client = prepared(ctl)
    ctl.environ["K8S_API_ENDPOINT"] = api.url
    leaked = assigned(client, "net.gone", "gone")
    unlocked = report(ctl, "unlocked.json")
    said = ctl.run("ipam", "release", "--from-report", unlocked, status=1).stderr
    assert "the datastore is not locked" in said
    ctl.run("datastore", "migrate", "lock")
    said = ctl.run("ipam", "release", "--from-report", unlocked, status=1).stderr
    assert "no report was made since the datastore was locked" in said
    other = report(ctl, "other.json", clusterGUID="beef")
    for force in ((), ("--force",)):
        said = ctl.run("ipam", "release", "--from-report", other, *force, status=1).stderr
        assert "is of another cluster: its GUID is beef" in said
    old = report(ctl, "old.json", version="0.0.1")
    said = ctl.run("ipam", "release", "--from-report", old, status=1).stderr
    assert f"is of version 0.0.1, and this is {__version__}" in said
    assert client.owner_of(ip_address(leaked)) is not None
    ctl.run("ipam", "release", "--from-report", old, "--from-report", unlocked, "--force")
    assert client.owner_of(ip_address(leaked)) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a report of `ipam check -o`"),
        ("[" * 100_000, "not a report of `ipam check -o`: nested too deeply"),
        ("[]", "not a report of `ipam check -o`: no object"),
        ("{}", "allocations: missing"),
        ('{"allocations": {}, "version": 7}', "version: missing"),
        ('{"allocations": {"x": [7]}, "version": "1"}', "allocations.x: not an object"),
        ('{"allocations": {"x": [{"ip": "y", "inUse": false}]}}', "allocations.x: ip: "),
        (
            '{"allocations": {"x": [{"ip": "10.0.0.1", "inUse": false, "sequenceNumber": "1"}]}}',
            "sequenceNumber: '1' is not a number",
        ),
    ],
)
def test_reports_that_are_none(ctl: CtlOn, text: str, words: str) -> None:
    file = ctl.root / "r.json"
    file.write_text(text)
    assert words in ctl.run("ipam", "release", "--from-report", str(file), status=1).stderr


# --- split --------------------------------------------------------------------------------------


def test_a_pool_in_parts(on: CtlOn) -> None:
    client = prepared(on)
    address = assigned(client, "net.web", "web")
    said = on.run("ipam", "split", "4", "--name", "pool-a", status=1).stderr
    assert "the datastore is not locked" in said
    on.run("datastore", "migrate", "lock")
    said = on.run("ipam", "split", "4", "--cidr", "10.65.0.0/24").output
    assert "Successfully split IPPool pool-a into split-pool-a-0 (10.65.0.0/26), " in said
    assert on.names(Kind.IP_POOL) == [f"split-pool-a-{number}" for number in range(4)]
    assert on.shown(Kind.IP_POOL, "split-pool-a-3")["spec"]["cidr"] == "10.65.0.192/26"
    assert on.shown(Kind.IP_POOL, "split-pool-a-3")["spec"]["blockSize"] == 30
    on.run("datastore", "migrate", "unlock")
    assert client.owner_of(ip_address(address)) is not None
    assigned(client, "net.more", "more")


def test_a_part_that_is_there_and_another(ctl: CtlOn) -> None:
    prepared(ctl)
    ctl.write("create", thing(Kind.IP_POOL, "split-pool-a-0", cidr="10.66.0.0/24"))
    ctl.run("datastore", "migrate", "lock")
    said = ctl.run("ipam", "split", "2", "--name", "pool-a", status=1).stderr
    assert "IPPool(split-pool-a-0) is there already, and another" in said
    assert ctl.names(Kind.IP_POOL) == ["pool-a", "split-pool-a-0"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("3", "--name", "pool-a"), "the number of parts is a power of two"),
        (("1", "--name", "pool-a"), "the number of parts is a power of two"),
        (("128", "--name", "pool-a"), "64 parts are the most"),
        (("2", "--name", "other"), "there is no IP pool other; there are: pool-a (10.65.0.0/24)"),
        (("2",), "give --cidr or --name"),
        (("2", "--name", "a", "--cidr", "b"), "give --cidr or --name"),
        (("two", "--name", "pool-a"), "'two' is not a valid integer"),
    ],
)
def test_parts_that_cannot_be(ctl: CtlOn, args: tuple[str, ...], words: str) -> None:
    prepared(ctl)
    ctl.run("datastore", "migrate", "lock")
    assert words in ctl.run("ipam", "split", *args, status=1).stderr
    assert ctl.names(Kind.IP_POOL) == ["pool-a"]


def test_parts_smaller_than_blocks(ctl: CtlOn) -> None:
    ctl.write("create", thing(Kind.IP_POOL, "small", cidr="10.65.0.0/29", blockSize=30))
    ctl.run("datastore", "migrate", "lock")
    said = ctl.run("ipam", "split", "4", "--name", "small", status=1).stderr
    assert "10.65.0.0/29 in 4 parts would be smaller than its blocks of /30" in said
