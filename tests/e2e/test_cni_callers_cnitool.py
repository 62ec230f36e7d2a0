"""The CNI project's own cnitool on our plugin: every verb that it has, by libcni itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.calling_runtime import NETWORK, CallingNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.libcni import JSON
from tests.fakes.node_process import ip, until

pytestmark = pytest.mark.root

CNITOOL = Path(__file__).resolve().parents[2] / "build" / "peer" / "cnitool"
MISSING = f"{CNITOOL} is missing: `make cnitool` builds it from its Go module, or says why not"
LOOPBACK: JSON = {"type": "loopback"}
TUNING: JSON = {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}}
BANDWIDTH: JSON = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
PORTMAP: JSON = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
PORT = 18091
"""None that the node listens at."""
GRANTED = {
    "portMappings": [{"hostPort": PORT, "containerPort": 80, "protocol": "tcp"}],
    "bandwidth": {"ingressRate": 10**6, "ingressBurst": 10**6},
}
PRIVATE = 'mkdir -p /var/lib/cni && mount --bind "$1" /var/lib/cni && shift && exec "$@"'
"""libcni keeps what it remembers in /var/lib/cni: each node has its own there."""


class Cnitool:
    """cnitool in a node's network namespace."""

    def __init__(self, node: CallingNode, cache: Path) -> None:
        self.node = node
        self.cache = cache

    def __call__(self, verb: str, netns: str, network: str = NETWORK) -> JSON:
        """Run it; its result. Raises AssertionError with what it said."""
        done = self.attempt(verb, netns, network)
        assert done.returncode == 0, done.stdout + done.stderr
        found: JSON = json.loads(done.stdout) if done.stdout.strip() else {}
        return found

    def attempt(
        self, verb: str, netns: str, network: str = NETWORK
    ) -> subprocess.CompletedProcess[str]:
        """Run it, whatever its outcome."""
        tool = [str(CNITOOL), verb, network, netns]
        command = ["unshare", "--mount", "sh", "-c", PRIVATE, "sh", str(self.cache), *tool]
        env = {
            "NETCONFPATH": str(self.node.conf_dir),
            "CNI_PATH": str(self.node.bin_dir),
            "CAP_ARGS": json.dumps(GRANTED),
        }
        return subprocess.run(
            self.node.inside_command(*command),
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CallingNode]:
    assert CNITOOL.exists(), MISSING
    with closing(CallingNode(tmp_path / "node", fresh_name("ct"))) as made:
        made.start()
        yield made


@pytest.fixture
def cnitool(node: CallingNode, tmp_path: Path) -> Cnitool:
    (tmp_path / "cache").mkdir()
    return Cnitool(node, tmp_path / "cache")


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_every_verb(node: CallingNode, cnitool: Cnitool, version: str) -> None:
    node.configure(node.network(version=version))
    one, two = node.sandbox("c1"), node.sandbox("c2")
    result = cnitool("add", one)
    assert result["cniVersion"] == version
    assert [item["name"] for item in result["interfaces"]][1] == "eth0"
    cnitool("add", two)
    cnitool("check", one)
    cnitool("check", two)
    cnitool("status", one)
    ip_of = result["ips"][0]["address"].partition("/")[0]
    assert len(node.owners()) == 2
    cnitool("del", one)
    assert ip_of not in node.owners()
    assert cnitool.attempt("check", one).returncode != 0
    cnitool("check", two)
    cnitool("del", one)
    cnitool("gc", two)  # cnitool names nothing that is valid: libcni deletes what it remembers
    assert node.owners() == {}
    until("policy goes", lambda: not node.left()["status"])


@pytest.mark.parametrize(
    ("before", "behind"),
    [((LOOPBACK,), ()), ((), (TUNING,)), ((LOOPBACK,), (BANDWIDTH, TUNING))],
    ids=["first", "last", "between"],
)
def test_in_a_chain_with_the_reference_plugins(
    node: CallingNode, cnitool: Cnitool, before: tuple[JSON, ...], behind: tuple[JSON, ...]
) -> None:
    node.configure(node.network(*behind, before=before, version="1.0.0"))
    one = node.sandbox("c1")
    result = cnitool("add", one)
    names = [item["name"] for item in result["interfaces"]]
    assert names[len(before) + 1] == "eth0"
    cnitool("check", one)
    ip("-n", one.rpartition("/")[2], "link", "set", "eth0", "mtu", "9000")
    refused = cnitool.attempt("check", one)
    assert refused.returncode != 0
    assert "MTU 9000" in refused.stdout + refused.stderr, (
        "ours found it, wherever it is in the list"
    )
    cnitool("del", one)
    cnitool("del", one)
    assert node.owners() == {}


def test_a_port_is_mapped_and_given_back(node: CallingNode, cnitool: Cnitool) -> None:
    node.configure(node.network(PORTMAP, version="1.0.0"))
    one = node.sandbox("c1")
    cnitool("add", one)
    assert str(PORT) in nat_rules(node)
    cnitool("del", one)
    assert str(PORT) not in nat_rules(node)
    assert node.owners() == {}


def nat_rules(node: CallingNode) -> str:
    command = node.inside_command("iptables-save", "-t", "nat")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_status_that_says_no(node: CallingNode, cnitool: Cnitool) -> None:
    node.configure(node.network(version="1.1.0", ipam={"ipv4_pools": ["nowhere"]}))
    done = cnitool.attempt("status", node.sandbox("c1"))
    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr


def test_an_add_that_is_refused_tells_what_the_plugin_said(
    node: CallingNode, cnitool: Cnitool
) -> None:
    node.configure(node.network(version="1.1.0", ipam={"ipv4_pools": ["nowhere"]}))
    done = cnitool.attempt("add", node.sandbox("c1"))
    assert done.returncode != 0
    assert "the given pool (nowhere) does not exist" in done.stdout + done.stderr
    assert node.owners() == {}


def test_an_interface_of_the_name_is_not_replaced(node: CallingNode, cnitool: Cnitool) -> None:
    node.configure(node.network(version="1.1.0"))
    before, one = node.left(), node.sandbox("c1")
    inside = one.rpartition("/")[2]
    ip("-n", inside, "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    done = cnitool.attempt("add", one)
    assert done.returncode != 0
    assert "eth0" in done.stdout + done.stderr
    ip("-n", inside, "link", "show", "other")  # which would have gone with eth0
    node.rest(before)
