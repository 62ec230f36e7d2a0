"""What `get` writes in each form; what is removed with a pool and with a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml

from ipam.client import AddressRequest, IPAMClient
from ipam.ownership import pod_owner
from libtortie.model.ipam import Block
from libtortie.model.keys import Affinities, Blocks, Kind
from tests.fakes.ctl_stores import STORES, CtlOn, on_sqlite, thing

NAMES = "{range .items[*]}{.metadata.name}{'\\n'}{end}"


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[CtlOn]:
    with on_sqlite(tmp_path) as made:
        made.write(
            "create",
            thing(Kind.IP_POOL, "pool-a", cidr="10.65.0.0/24", blockSize=30, natOutgoing=True),
            thing(Kind.IP_POOL, "pool-b", cidr="10.66.0.0/24", disabled=True),
            thing(Kind.NODE, "n1", bgp={"ipv4Address": "192.0.2.11/24"}),
        )
        yield made


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("jsonpath={.items[*].spec.cidr}", "10.65.0.0/24 10.66.0.0/24\n"),
        ("jsonpath=.kind", "IPPoolList\n"),
        ("jsonpath={.items[?(@.spec.disabled==true)].metadata.name}", "pool-b\n"),
        ("custom-columns=NAME,NAT", "NAME     NAT\npool-a   true\npool-b   false\n"),
        ("custom-columns=name", "NAME\npool-a\npool-b\n"),
        (
            "custom-columns=POOL:.metadata.name,OFF:.spec.disabled",
            "POOL     OFF\npool-a   <none>\npool-b   true\n",
        ),
        ("name", "ippool.projectcalico.org/pool-a\nippool.projectcalico.org/pool-b\n"),
    ],
)
def test_forms(ctl: CtlOn, form: str, text: str) -> None:
    assert ctl.run("get", "ippools", "-o", form).stdout == text


def test_a_peer_shows_whose_it_is_as_calicoctl_does(ctl: CtlOn) -> None:
    ctl.write(
        "create",
        thing(Kind.BGP_PEER, "a", node="n1", peerIP="192.0.2.1", asNumber=1),
        thing(Kind.BGP_PEER, "b", nodeSelector="all()", peerSelector="has(rr)"),
        thing(Kind.BGP_PEER, "c", peerIP="192.0.2.1", asNumber=1),
    )
    said = ctl.run("get", "bgppeers", "-o", "custom-columns=NAME,NODE").stdout
    assert said.splitlines()[1:] == ["a      n1", "b      all()", "c      (global)"]


def test_forms_from_files(ctl: CtlOn) -> None:
    file = ctl.root / "template"
    file.write_text(NAMES + "\n")
    assert ctl.run("get", "ipp", "-o", f"jsonpath-file={file}").stdout == "pool-a\npool-b\n\n"
    file.write_text("NAME,DISABLED\n")
    said = ctl.run("get", "ipp", "-o", f"custom-columns-file={file}").stdout
    assert said.splitlines()[2].split() == ["pool-b", "true"]


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("go-template={{.}}", "templates are kubectl's JSONPath here"),
        ("go-template-file=x", "templates are kubectl's JSONPath here"),
        ("jsn", "did you mean json?"),
        ("json=x", "no such form of output"),
        ("jsonpath=", "want -o jsonpath=..."),
        ("jsonpath={.a", "is not closed"),
        ("custom-columns=NAM", "has no column 'NAM'; did you mean NAME?"),
        ("custom-columns-file=/no/such", "/no/such: No such file"),
    ],
)
def test_forms_that_are_none(ctl: CtlOn, form: str, words: str) -> None:
    assert words in ctl.run("get", "ippools", "-o", form, status=1).stderr


def test_lists_are_written_piece_by_piece_as_they_would_be_whole(ctl: CtlOn) -> None:
    said = ctl.run("get", "ippools", "-o", "json").stdout
    body = json.loads(said)
    assert said == json.dumps(body, indent=2, sort_keys=True) + "\n"
    assert yaml.safe_load(ctl.run("get", "ippools", "-o", "yaml").stdout) == body
    for form in ("json", "yaml"):
        none = ctl.run("get", "tiers", "-o", form).stdout
        assert yaml.safe_load(none)["items"] == []
    one = ctl.run("get", "ippool", "pool-a", "-o", "jsonpath-as-json={.spec.blockSize}").stdout
    assert json.loads(one) == [30]


def test_what_is_exported_can_be_created_elsewhere(ctl: CtlOn) -> None:
    said = ctl.run("get", "ippool", "pool-a", "-o", "yaml", "--export").stdout
    body = yaml.safe_load(said)
    assert body["metadata"] == {"name": "pool-a"}
    ctl.run("delete", "ippool", "pool-a")
    ctl.run("create", "-f", "-", text=said)


def test_what_files_name_is_shown(ctl: CtlOn) -> None:
    file = ctl.file(thing(Kind.IP_POOL, "pool-b"), thing(Kind.NODE, "n1"))
    said = ctl.run("get", "-f", file).stdout
    assert [line.split()[0] for line in said.splitlines()] == ["NAME", "pool-b", "NAME", "n1"]
    assert "give a KIND, or -f FILE" in ctl.run("get", status=1).stderr
    assert "give a KIND, or -f FILE" in ctl.run("get", "ipp", "-f", file, status=1).stderr


# --- what goes with a pool and with a node ------------------------------------------------------


@pytest.fixture(params=list(STORES))
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CtlOn]:
    with STORES[request.param](tmp_path) as made:
        made.write("create", thing(Kind.IP_POOL, "pool-a", cidr="10.65.0.0/24", blockSize=30))
        yield made


def owner(pod: str, **more: str) -> dict[str, str]:
    return pod_owner(
        namespace="shop",
        pod=pod,
        node="n1",
        timestamp=datetime.now(UTC),
        container_id="c",
        pod_uid="u",
        **more,
    )


def allocate(on: CtlOn) -> tuple[IPAMClient, str, str]:
    """A pod's address and a VM's, on node n1."""
    client = IPAMClient(on.store, "n1", now=lambda: datetime.now(UTC))
    first = client.assign("net.web", owner("web"), AddressRequest())[0].address
    of_vm = owner("launcher", vmi_name="vm", vmi_uid="v", vm_uid="w")
    second = client.assign("net.vmi.shop.vm", of_vm, AddressRequest())[0].address
    return client, str(first), str(second)


def test_addresses_stay_with_their_owners_when_a_pool_goes(on: CtlOn) -> None:
    client, pod, vm = allocate(on)
    on.run("delete", "ippool", "pool-a")
    assert on.names(Kind.IP_POOL) == []
    assert on.store.names(Affinities()) == ()
    for address in (pod, vm):
        assert client.owner_of(ip_address(address)) is not None
    left = [record.value for record in on.store.list(Blocks(4)).records]
    assert [block.affinity for block in left if isinstance(block, Block)] == [None] * len(left)
    on.run("delete", "ippool", "pool-a", status=1)


def test_a_pool_without_allocations_leaves_nothing(on: CtlOn) -> None:
    client, _, _ = allocate(on)
    client.release("net.web")
    client.release("net.vmi.shop.vm")
    on.run("delete", "ippool", "pool-a")
    assert on.store.names(Blocks(4)) == ()


def test_with_a_node_goes_what_is_its_own_and_no_vms_address(on: CtlOn) -> None:
    if on.environ["DATASTORE_TYPE"] == "kubernetes":
        said = on.run("delete", "node", "n1", status=1).stderr
        assert "a Node is Kubernetes' own: use kubectl" in said
        return
    client, pod, vm = allocate(on)
    on.write(
        "create",
        thing(Kind.NODE, "n1", bgp={"ipv4Address": "192.0.2.11/24"}),
        thing(Kind.NODE, "n2", bgp={"ipv4Address": "192.0.2.12/24"}),
        thing(Kind.HOST_ENDPOINT, "n1-eth0", node="n1", interfaceName="eth0"),
        thing(Kind.HOST_ENDPOINT, "n2-eth0", node="n2", interfaceName="eth0"),
        thing(Kind.FELIX_CONFIGURATION, "node.n1"),
        thing(Kind.FELIX_CONFIGURATION, "default"),
        thing(Kind.BGP_PEER, "of-n1", node="n1", peerIP="192.0.2.1", asNumber=1),
        thing(Kind.BGP_PEER, "of-all", peerIP="192.0.2.1", asNumber=1),
    )
    assert on.run("delete", "node", "n1").output == "Successfully deleted 1 'Node' resource(s)\n"
    assert on.names(Kind.NODE) == ["n2"]
    assert on.names(Kind.HOST_ENDPOINT) == ["n2-eth0"]
    assert on.names(Kind.FELIX_CONFIGURATION) == ["default"]
    assert on.names(Kind.BGP_PEER) == ["of-all"]
    assert client.owner_of(ip_address(pod)) is None
    assert client.owner_of(ip_address(vm)) is not None
    assert on.store.names(Affinities()) == ()
