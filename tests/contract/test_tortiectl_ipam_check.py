"""`tortiectl ipam check` on a real SQLite file and a real API server."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ipam.client import AddressRequest
from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie import __version__
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.kube.objects import Meta, VirtualMachine
from libtortie.model.ipam import Attribute
from libtortie.model.keys import BlockKey, HandleKey, Kind, path_of
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import World, vm_pod
from tests.fakes.kube import FakeKube
from tortiectl.cli import main

HANDLE = "k8s-pod-network.vmi.shop.db"
CLUSTER = {
    "clusterGUID": "5b0e",
    "clusterType": "k8s,bgp",
    "calicoVersion": "v3.33.0",
    "datastoreReady": True,
}


@dataclass
class Site:
    """A sound town, and the command line that is told where it is."""

    town: Town
    root: Path
    path: Path
    api: str

    def __call__(self, *args: str, status: int = 0) -> Result:
        spec = {"datastoreType": "sqlite", "sqlitePath": str(self.path)}
        if self.api:
            spec["k8sAPIEndpoint"] = self.api
        body = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
        file = self.root / "tortiectl.cfg"
        file.write_text(yaml.safe_dump(body))
        command = ["ipam", "check", *args, "-c", str(file)]
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert done.exit_code == status, done.output
        return done

    def spoil(self, path: str, data: bytes) -> None:
        """Write bytes past every check."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as raw:
            raw.execute("BEGIN IMMEDIATE")
            row = raw.execute("INSERT INTO log (path, data) VALUES (?, ?)", (path, data))
            raw.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", (path, row.lastrowid, data))
            raw.execute("COMMIT")


@pytest.fixture
def site(tmp_path: Path, server: ApiServer) -> Iterator[Site]:
    path = tmp_path / "t.db"
    with closing(SqliteDatastore(path)) as store:
        fake = FakeKube()
        fake.api = server.api
        town = Town(World(store), fake)
        town.world.resource(Kind.CLUSTER_INFORMATION, "default", CLUSTER)
        (web,) = town.start("web")
        town.endpoint("web", web)
        yield Site(town, tmp_path, path, server.url)


def leak(site: Site) -> str:
    (address,) = site.town.start("gone", "n2")
    site.town.remove_pod("gone")
    return str(address)


def test_a_sound_store(site: Site) -> None:
    out = site().stdout
    assert out.startswith("Checking IPAM for inconsistencies...\n")
    assert "Found 1 IPAM blocks." in out
    assert "IPAM blocks record 1 allocations." in out
    assert "Found 1 workload IPs." in out
    assert out.endswith("Check complete; found 0 problems.\n")


def test_a_record_cannot_write_on_the_terminal(site: Site) -> None:
    """A stored record is anybody's who may write it: what it says is shown, not obeyed."""
    pod = "evil\x1b[2J\nCheck complete; found 0 problems.\x9b\x7f\u202e"
    (address,) = site.town.run("evil", "n2")
    site.town.rewrite(address, {"namespace": "shop", "pod": pod, "node": "n1"})
    escaped = r"evil\x1b[2J\nCheck complete; found 0 problems.\x9b\x7f\u202e"
    file = site.root / "report.json"
    out = site("--show-all-ips", "-o", str(file), status=2).stdout
    assert f"  {address} leaked: pod shop/{escaped} is gone\n" in out
    assert all(line.isprintable() for line in out.split("\n"))
    text = file.read_text()
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text)["allocations"][str(address)][0]["pod"] == pod
    for args in (["--ip", str(address)], ["--show-borrowed"]):
        shown = CliRunner().invoke(
            main, ["ipam", "show", *args, "-c", str(site.root / "tortiectl.cfg")]
        )
        assert shown.exit_code == 0
        assert escaped in shown.output
        assert all(line.isprintable() for line in shown.output.split("\n"))


def test_leaks_are_counted_shown_and_reported_and_stay(site: Site) -> None:
    address = leak(site)
    file = site.root / "report.json"
    out = site("-o", str(file), status=2).stdout
    assert "Found 1 IPs that are allocated in IPAM but not actually in use." in out
    assert f"{address} leaked" not in out
    assert out.endswith("Check complete; found 1 problems.\n")
    shown = site("--show-problem-ips", status=2).stdout
    assert f"  {address} leaked: pod shop/gone is gone\n" in shown
    assert address in site.town.held
    report = json.loads(file.read_text())
    assert {key: report[key] for key in ("version", "clusterGUID", "clusterType")} == {
        "version": __version__,
        "clusterGUID": "5b0e",
        "clusterType": "k8s,bgp",
    }
    assert report["datastoreLocked"] is False
    assert report["clusterInformationRevision"]
    assert report["leakedHandles"] == []
    (entry,) = report["allocations"][address]
    assert isinstance(entry.pop("sequenceNumber"), int)
    assert entry == {
        "ip": address,
        "handle": "k8s-pod-network.c-gone",
        "pod": "gone",
        "namespace": "shop",
        "node": "n2",
        "type": "",
        "creationTimestamp": "2026-08-22 13:30:00 +0000 UTC",
        "inUse": False,
        "borrowed": False,
        "coolingDown": False,
        "owners": [],
    }
    used = [one for (one,) in report["allocations"].values() if one["inUse"]]
    assert [one["owners"] for one in used] == [["Workload (n1/shop/web)"]]


def test_an_address_of_nobody_is_leaked(site: Site) -> None:
    """What an older Calico leaves of one that was cooling down: no handle, no owner."""
    (address,) = site.town.start("gone", "n2")
    site.town.remove_pod("gone")
    (block,) = [one for one in site.town.world.blocks() if address in one.cidr]
    bare = replace(block, attributes=(Attribute(),))
    site.town.world.put(BlockKey(block.cidr), bare)
    site.town.world.store.delete(HandleKey("k8s-pod-network.c-gone"))
    file = site.root / "report.json"
    shown = site("--show-problem-ips", "-o", str(file), status=2).stdout
    why = "it has neither handle nor owner: nobody can release it"
    assert f"  {address} leaked: {why}\n" in shown
    assert shown.endswith("Check complete; found 1 problems.\n")
    (entry,) = json.loads(file.read_text())["allocations"][str(address)]
    assert entry["inUse"] is False


def test_all_addresses_are_shown_with_whose_they_are(site: Site) -> None:
    leak(site)
    out = site("--show-all-ips", status=2).stdout
    (web,) = [line for line in out.splitlines() if "handle=k8s-pod-network.c-web" in line]
    assert web.endswith(": Workload (n1/shop/web)")
    assert "leaked: pod shop/gone is gone" in out


def test_a_stopped_vms_address_is_in_use(site: Site) -> None:
    town = site.town
    town.kube.put(VirtualMachine(metadata=Meta(namespace="shop", name="db", uid="vm-1")))
    (got,) = town.world.client().claim_vm(HANDLE, vm_pod("p1"), AddressRequest())
    town.world.client().disown_vm(HANDLE, vm_pod("p1"), vm_deleting=False)
    file = site.root / "report.json"
    site("-o", str(file))
    (entry,) = json.loads(file.read_text())["allocations"][str(got.address)]
    assert (entry["inUse"], entry["pod"]) == (True, "")


def test_cooling_down_is_neither_in_use_nor_a_problem(site: Site) -> None:
    site.town.world.config(cooldown_seconds=600)
    (address,) = site.town.run("old")
    site.town.stop("old")
    file = site.root / "report.json"
    site("-o", str(file))
    (entry,) = json.loads(file.read_text())["allocations"][str(address)]
    assert (entry["coolingDown"], entry["inUse"], entry["handle"]) == (True, False, "")


def test_records_that_cannot_be_read_are_named(site: Site) -> None:
    (block,) = site.town.world.blocks()
    path = path_of(BlockKey(block.cidr))
    site.spoil(path, b'{"cidr":"%s","allocations":[9]}' % str(block.cidr).encode())
    site.spoil(path_of(HandleKey("odd")), b"[]")
    out = site(status=2).stdout
    assert f"unreadable: {path}: " in out
    assert f"unreadable: {path_of(HandleKey('odd'))}: " in out


def test_an_orphan_handle_is_named_and_reported_with_its_revision(site: Site) -> None:
    site.spoil(path_of(HandleKey("orphan")), b'{"block":{},"deleted":false}')
    file = site.root / "report.json"
    out = site("-o", str(file), status=2).stdout
    assert "  handle orphan: no block has an address of it" in out
    (entry,) = json.loads(file.read_text())["leakedHandles"]
    assert (entry["ID"], entry["Revision"]) == (
        "orphan",
        site.town.world.store.get(HandleKey("orphan")).revision,
    )


def test_what_cannot_be_judged_is_an_error_and_counts_as_in_use(
    site: Site, server: ApiServer
) -> None:
    address = leak(site)
    server.faults.add(Fault(Reject(403, "Forbidden"), verb="list", resource="pods"))
    file = site.root / "report.json"
    done = site("-o", str(file), status=1)
    assert "1 IPs could not be judged:" in done.stdout
    assert done.stdout.endswith("Check complete; found 0 problems.\n")
    assert "1 IPs could not be judged: unknown: pod shop/gone: " in done.stderr
    (entry,) = json.loads(file.read_text())["allocations"][address]
    assert entry["inUse"] is True


def test_another_api_by_kubeconfig(site: Site) -> None:
    leak(site)
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": site.api}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = site.root / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    site.api = ""
    assert "could not be judged" in site(status=1).stderr
    assert site("--kubeconfig", str(file), status=2).stdout.endswith("found 1 problems.\n")


def test_a_report_that_cannot_be_written_is_one_message(site: Site) -> None:
    done = site("-o", str(site.root / "no" / "dir"), status=1)
    assert done.stderr.count("\n") == 1
    assert "No such file or directory" in done.stderr


def test_an_api_that_is_down_is_told_of(site: Site, server: ApiServer) -> None:
    leak(site)
    server.stop()
    assert "could not be judged" in site(status=1).stderr
