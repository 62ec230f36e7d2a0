"""Other people's rules beside ours: read by nobody, touched by nobody, and in nobody's way."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from libtortie.model.names import host_ifname
from tests.fakes.agent_world import NAMESPACE
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root

FOREIGN = """
table ip filter {
    counter hits { packets 7 bytes 420 }
    quota much { over 10 mbytes used 0 bytes }
    set cali40s-abc { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 } }
    map ways { type ipv4_addr : verdict; elements = { 192.0.2.1 : accept } }
    chain INPUT {
        type filter hook input priority filter; policy accept;
        ip saddr @cali40s-abc counter name hits comment "cali:6gwbT8clXdHdC1b1"
        ip saddr vmap @ways
    }
    chain cali-fw-cali00000000001 { limit rate 5/second burst 9 packets counter return; }
}
table inet calico {
    chain cali-from-wl-dispatch { iifname "cali*" counter; }
    chain filter-FORWARD { type filter hook forward priority 10; jump cali-from-wl-dispatch; }
}
table ip nat { chain POSTROUTING { type nat hook postrouting priority srcnat; }; }
table bridge tortie { chain c { type filter hook forward priority 0; }; }
"""
TABLES = ("ip filter", "inet calico", "ip nat", "bridge tortie", "inet owned")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    made = NodeProcess(tmp_path, fresh_name("fr"))
    try:
        yield made
    finally:
        made.close()


def nft(node: NodeProcess, *words: str, text: str = "") -> str:
    command = ["nsenter", f"--net=/run/netns/{node.name}", "nft", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, input=text)
    return done.stdout


def owner(node: NodeProcess) -> subprocess.Popen[str]:
    """A program that holds a table which the kernel lets nobody else change."""
    command = ["nsenter", f"--net=/run/netns/{node.name}", "nft", "-i"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None
    holder.stdin.write("add table inet owned { flags owner; }\nadd chain inet owned c\n")
    holder.stdin.flush()

    def owned() -> bool:
        with suppress(subprocess.CalledProcessError):
            return "chain c" in nft(node, "list", "table", "inet", "owned")
        return False

    until("the table is owned", owned)
    return holder


def theirs(node: NodeProcess) -> str:
    return "".join(nft(node, "-s", "list", "table", *table.split()) for table in TABLES)


def test_an_agent_starts_works_and_restarts_beside_other_peoples_rules(node: NodeProcess) -> None:
    nft(node, "-f", "-", text=FOREIGN)
    holder = owner(node)
    try:
        before = theirs(node)
        node.start()
        node.attach("web", vm=False)
        interface = host_ifname(NAMESPACE, "web")
        assert interface in nft(node, "list", "table", "inet", "tortie")
        assert node.stop() == 0
        node.start()
        assert interface in nft(node, "list", "table", "inet", "tortie")
        assert theirs(node) == before
        assert node.lines("apply_failed") == []
    finally:
        holder.kill()
        holder.wait()
