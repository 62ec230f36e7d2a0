"""systemd's units under the real systemd, with the bundle's programs: each starts, does its work
with the rights that its unit leaves it, and stops in order; BIRD outlives the agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.systemd_host import SystemdHost

pytestmark = pytest.mark.root
CONF = json.dumps({"cniVersion": "1.0.0", "name": "n", "type": "tortie"})
POOL = "10.66.0.0/24"
CLIENT = """
apiVersion: projectcalico.org/v3
kind: CalicoAPIConfig
spec: {datastoreType: sqlite, sqlitePath: /var/lib/tortie/tortie.db, sqliteShared: true}
"""
PROXY = "disable_tls: true\nallowed_peers: [10.0.0.0/8]\n"


class Host(SystemdHost):
    """With our units."""

    def configure(self, mode: str) -> None:
        config = {
            "nodename": "trial",
            "ip": "172.31.9.2/24",
            "bird": {"mode": mode},
            "default_pools": {"ipv4": {"cidr": POOL, "nat_outgoing": False}},
        }
        self.write("/etc/tortie/node.yaml", yaml.safe_dump(config))

    def serves(self) -> int:
        """How often an agent has begun to answer CNI requests."""
        return self.journal().count('"event": "cni_serving"')

    def await_agent(self, before: int) -> None:
        until("the agent serves", lambda: self.serves() > before)

    def start(self, *units: str) -> None:
        before = self.serves()
        self.systemctl("start", *units)
        self.await_agent(before)

    def restart(self) -> None:
        before = self.serves()
        self.systemctl("restart", "tortie-node")
        self.await_agent(before)

    def kill(self) -> None:
        before = self.serves()
        self.systemctl("kill", "--signal=KILL", "--kill-who=main", "tortie-node")
        self.await_agent(before)

    def kill_itself(self) -> None:
        """kill -9 of the agent alone: the unit's main process is its keeper."""
        before = self.serves()
        self.run("bash", "-c", "kill -9 $(cat /run/tortie/agent.lock)")
        self.await_agent(before)

    def bird(self) -> int:
        """Its pid, once it answers."""

        def up() -> bool:
            said = self.run("birdc", "-s", "/run/tortie/bird.ctl", "show", "status", ok=False)
            return "up and running" in said

        until("BIRD is up", up)
        return int(self.run("cat", "/run/tortie/bird.pid"))

    def cni(self, verb: str, container: str) -> str:
        variables = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": f"/run/netns/{container}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        return self.run("env", *words, "/opt/cni/bin/tortie", text=CONF)


@pytest.fixture(scope="module")
def host(image_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    work = tmp_path_factory.mktemp("sd") / "work"
    work.mkdir()
    bundle = image_root / "opt/tortie/bundle"
    with closing(Host(work, bundle, fresh_name("tortie-sd"))) as made:
        made.run(
            "/mnt/bundle/bin/tortiectl", "node", "install", "--bundle", "/mnt/bundle", "--systemd"
        )
        made.systemctl("daemon-reload")
        made.systemctl("enable", "tortie-node", "tortie-bird")
        yield made


def forbidden(host: Host) -> list[str]:
    """What a unit's rights kept its program from."""
    words = "not permitted", "ermission denied", "Read-only file system", "SIGSYS", "core-dump"
    return [line for line in host.journal().splitlines() if any(word in line for word in words)]


def test_agent_and_bird_in_units_of_their_own(host: Host) -> None:
    host.configure("external")
    host.start("tortie-bird", "tortie-node")
    bird = host.bird()
    host.run("ip", "netns", "add", "c1")  # after the start: the unit's mounts have to follow
    address = json.loads(host.cni("ADD", "c1"))["ips"][0]["address"]
    inside = host.run("ip", "-n", "c1", "-br", "address", "show", "dev", "eth0")
    assert address in inside
    route = host.run("ip", "route", "show", address)
    assert "cali" in route
    for how in (host.kill_itself, host.restart, host.kill_itself, host.kill):
        how()
        assert host.bird() == bird, how
        assert host.run("ip", "route", "show", address) == route, how
    assert host.show("tortie-node", "NRestarts") == "1", "that of the keeper's death"
    host.kill_itself()
    host.systemctl("stop", "tortie-node")
    assert host.show("tortie-node", "Result") == "success"
    assert host.bird() == bird, "it outlives an agent that is stopped"
    assert "cali" in host.run("nft", "list", "table", "inet", "tortie")
    host.start("tortie-node")
    host.cni("DEL", "c1")
    host.systemctl("restart", "tortie-bird")
    assert host.bird() != bird
    assert host.show("tortie-bird", "Result") == "success"
    assert forbidden(host) == []
    host.systemctl("stop", "tortie-node", "tortie-bird")


def test_a_bird_of_the_agents_is_left_running_and_taken_over(host: Host) -> None:
    host.configure("supervised")
    host.start("tortie-node")
    bird = host.bird()
    host.systemctl("stop", "tortie-node")
    assert host.bird() == bird
    host.start("tortie-node")
    assert host.bird() == bird
    assert forbidden(host) == []
    host.systemctl("stop", "tortie-node")


def test_controllers_and_proxy(host: Host) -> None:
    host.write("/etc/tortie/calicoctl.cfg", CLIENT)
    host.write("/etc/tortie/migration-proxy.yaml", PROXY)
    host.systemctl("start", "tortie-controllers", "tortie-migration-proxy")
    until("a pass is made", lambda: "pass: " in host.journal())
    status = ("/opt/tortie/bin/tortiectl", "migration-proxy", "status")
    until("the proxy serves", lambda: "serving" in host.run(*status, ok=False))
    host.systemctl("stop", "tortie-controllers", "tortie-migration-proxy")
    for unit in ("tortie-controllers", "tortie-migration-proxy"):
        assert host.show(unit, "Result") == "success"
        assert host.show(unit, "NRestarts") == "0"
    assert forbidden(host) == []


def test_an_agent_that_dies_again_and_again_is_started_again(host: Host) -> None:
    """Six times at once: systemd's own limit is five in ten seconds."""
    host.configure("external")
    host.start("tortie-bird", "tortie-node")
    for _ in range(6):
        host.systemctl("restart", "tortie-node")
    host.kill()
    host.systemctl("stop", "tortie-node", "tortie-bird")
