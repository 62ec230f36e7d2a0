"""`tortiectl bgp tor-config`: whom it names, and what the routers' own parsers say of the text."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ipam.client import AddressRequest, IPAMClient
from libtortie.datastore.sqlite import SqliteDatastore
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node, parse_resource
from tortiectl.cli import main
from tortiectl.tor_vendors import VENDORS

PASSWORD = {"secretKeyRef": {"name": "bgp", "key": "tor"}}


class Cluster:
    """A datastore, and the command line on it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "t.db"
        self.store = SqliteDatastore(self.path)

    def put(self, kind: Kind, name: str, *labels: str, **spec: Any) -> None:
        metadata = {"name": name, "labels": dict.fromkeys(labels, "")}
        body = {"metadata": metadata, "kind": kind, "spec": spec}
        self.store.create(ResourceKey(kind, name), parse_resource(kind, body))

    def ask(self, *words: str) -> Result:
        environ = {"DATASTORE_TYPE": "sqlite", "TORTIE_SQLITE_PATH": str(self.path)}
        return CliRunner(env=environ).invoke(main, ["bgp", *words])

    def config(self, vendor: str, *words: str) -> str:
        done = self.ask("tor-config", "--vendor", vendor, *words)
        assert done.exit_code == 0, done.output
        return done.output

    def refusal(self, *words: str) -> str:
        done = self.ask(*words)
        assert done.exit_code == 1
        return done.output


@pytest.fixture
def empty(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def cluster(empty: Cluster) -> Cluster:
    """Two racks' worth: two nodes of this ToR's rack, one elsewhere; both families."""
    for n, labels in ((2, ["r1"]), (3, ["r1"]), (4, [])):
        bgp: dict[str, Any] = {"ipv4Address": f"172.31.1.{n}/24", "ipv6Address": f"fd00:1::{n}/64"}
        if n == 3:
            bgp["asNumber"] = 64513
        empty.put(Kind.NODE, f"n{n}", *labels, bgp=bgp)
    only: dict[str, Any] = {"nodeSelector": "has(r1)", "asNumber": 65000}
    empty.put(Kind.BGP_PEER, "tor", **only, peerIP="172.31.1.1", ttlSecurity=1, password=PASSWORD)
    empty.put(Kind.BGP_PEER, "tor6", **only, peerIP="fd00:1::1")
    empty.put(Kind.BGP_PEER, "reflector", peerIP="172.31.1.4")
    empty.put(Kind.IP_POOL, "p4", cidr="10.65.0.0/16")
    empty.put(Kind.IP_POOL, "q4", cidr="10.66.0.0/16", disabled=True)
    empty.put(Kind.IP_POOL, "hidden", cidr="10.67.0.0/16", disableBGPExport=True)
    empty.put(Kind.IP_POOL, "p6", cidr="fd00:65::/64")
    empty.put(Kind.FELIX_CONFIGURATION, "default", ipv4ElevatedRoutePriority=500)
    empty.put(Kind.BGP_CONFIGURATION, "node.n3", listenPort=1790)
    return empty


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_vendor_hears_of_the_racks_nodes_the_pools_and_the_mark(
    cluster: Cluster, vendor: str
) -> None:
    text = cluster.config(vendor, "--peer", "tor", "--peer", "tor6")
    for word in ("172.31.1.2", "172.31.1.3", "fd00:1::2", "64513", "10.65.0.0/16", "10.66.0.0/16",
                 "fd00:65::/64", "65000", "500", "512", "200"):  # fmt: skip
        assert word in text, word
    for word in ("172.31.1.4", "10.67.0.0"):
        assert word not in text, word
    assert "tor" in text
    assert "Secret" in text, "the password is said to be somewhere, and is not in the text"


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_community_in_place_of_the_metric(cluster: Cluster, vendor: str) -> None:
    for community in ("65000:100", "65000:1:2"):
        text = cluster.config(vendor, "--peer", "tor", "--community", community)
        assert community in text.replace(", ", ":")
        assert "metric 500" not in text
        assert "bgp_med" not in text


@pytest.mark.parametrize("community", ["", "65000:100", "65000:1:2"])
def test_bird_and_frr_take_their_texts(cluster: Cluster, tmp_path: Path, community: str) -> None:
    words = ("--peer", "tor", "--peer", "tor6", *(("--community", community) if community else ()))
    for vendor, head, command in (
        ("bird", "router id 1.1.1.1;\nprotocol device { }\n", ("bird", "-p", "-c")),
        ("frr", "", ("vtysh", "-C", "-f")),
    ):
        file = tmp_path / vendor
        file.write_text(head + cluster.config(vendor, *words))
        done = subprocess.run([*command, str(file)], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_frrs_parser_is_one(tmp_path: Path) -> None:
    file = tmp_path / "frr"
    file.write_text("router bgp 65000\n  neighbour 172.31.1.2 remote-as 1\n")
    done = subprocess.run(["vtysh", "-C", "-f", str(file)], check=False, capture_output=True)
    assert done.returncode != 0


def test_the_only_router_needs_no_name_and_of_several_one_is_asked_for(cluster: Cluster) -> None:
    said = cluster.refusal("tor-config", "--vendor", "frr")
    assert "several routers: choose with --peer from tor, tor6" in said
    cluster.store.delete(ResourceKey(Kind.BGP_PEER, "tor6"))
    assert "172.31.1.2" in cluster.config("frr")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("tor-config", "--vendor", "frr"), "no BGPPeer with the peerIP of a router"),
        (("tor-config", "--vendor", "frr", "--peer", "x"), "BGPPeer x: no such resource"),
        (("tor-config", "--vendor", "frr", "--community", "x"), "--community: 'x' is no community"),
        (("tor-config", "--vendor", "nokia"), "'nokia' is not one of"),
        (("canary", "n1", "--tor-command", "true"), "{prefix} or {address} must be in it"),
        (("canary", "n1", "--tor-command", "'{address}"), "--tor-command: No closing quotation"),
        (("canary", "n1", "--tor-command", "echo {address}"), "no other node than n1"),
    ],
)
def test_what_cannot_be_asked(empty: Cluster, words: tuple[str, ...], problem: str) -> None:
    assert problem in empty.refusal(*words)


def test_a_router_without_nodes_or_pools(empty: Cluster) -> None:
    empty.put(Kind.BGP_PEER, "tor", peerIP="172.31.1.1")
    asked = ("tor-config", "--vendor", "bird")
    assert "no node with an IPv4 address has it" in empty.refusal(*asked)
    empty.put(Kind.NODE, "n1", bgp={"ipv4Address": "172.31.1.2/24"})
    assert "no IPv4 pool is exported" in empty.refusal(*asked)
    empty.put(Kind.BGP_PEER, "bad", peerIP="172.31.1.9", ttlSecurity=999)
    assert "spec.ttlSecurity" in empty.refusal(*asked, "--peer", "bad")
    empty.put(Kind.BGP_PEER, "nodes", peerSelector="all()")
    assert "it is about nodes" in empty.refusal(*asked, "--peer", "nodes")


def pair(empty: Cluster) -> None:
    """Two nodes and a pool."""
    for n in (2, 3):
        empty.put(Kind.NODE, f"n{n}", bgp={"ipv4Address": f"172.31.1.{n}/24"})
    empty.put(Kind.IP_POOL, "p4", cidr="10.65.0.0/24")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo none to {address}", "the router uses neither node, not n2"),
        ("sh -c 'echo no such host >&2; exit 7' {address}", "status 7: no such host"),
        ("/no/such/program {address}", "--tor-command: "),
    ],
)
def test_a_canary_gives_its_address_back_however_it_ends(
    empty: Cluster, command: str, problem: str
) -> None:
    pair(empty)
    said = empty.refusal("canary", "n3", "--timeout", "1", "--tor-command", command)
    assert problem in said
    ipam = IPAMClient(empty.store, "n3", now=lambda: datetime.now(UTC))
    assert ipam.by_handle("tortie-bgp-canary.n3") == ()
    for name in ("n2", "n3"):
        value = empty.store.get(ResourceKey(Kind.NODE, name)).value
        assert isinstance(value, Node)
        assert value.metadata.annotations == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--address", "fd00::1"), "--address: fd00::1 is not IPv4"),
        (("--address", "x"), "--address: 'x' does not appear to be"),
        (("--against", "n3"), "want another node than n3"),
        (("--against", "n9"), "Node n9: no such node; there are n2, n3"),
        (("--ipv6",), "there is no other node than n3 with an IPv6 address"),
    ],
)
def test_a_canary_that_cannot_be(empty: Cluster, words: tuple[str, ...], problem: str) -> None:
    pair(empty)
    assert problem in empty.refusal("canary", "n3", "--tor-command", "echo {address}", *words)


def test_an_address_that_somebody_has_is_no_canary(empty: Cluster) -> None:
    pair(empty)
    ipam = IPAMClient(empty.store, "n3", now=lambda: datetime.now(UTC))
    (held,) = ipam.assign("somebody", {"node": "n3"}, AddressRequest())
    words = ("canary", "n3", "--address", str(held.address), "--tor-command", "echo {address}")
    assert f"--address: {held.address} is in use" in empty.refusal(*words)
