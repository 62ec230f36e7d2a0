"""An FRR that was told what `tor-config` prints, two nodes' BIRDs, and the canary between them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from felix_shim.bgp_model import Peer
from felix_shim.bird_canary import canaries_of
from libtortie.datastore.memory import MemoryDatastore
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Node, parse_resource
from tests.fakes.bird_lab import DEADLINE, eventually, inside, ip
from tests.fakes.bird_nodes import BirdNode, BirdNodes
from tortiectl.canary import CanaryError, Means, Perch, prove
from tortiectl.tor_config import Neighbour, Tor
from tortiectl.tor_vendors import render

pytestmark = pytest.mark.root
TOR_AS = 65000
TOR = {4: ip_address("172.31.1.1"), 6: ip_address("fd00:1::1")}
POOLS = {4: ip_network("10.65.0.0/16"), 6: ip_network("fd00:65::/64")}
CANARY = {4: ip_address("10.65.0.9"), 6: ip_address("fd00:65::9")}
BGPD = "/usr/lib/frr/bgpd"


class Rack:
    """Two nodes, an FRR, and a datastore that the nodes' agents, played here, obey."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.built = BirdNodes(root, 2)
        self.store = MemoryDatastore()
        self.bgpd: subprocess.Popen[bytes] | None = None
        self.said: list[str] = []

    @property
    def nodes(self) -> list[BirdNode]:
        return self.built.nodes

    def up(self) -> None:
        # Without zebra bgpd knows no interfaces, and refuses next hops that are link-local.
        self.built.up(link_local=False)
        for address in ("172.31.1.1/24", "fd00:1::1/64 nodad"):
            ip(self.built.switch, f"addr add {address} dev br0")
        for node in self.nodes:
            body = {"kind": "Node", "metadata": {"name": node.input.node}, "spec": {}}
            key = ResourceKey(Kind.NODE, node.input.node)
            self.store.create(key, parse_resource(Kind.NODE, body))

    def down(self) -> None:
        self.stop_router()
        self.built.down()

    def route_with(self, text: str) -> None:
        """Run FRR with a configuration."""
        self.stop_router()
        file = self.root / "bgpd.conf"
        file.write_text(f"router bgp {TOR_AS}\n  bgp router-id {TOR[4]}\nexit\n{text}")
        names = ("-f", str(file), "-i", str(self.root / "bgpd.pid"), "--vty_socket", str(self.root))
        command = [BGPD, "-Z", "-S", "-P", "0", *names]
        with (self.root / "bgpd.log").open("ab") as log:
            self.bgpd = inside(
                self.built.switch, lambda: subprocess.Popen(command, stdout=log, stderr=log)
            )

    def stop_router(self) -> None:
        if self.bgpd is not None:
            self.bgpd.kill()
            self.bgpd.wait()
            self.bgpd = None

    def obey(self) -> None:
        """What the agents do when an annotation of their Node changes."""
        for node in self.nodes:
            value = self.store.get(ResourceKey(Kind.NODE, node.input.node)).value
            assert isinstance(value, Node)
            asked = value.metadata.annotations
            found = canaries_of(asked, POOLS.values(), datetime.now(UTC), [])
            peers = (Peer(one, TOR_AS) for one in TOR.values())
            node.run(*peers, canaries=found)

    def look(self, version: int) -> str:
        self.obey()
        net = ip_network(CANARY[version])
        words = f"show bgp ipv{version} unicast {net} bestpath"
        command = ["vtysh", "--vty_socket", str(self.root), "-c", words]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    def prove(self, version: int, timeout: float) -> None:
        first, second = (Perch(node.input.node, node.own(version)) for node in self.nodes)
        means = Means(
            self.store,
            lambda: self.look(version),
            self.said.append,
            lambda: datetime.now(UTC),
            time.monotonic,
            lambda _: time.sleep(0.05),
            timeout,
        )
        prove(means, CANARY[version], (first, second), (1024, 512))


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    tmp_path.chmod(0o755)
    made = Rack(tmp_path)
    try:
        made.up()
        yield made
    finally:
        made.down()


def tor(rack: Rack, version: int, **changes: str) -> Tor:
    neighbours = (Neighbour(one.input.node, one.own(version), 64512) for one in rack.nodes)
    return Tor(TOR[version], TOR_AS, tuple(neighbours), (POOLS[version],), **changes)  # type: ignore[arg-type]  # texts


def established(node: BirdNode) -> bool:
    """Whether the node's IPv4 session with the router is up."""
    wanted = Peer(TOR[4], TOR_AS).protocol
    return any(one.name == wanted and one.established for one in node.bird.sessions())


def test_frr_obeys_in_both_families(rack: Rack) -> None:
    rack.route_with(render("frr", tuple(tor(rack, version) for version in (4, 6))))
    for version in (4, 6):
        rack.prove(version, DEADLINE)
        assert rack.said[-1].startswith("the router prefers the raised route")


def test_an_frr_that_was_told_otherwise_is_found_out(rack: Rack) -> None:
    """It takes the routes and prefers the worse: what a reversed policy would do."""
    text = render("frr", (tor(rack, 4),))
    wrong = text.replace("set local-preference 200", "set local-preference 50")
    assert wrong != text
    rack.route_with(wrong)
    rack.obey()
    eventually(lambda: all(established(node) for node in rack.nodes))
    with pytest.raises(CanaryError, match="announces it at 512, too: after"):
        rack.prove(4, 20.0)
