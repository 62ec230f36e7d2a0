"""What BIRD says first, and what it does not wait for: field reports about other speakers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.fakes.bird_nodes
from felix_shim.bgp import render_bird
from felix_shim.bgp_model import BirdInput, Peer
from libtortie.model.plain_ip import plain_address
from tests.fakes.bird_lab import DEADLINE, eventually, inside, ip
from tests.fakes.bird_nodes import BirdNodes

pytestmark = pytest.mark.root
STARTS = 12
LISTENER = "172.31.1.1"
VMS = {4: "10.65.0.2/32", 6: "fd00:65::2/128"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[BirdNodes]:
    made = BirdNodes(tmp_path, 2)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _message(sock: socket.socket) -> bytes:
    """One BGP message (RFC 4271, 4.1)."""
    data = b""
    while len(data) < 19 or len(data) < int.from_bytes(data[16:18]):
        more = sock.recv(4096)
        assert more, "closed in the middle of a message"
        data += more
    return data[: int.from_bytes(data[16:18])]


def test_each_fresh_start_says_the_same(site: BirdNodes) -> None:
    """Capabilities that come and go from start to start confuse graceful restart."""
    ip(site.switch, f"addr add {LISTENER}/24 dev br0")
    node = site.nodes[0]
    said = set()

    def listen() -> socket.socket:
        return socket.create_server((LISTENER, 179))

    with inside(site.switch, listen) as ear:
        ear.settimeout(DEADLINE)
        for _ in range(STARTS):
            node.run(Peer(plain_address(LISTENER), 65000))
            with ear.accept()[0] as sock:
                sock.settimeout(DEADLINE)
                opened = _message(sock)
            assert opened[18] == 1, "an OPEN"
            said.add(opened)
            node.bird.stop()
    assert len(said) == 1


@pytest.mark.parametrize("version", [4, 6])
def test_a_withdrawal_waits_for_no_scan(
    site: BirdNodes, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own notice is enough: here the next scan would be in an hour."""

    def render(config: BirdInput) -> str:
        return render_bird(config).replace("scan time 2;", "scan time 3600;")

    monkeypatch.setattr(tests.fakes.bird_nodes, "render_bird", render)
    here, there = site.nodes
    here.run(there.peer(version, mesh=True))
    there.run(here.peer(version, mesh=True))
    eventually(lambda: here.established(1) and there.established(1))
    cidr = VMS[version]
    for _ in range(10):
        here.workload("add", cidr, 1024)
        eventually(lambda: f"via {here.own(version)} " in there.routes(cidr))
        here.workload("del", cidr, 1024)
        eventually(lambda: not there.routes(cidr))
