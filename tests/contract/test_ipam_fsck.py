"""`ipam fsck` and `ipam adopt` on a real SQLite file and a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from lab.apiserver.server import ApiServer
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.keys import Kind, ResourceKey, Resources
from libtortie.model.resources import IPReservation
from tests.fakes.gc_world import Town
from tests.fakes.ipam_world import World
from tests.fakes.kube import FakeKube
from tortiectl.cli import main


@dataclass
class Site:
    """A town with two pods of which one is gone, and the command line that is told where it is."""

    town: Town
    root: Path
    config: Path
    leaked: str

    def __call__(self, *args: str, status: int = 0, stdin: str = "") -> Result:
        command = ["ipam", *args, "-c", str(self.config)]
        done = CliRunner().invoke(main, command, input=stdin, catch_exceptions=False)
        assert done.exit_code == status, done.output
        return done

    def file(self, name: str, text: str = "") -> str:
        path = self.root / name
        if text:
            path.write_text(text)
        return str(path)


@pytest.fixture
def site(tmp_path: Path, server: ApiServer) -> Iterator[Site]:
    path, config = tmp_path / "t.db", tmp_path / "tortiectl.cfg"
    spec = {
        "datastoreType": "sqlite", "sqlitePath": str(path), "k8sAPIEndpoint": server.url,
    }  # fmt: skip
    body = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
    config.write_text(yaml.safe_dump(body))
    with closing(SqliteDatastore(path)) as store:
        fake = FakeKube()
        fake.api = server.api
        town = Town(World(store), fake)
        (web,) = town.start("web")
        town.endpoint("web", web)
        (address,) = town.start("gone", "n2")
        town.remove_pod("gone")
        yield Site(town, tmp_path, config, str(address))


def test_every_address_is_explained_and_nothing_is_changed(site: Site) -> None:
    shown = site("fsck", status=2).output.splitlines()
    assert shown[0].split() == ["ADDRESS", "HANDLE", "OWNER", "AGE", "NEXT", "REASON"]
    leaked = next(line for line in shown if line.startswith(site.leaked))
    assert "shop/gone on n2" in leaked
    assert leaked.endswith("free   pod shop/gone is gone")
    assert any("shop/web on n1" in line and "keep" in line for line in shown)
    assert shown[-1] == "2 addresses, 1 to be freed"
    assert site.leaked in site.town.held


def test_a_plan_is_applied_and_undone(site: Site) -> None:
    plan = site.file("plan.json")
    site("fsck", "--plan", plan, status=2)
    body = json.loads(Path(plan).read_text())
    assert [one["address"] for one in body["actions"]] == [site.leaked]
    assert f"{site.leaked} of k8s-pod-network.c-gone: freed" in site("fsck", "--apply", plan).output
    assert site.leaked not in site.town.held
    again = site("fsck", "--apply", plan, status=2).output
    assert "kept: it is free already" in again
    assert "given back" in site("fsck", "--undo", plan).output
    assert site.leaked in site.town.held
    shown = site("fsck", "--undo", plan, status=2).output
    assert "kept: it belongs to k8s-pod-network.c-gone now" in shown


def test_what_changed_since_it_was_judged_is_kept(site: Site) -> None:
    plan = site.file("plan.json")
    site("fsck", "--plan", plan, status=2)
    site.town.pod("gone", node="n2", ips=[site.leaked])
    shown = site("fsck", "--apply", plan, status=2).output
    assert "kept: not doubted any more: " in shown
    site.town.remove_pod("gone")
    body = json.loads(Path(plan).read_text())
    body["actions"][0]["sequence_number"] += 1
    changed = site.file("changed.json", json.dumps(body))
    shown = site("fsck", "--apply", changed, status=2).output
    assert "kept: it has changed since it was judged" in shown
    assert site.leaked in site.town.held


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no plan of ipam fsck"),
        ('{"format": "x", "written": "", "datastore": "", "actions": []}', "its format is 'x'"),
        ('{"format": "x"}', "written: Field required"),
        ("[]", "no plan|Input should be"),
        ("[" * 100_000, "no plan of ipam fsck: nested too deeply"),
    ],
)
def test_files_that_are_no_plans(site: Site, text: str, words: str) -> None:
    path = site.file("plan.json", text)
    shown = site("fsck", "--apply", path, status=1).output
    assert any(word in shown for word in words.split("|"))


def test_one_thing_at_a_time(site: Site) -> None:
    shown = site("fsck", "--apply", "a", "--plan", "b", status=1).output
    assert "one of --plan, --apply, --undo" in shown
    assert "none.json: No such file" in site("fsck", "--apply", "none.json", status=1).output


CSV = """namespace, name, ip, mac
shop, db, 10.65.0.40, 52:54:00:AA:00:01
shop, cache, 10.65.0.41 fd65::41,
"""


def test_addresses_of_vms_that_will_come(site: Site) -> None:
    path = site.file("vms.csv", CSV)
    shown = site("adopt", "-f", path).output
    assert "# VM shop/db: spec.template\n" in shown
    assert "cni.projectcalico.org/ipAddrs: '[\"10.65.0.40\"]'" in shown
    assert 'macAddress: "52:54:00:aa:00:01"' in shown
    key = ResourceKey(Kind.IP_RESERVATION, "adopted.shop.cache")
    record = site.town.world.store.get(key)
    assert isinstance(record.value, IPReservation)
    assert record.value.spec.reserved_cidrs == ("10.65.0.41/32", "fd65::41/128")
    assert site("adopt", "-f", "-", stdin=CSV).output == shown
    assert site.town.world.store.get(key).revision == record.revision


def test_manifests_say_what_they_want(site: Site) -> None:
    interface = {"name": "default", "bridge": {}, "macAddress": "52:54:00:00:00:07"}
    vm = {
        "kind": "VirtualMachine",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "template": {
                "metadata": {"annotations": {"cni.projectcalico.org/ipAddrs": '["10.65.0.50"]'}},
                "spec": {"domain": {"devices": {"interfaces": [interface]}}},
            }
        },
    }
    site("adopt", "-f", site.file("vm.yaml", yaml.safe_dump(vm)))
    key = ResourceKey(Kind.IP_RESERVATION, "adopted.shop.db")
    value = site.town.world.store.get(key).value
    assert isinstance(value, IPReservation)
    assert value.metadata.annotations["tortie.io/adopted-mac"] == "52:54:00:00:00:07"


def test_conflicts_are_all_reported_and_nothing_is_reserved(site: Site, server: ApiServer) -> None:
    web = next(address for address in site.town.held if address != site.leaked)
    text = (
        "name,ip,mac\n"
        f"a,{web},\n"
        "b,192.0.2.1,52:54:00:00:00:01\n"
        "c,10.65.0.60,52:54:00:00:00:01\n"
        "c,10.65.0.60,\n"
    )
    done = site("adopt", "-f", site.file("vms.csv", text), status=2)
    for words in (
        f"line 2: {web} belongs to shop/web",
        "line 3: 192.0.2.1 is in no enabled IPPool",
        "line 4: MAC 52:54:00:00:00:01 is wanted in",
        "line 5: VM default/c is wanted in",
        "line 5: 10.65.0.60 is wanted in",
    ):
        assert words in done.stderr
    assert done.stdout == ""
    assert site.town.world.store.list(_reservations()).records == ()


def _reservations() -> Resources:

    return Resources(Kind.IP_RESERVATION)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,ip\nweb,10.0.0\n", "line 2: ip: "),
        ("name,ip\n,10.0.0.1\n", "line 2: name '' is no name"),
        ("name,ip,mac\nweb,10.0.0.1,01:00:00:00:00:01\n", "is no unicast MAC"),
        ("name,ip,gateway\n", "column 'gateway' is none of"),
        ("name,ip\nweb,10.0.0.1 10.0.0.2\n", "one of each family"),
        ("kind: Pod\n", "want CSV with columns name and ip, or VirtualMachines"),
        ("kind: VirtualMachine\nmetadata: {name: a}\n", "has no annotation"),
        ("{", "neither CSV"),
        ("name,ip\nweb,10.0.0.1,fd00::1\n", "line 2: more cells than columns"),
        (f"name,ip\n{'x' * 200_000},10.0.0.1\n", "not CSV: field larger than field limit"),
        ("namespace,name,ip\na.b,c,10.0.0.1\n", "line 2: namespace 'a.b' is no name"),
        (f"name,ip\n{'n' * 250},10.0.0.1\n", "has more than 253 letters"),
        ("name,ip\n", "no VM is in it"),
        (
            "kind: VirtualMachine\nspec: {template: {metadata: {annotations: "
            f"{{cni.projectcalico.org/ipAddrs: '{'[' * 9000}'}}}}}}}}\n",
            "is no JSON list",
        ),
    ],
)
def test_files_that_cannot_be_read(site: Site, text: str, words: str) -> None:
    assert words in site("adopt", "-f", site.file("vms", text), status=1).output


def test_a_dry_run_reserves_nothing(site: Site) -> None:
    site("adopt", "-f", site.file("vms.csv", CSV), "--dry-run")
    assert site.town.world.store.list(_reservations()).records == ()
