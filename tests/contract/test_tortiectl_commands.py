"""`tortiectl`'s commands on a real SQLite file and a real API server."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from ipam.persistence import persistence
from lab.apiserver.faults import Fault, Reject
from lab.apiserver.server import ApiServer
from libtortie import __version__
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.model.ipam import IPAMConfig, Persistence
from libtortie.model.keys import BlockKey, IPAMConfigKey, Key, Kind, ResourceKey, path_of
from libtortie.model.resources import parse_resource
from tortiectl.cli import main

SPECS: dict[Kind, dict[str, Any]] = {
    Kind.IP_POOL: {"cidr": "10.65.0.0/24", "blockSize": 30},
    Kind.WORKLOAD_ENDPOINT: {"pod": "web", "node": "n1", "ipNetworks": ["10.65.0.5/32"]},
    Kind.BGP_PEER: {"peerIP": "192.0.2.1", "asNumber": 65000},
    Kind.GLOBAL_NETWORK_POLICY: {"order": 10.0, "selector": "a == 'b' && c"},
    Kind.CLUSTER_INFORMATION: {
        "clusterGUID": "5b0e",
        "clusterType": "k8s,bgp",
        "calicoVersion": "v3.33.0",
        "datastoreReady": True,
    },
}
OFF = "--kubevirt-ip-persistence=Disabled"
ON = "--kubevirt-ip-persistence=Enabled"
TOGGLE = "/apis/projectcalico.org/v3/ipamconfigurations"


class Ctl:
    """A datastore, perhaps an API, and the command line that is told where they are."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "t.db"
        self.store = SqliteDatastore(self.path)
        self.api = ""

    def put(self, kind: Kind, name: str, namespace: str = "", **spec: Any) -> None:
        meta = {"name": name, "namespace": namespace} if namespace else {"name": name}
        body = {"kind": kind.value, "metadata": meta, "spec": {**SPECS.get(kind, {}), **spec}}
        self.store.create(ResourceKey(kind, name, namespace), parse_resource(kind, body))

    def __call__(self, *args: str, ok: bool = True, **environ: str) -> Result:
        file = self.root / "tortiectl.cfg"
        spec = {"datastoreType": "sqlite", "sqlitePath": str(self.path)}
        if self.api:
            spec["k8sAPIEndpoint"] = self.api
        body = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig", "spec": spec}
        file.write_text(yaml.safe_dump(body))
        with_file = [*args, "-c", str(file)]
        done = CliRunner().invoke(main, with_file, env=environ, catch_exceptions=False)
        assert done.exit_code == (0 if ok else 1), done.output
        return done

    def allocate(self, node: str, pod: str, **want: Any) -> str:
        client = IPAMClient(self.store, node, now=lambda: datetime.now(UTC))
        owner = pod_owner(
            namespace="shop",
            pod=pod,
            node=node,
            timestamp=datetime.now(UTC),
            container_id="c",
            pod_uid="u",
        )
        return str(client.assign(f"net.{pod}", owner, AddressRequest(**want))[0].address)


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    made = Ctl(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running
    assert running.crashes == []


# --- get -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("form", ["ps", "wide", "yaml", "json", "name"])
def test_every_kind_in_every_form(ctl: Ctl, kind: Kind, form: str) -> None:
    namespace = "default" if kind.namespaced else ""
    ctl.put(kind, "one", namespace)
    text = ctl("get", kind.plural, "-o", form).stdout
    names = ["one"] + ["projectcalico-default-allow"] * (kind is Kind.PROFILE)
    if form == "name":
        assert text.splitlines() == [f"{kind.lower()}.projectcalico.org/{name}" for name in names]
    elif form in ("ps", "wide"):
        heading, row, *others = text.splitlines()
        assert heading.split()[0] in ("NAME", "WORKLOAD")
        assert row.split()[0] in ("one", "web")
        assert [other.split()[0] for other in others] == names[1:]
    else:
        body = yaml.safe_load(text) if form == "yaml" else json.loads(text)
        assert body["kind"] == f"{kind}List"
        assert [item["metadata"]["name"] for item in body["items"]] == names
        assert body["items"][0]["metadata"]["resourceVersion"] == "1"
    single = ctl("get", kind.value, "one", "-o", "json").stdout
    assert json.loads(single)["kind"] == kind


def test_json_is_stable(ctl: Ctl) -> None:
    for name in ("b", "a", "c"):
        ctl.put(Kind.GLOBAL_NETWORK_POLICY, name)
    first = ctl("get", "gnp", "-o", "json").stdout
    ctl.put(Kind.BGP_PEER, "unrelated")
    assert ctl("get", "gnp", "-o", "json").stdout == first
    items = json.loads(first)["items"]
    assert [item["metadata"]["name"] for item in items] == ["a", "b", "c"]
    assert '"order": 10,' in first
    assert "a == 'b' && c" in first
    keys = re.findall(r'^ {6}"(\w+)"', first, re.MULTILINE)
    assert keys == ["apiVersion", "kind", "metadata", "spec"] * 3


def test_namespaces(ctl: Ctl) -> None:
    ctl.put(Kind.NETWORK_POLICY, "here", "default")
    ctl.put(Kind.NETWORK_POLICY, "there", "shop")
    assert ctl("get", "np", "-o", "name").stdout.endswith("/here\n")
    assert ctl("get", "np", "-n", "shop", "-o", "name").stdout.endswith("/there\n")
    rows = [line.split() for line in ctl("get", "policies", "-A").stdout.splitlines()]
    assert rows == [["NAMESPACE", "NAME"], ["default", "here"], ["shop", "there"]]
    assert "not in a namespace" in ctl("get", "ippools", "-A", ok=False).stderr
    assert "not in a namespace" in ctl("get", "ippools", "-n", "x", ok=False).stderr
    assert "leave out -n and names" in ctl("get", "np", "here", "-A", ok=False).stderr


def test_what_is_not_there_is_named_and_the_rest_is_shown(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "default-ipv4-ippool")
    done = ctl("get", "ippool", "default-ipv4-ipool", "default-ipv4-ippool", ok=False)
    assert done.stderr == (
        "resource does not exist: IPPool(default-ipv4-ipool) with error: <nil>; "
        "did you mean default-ipv4-ippool?\n"
    )
    assert done.stdout.splitlines()[1].split() == ["default-ipv4-ippool", "10.65.0.0/24", "all()"]
    done = ctl("get", "np", "x", "-n", "shop", "-o", "json", ok=False)
    assert done.stdout == ""
    assert "resource does not exist: NetworkPolicy(shop/x) with error: <nil>" in done.stderr


def test_nothing_there_is_an_empty_list(ctl: Ctl) -> None:
    assert ctl("get", "tiers").stdout == "NAME   ORDER   DEFAULTACTION\n"
    assert json.loads(ctl("get", "tiers", "-o", "json").stdout)["items"] == []
    assert ctl("get", "tiers", "-o", "name").stdout == ""


def test_what_cannot_be_read_is_named(ctl: Ctl) -> None:
    ctl.put(Kind.TIER, "good")
    ctl.put(Kind.TIER, "bad")
    spoil(ctl, ResourceKey(Kind.TIER, "bad"))
    done = ctl("get", "tiers", "-o", "name", ok=False)
    assert done.stdout == "tier.projectcalico.org/good\n"
    assert "tiers/bad" in done.stderr


ODD_POOL = (
    b'{"kind":"IPPool","metadata":{"name":"odd"},"spec":{"cidr":"10.67.0.0/24","blockSize":99}}'
)


def spoil(ctl: Ctl, key: Key, data: bytes = b"x") -> None:
    connection = sqlite3.connect(ctl.path)
    connection.execute("UPDATE kv SET data = ? WHERE path = ?", (data, path_of(key)))
    connection.commit()
    connection.close()


# --- version ---------------------------------------------------------------------------------


def test_version(ctl: Ctl) -> None:
    assert ctl("version", "--client").stdout == f"Client Version:    v{__version__}\n"
    done = ctl("version", ok=False)
    assert "Unable to retrieve Cluster Version or Type" in done.stderr
    ctl.put(Kind.CLUSTER_INFORMATION, "default")
    assert ctl("version").stdout.splitlines() == [
        f"Client Version:    v{__version__}",
        "Cluster Version:   v3.33.0",
        "Cluster Type:      k8s,bgp",
        "Cluster GUID:      5b0e",
        "Datastore Ready:   true",
    ]


# --- ipam show -------------------------------------------------------------------------------


def test_use_of_pools_and_blocks(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "p")
    ctl.put(Kind.IP_RESERVATION, "r", reservedCIDRs=["10.65.0.254/31"])
    address = ctl.allocate("n1", "web")
    text = ctl("ipam", "show").stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows[1] == ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS RESERVED", "IPS FREE"]
    assert rows[3] == ["IP Pool", "10.65.0.0/24", "256", "1 (0%)", "2 (1%)", "253 (99%)"]
    assert "Block" not in text
    with_blocks = ctl("ipam", "show", "--show-blocks").stdout
    (line,) = [line for line in with_blocks.splitlines() if "Block" in line]
    cidr = line.split("|")[2].strip()
    assert ip_address(address) in ip_network(cidr)
    assert "1 (25%)" in line


def test_one_address(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "p")
    address = ctl.allocate("n1", "web")
    lines = ctl("ipam", "show", f"--ip={address}").stdout.splitlines()
    assert lines[:3] == [
        f"IP {address} is in use",
        "Handle ID: net.web",
        "Active Owner Attributes:",
    ]
    assert "  pod: web" in lines
    assert lines[-1] == "Alternate Owner Attributes:"
    assert ctl("ipam", "show", "--ip", "10.99.0.1").stdout == "10.99.0.1 is not assigned\n"
    assert "'10.99' is not an IP address" in ctl("ipam", "show", "--ip", "10.99", ok=False).stderr


def test_an_address_that_cools_down(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "p")
    ctl("ipam", "configure", "--ip-cooldown-seconds=600")
    address = ctl.allocate("n1", "web")
    IPAMClient(ctl.store, "n1", now=lambda: datetime.now(UTC)).release("net.web")
    done = ctl("ipam", "show", f"--ip={address}", ok=False)
    assert f"{address} is cooling down: released at " in done.stderr
    assert "1 (0%)" in ctl("ipam", "show").stdout
    ctl("ipam", "configure", "--ip-cooldown-seconds=0")
    assert ctl("ipam", "show", f"--ip={address}").stdout == f"{address} is not assigned\n"


def test_borrowed(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "p", cidr="10.65.0.0/30")
    ctl.allocate("n1", "web")
    borrowed = ctl.allocate("n2", "app")
    row = ctl("ipam", "show", "--show-borrowed").stdout.splitlines()[3]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == [borrowed, "n2", "10.65.0.0/30", "n1", "pod", "shop/app"]


def test_a_block_that_cannot_be_read_is_not_counted_over(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "p", cidr="10.65.0.0/30")
    ctl.allocate("n1", "web")
    spoil(ctl, BlockKey(ip_network("10.65.0.0/30")))
    assert "a block cannot be read" in ctl("ipam", "show", ok=False).stderr


def test_a_pool_that_cannot_be_read_is_named_beside_the_others(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "good")
    ctl.put(Kind.IP_POOL, "torn", cidr="10.66.0.0/24")
    ctl.put(Kind.IP_POOL, "odd", cidr="10.67.0.0/24")
    spoil(ctl, ResourceKey(Kind.IP_POOL, "torn"))
    spoil(ctl, ResourceKey(Kind.IP_POOL, "odd"), ODD_POOL)
    done = ctl("ipam", "show", ok=False)
    assert "10.65.0.0/24" in done.stdout
    assert "cannot be read" not in done.stdout
    odd, torn = done.stderr.splitlines()
    assert torn.startswith("a pool cannot be read: ")
    assert "ippools/torn" in torn
    assert "IPPool 'odd': spec.blockSize: 99 is not one of 20..32 for IPv4" in odd


def test_a_reservation_that_cannot_be_read_is_not_counted_over(ctl: Ctl) -> None:
    ctl.put(Kind.IP_POOL, "p")
    ctl.put(Kind.IP_RESERVATION, "r", reservedCIDRs=["10.65.0.254/31"])
    spoil(ctl, ResourceKey(Kind.IP_RESERVATION, "r"))
    assert "ipreservations/r" in ctl("ipam", "show", ok=False).stderr


def test_one_question_at_a_time(ctl: Ctl) -> None:
    assert "give one of" in ctl("ipam", "show", "--show-blocks", "--ip=10.0.0.1", ok=False).stderr


# --- ipam configure --------------------------------------------------------------------------


def test_settings_and_calicos_words(ctl: Ctl) -> None:
    done = ctl(
        "ipam",
        "configure",
        "--strictaffinity=true",
        "--max-blocks-per-host=3",
        OFF,
        "--ip-cooldown-seconds=30",
    )
    assert done.stdout.splitlines()[:4] == [
        "Successfully set StrictAffinity to: true",
        "Successfully set MaxBlocksPerHost to: 3",
        "Successfully set KubeVirtVMAddressPersistence to: Disabled",
        "Successfully set IPCooldownSeconds to: 30",
    ]
    assert done.stdout.splitlines()[-1] == f"  in the datastore (sqlite {ctl.path})"
    stored = ctl.store.get(IPAMConfigKey()).value
    assert stored == IPAMConfig(True, True, 3, Persistence.DISABLED, 30)
    text = ctl("ipam", "show", "--show-configuration").stdout
    rows = [re.split(r"\s*\|\s*", line)[1:3] for line in text.splitlines() if "|" in line]
    assert rows == [
        ["PROPERTY", "VALUE"],
        ["StrictAffinity", "true"],
        ["AutoAllocateBlocks", "true"],
        ["MaxBlocksPerHost", "3"],
        ["KubeVirtVMAddressPersistence", "Disabled"],
        ["IPCooldownSeconds", "30"],
    ]
    spec = json.loads(ctl("get", "ipamconfig", "default", "-o", "json").stdout)["spec"]
    assert spec["kubeVirtVMAddressPersistence"] == "Disabled"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to set; give at least one of --strictaffinity, --max-blocks-per-host"),
        (["--max-blocks-per-host=3"], "maxBlocksPerHost 3 needs strictAffinity"),
        (["--ip-cooldown-seconds=1201"], "ipCooldownSeconds is 1201; want 0 to 1200"),
        (["--max-blocks-per-host=x"], "--max-blocks-per-host"),
        (["--kubevirt-ip-persistence=off"], "is not one of 'Enabled', 'Disabled'"),
        (["--strictaffinity=maybe"], "--strictaffinity"),
        (["--strictaffinty=true"], "--strictaffinity"),
    ],
)
def test_refused_settings(ctl: Ctl, arguments: list[str], words: str) -> None:
    done = ctl("ipam", "configure", *arguments, ok=False)
    assert words in done.stderr
    assert done.stdout == ""
    assert ctl.store.list(IPAMConfigKey()).records == ()


def kubectl_patch(server: ApiServer, value: str | None) -> None:
    client = HttpKubeClient(direct(server.url))
    body = {"spec": {"kubeVirtVMAddressPersistence": value}}
    merge = "application/merge-patch+json"
    client.raw("PATCH", f"{TOGGLE}/default", body, content_type=merge)
    client.close()


def in_force(ctl: Ctl, server: ApiServer) -> Persistence:
    client = HttpKubeClient(direct(server.url))
    try:
        return persistence(ctl.store, client).value
    finally:
        client.close()


def test_kubectl_and_tortiectl_set_one_thing(ctl: Ctl, server: ApiServer) -> None:
    ctl.api = server.url
    place = "ipamconfigurations.projectcalico.org/default"
    done = ctl("ipam", "configure", OFF)
    assert done.stdout.splitlines() == [
        "Successfully set KubeVirtVMAddressPersistence to: Disabled",
        f"  in {place} (Kubernetes API at {server.url}), which decides",
        f"  in the datastore (sqlite {ctl.path})",
    ]
    assert in_force(ctl, server) is Persistence.DISABLED
    kubectl_patch(server, "Enabled")
    assert in_force(ctl, server) is Persistence.ENABLED
    shown = ctl("ipam", "show", "--show-configuration").stdout
    assert re.search(r"KubeVirtVMAddressPersistence \| Enabled", shown)
    assert f"KubeVirtVMAddressPersistence is Enabled: {place} (" in shown
    assert "has Disabled, which does not count" in shown
    assert server.url in shown
    ctl("ipam", "configure", ON)
    shown = ctl("ipam", "show", "--show-configuration").stdout
    assert "does not count" not in shown
    kubectl_patch(server, None)
    shown = ctl("ipam", "show", "--show-configuration").stdout
    assert "is Enabled: IPAMConfiguration default in the datastore" in shown


def test_an_api_that_does_not_serve_the_kind(ctl: Ctl, server: ApiServer) -> None:
    ctl.api = server.url
    server.api.catalogue.hide("projectcalico.org", "crd.projectcalico.org")
    done = ctl("ipam", "configure", OFF)
    assert f"not in the Kubernetes API at {server.url}: it does not serve the kind" in done.stdout
    assert in_force(ctl, server) is Persistence.DISABLED


def test_no_api_is_said(ctl: Ctl) -> None:
    assert "in no Kubernetes API: none is configured here" in ctl("ipam", "configure", OFF).stdout


def test_an_api_that_refuses_leaves_all_as_it_was(ctl: Ctl, server: ApiServer) -> None:
    ctl.api = server.url
    server.faults.add(Fault(Reject(403, "Forbidden", "you may not")))
    done = ctl("ipam", "configure", OFF, ok=False)
    assert "you may not" in done.stderr
    assert done.stdout == ""
    assert ctl.store.list(IPAMConfigKey()).records == ()
    assert "you may not" in ctl("ipam", "show", "--show-configuration", ok=False).stderr
    ctl("ipam", "configure", "--strictaffinity=true")  # nothing of the API's
    ctl("get", "ipamconfig")


# --- the program -----------------------------------------------------------------------------


def test_a_datastore_that_is_not_there_is_not_made(ctl: Ctl) -> None:
    ctl.store.close()
    ctl.path = ctl.root / "none.db"
    assert "no such datastore" in ctl("get", "ippools", ok=False).stderr
    assert not ctl.path.exists()


def test_datastores_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    environ = {"DATASTORE_TYPE": "mongo", "HOME": str(tmp_path)}
    done = CliRunner().invoke(main, ["get", "ippools"], env=environ)
    assert done.exit_code == 1
    assert "unknown datastore type: mongo" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gte"], "no such command: gte; did you mean get?"),
        (["ipam", "shwo"], "no such command: shwo; did you mean show?"),
        (["xyzzy"], "no such command: xyzzy\n"),
        (["get"], "KIND"),
        (["get", "ipools"], "did you mean ippools?"),
        (
            ["get", "ippools", "-o", "xml"],
            "xml: no such form of output; known are ps, wide",
        ),
        (["--bogus"], "--bogus"),
        (["-l", "loud", "version"], "loud"),
    ],
)
def test_wrong_command_lines(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert words in done.stderr
    assert done.stdout == ""


def test_colour_only_where_it_is_wanted() -> None:
    plain = CliRunner().invoke(main, ["xyzzy"], color=True, env={"NO_COLOR": "1"})
    assert "\x1b" not in plain.stderr
    coloured = CliRunner().invoke(main, ["xyzzy"], color=True, env={"NO_COLOR": ""})
    assert "\x1b[31m" in coloured.stderr


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["version", "--client"], ["ipam", "--help"]])
def test_starting_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom tortiectl.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as end: assert not end.code\n"
        "print('MODULES', *sys.modules)\n"
    )
    _, _, modules = run_python(code).partition("MODULES")
    heavy = {"pydantic", "yaml", "requests", "sqlite3", "ssl", "socket", "logging"}
    assert heavy.isdisjoint(modules.split())


def test_the_command_is_installed() -> None:
    command = [str(Path(sys.executable).with_name("tortiectl")), "version", "--client"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == f"Client Version:    v{__version__}\n"
