"""`tortie-bird` beside the agent: it outlives it, waits for it, and its own end costs no route."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from unittest.mock import ANY

import pytest
import yaml

from cni_plugin.frame import encode_request, read_response
from felix_shim.drivers.bird import Bird
from libtortie.model.keys import Kind
from tests.fakes.agent_world import NODE, resource_record
from tests.fakes.bird_lab import BLOCK, RTM_DELROUTE, BirdLab, Watch, eventually
from tests.fakes.bird_lab import ip as ip_in
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, NodeProcess, ip, until

pytestmark = pytest.mark.root
SERVICE = [sys.executable, "-m", "felix_shim.bird_service", "--config"]
DENY_WRITE_EXECUTE = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:  # PR_SET_MDWE, which programs inherit
    sys.exit("this kernel does not know PR_SET_MDWE")
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Service:
    """A tortie-bird in a namespace."""

    def __init__(self, namespace: str, config: Path, log: Path, *before: str) -> None:
        self.log = log
        command = ["nsenter", f"--net=/run/netns/{namespace}", *before, *SERVICE, str(config)]
        with log.open("ab") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)

    def said(self, event: str) -> list[dict[str, object]]:
        """Its log's lines of an event."""
        whole = self.log.read_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


@contextmanager
def serving(namespace: str, config: Path, log: Path, *before: str) -> Iterator[Service]:
    """One that is ended with what it runs."""
    made = Service(namespace, config, log, *before)
    try:
        yield made
    finally:
        made.stop()


def confined(unit: str) -> list[str]:
    """A command before a command: with no more rights than a unit gives its program."""
    text = resources.files("conf").joinpath("systemd", unit).read_text()
    match = re.search(r"^CapabilityBoundingSet=(.+)$", text, re.MULTILINE)
    assert match and "NoNewPrivileges=yes" in text and "MemoryDenyWriteExecute=yes" in text
    names = [name.removeprefix("CAP_").lower() for name in match[1].split()]
    bounding = ",".join(["-all", *(f"+{name}" for name in names)])
    no_new_code = [sys.executable, "-c", DENY_WRITE_EXECUTE]
    rights = ["setpriv", f"--bounding-set={bounding}", "--inh-caps=-all", "--no-new-privs"]
    return [*no_new_code, *rights]


class Confined(NodeProcess):
    """A node whose agent has the rights of its unit, and a BIRD of somebody else's."""

    def spawn(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        rights = confined("tortie-node.service") if self.module in command else []
        return super().spawn([*rights, *command], log)

    def call(self, verb: str) -> tuple[int, str]:
        """A runtime's call for a pod; code and answer."""
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": f"/run/netns/{self.namespaces[1]}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod1",
        }
        conf = {
            "cniVersion": "1.0.0",
            "name": "k8s-pod-network",
            "type": "tortie",
            "nodename": NODE,
            "datastore_type": "sqlite",
            "sqlite_shared": True,
            "sqlite_path": str(self.root / "tortie.db"),
            "policy_setup_timeout_seconds": 90,
            "policy_setup_on_timeout": "fail",
            "endpoint_status_dir": str(self.root / "run/endpoint-status"),
        }
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2 * DEADLINE)
            client.connect(str(self.root / "run/cni.sock"))
            client.sendall(encode_request(env, json.dumps(conf).encode()))
            answer = read_response(client)
        return answer.code, answer.stdout.decode()

    @property
    def control(self) -> Path:
        return self.root / "run/bird.ctl"

    def speaks_bgp(self) -> bool:
        """Whether somebody listens at BGP's port."""
        command = ["ss", "-N", self.name, "-Hltn", "sport = :179"]
        return bool(subprocess.run(command, check=True, capture_output=True).stdout)

    def bird_conf(self) -> str:
        """What BIRD has been told."""
        return (self.root / "run/bird.conf").read_text()

    def bird(self) -> int:
        """The pid of the BIRD that answers and has the agent's configuration."""
        command = ["birdc", "-s", str(self.control), "show protocols"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return int((self.root / "run/bird.pid").read_text()) if "fib4" in done.stdout else 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Confined]:
    made = Confined(tmp_path, fresh_name("bs"), bird={"mode": "external"})
    try:
        yield made
    finally:
        made.close()


def test_bird_outlives_the_agent(node: Confined) -> None:
    """It waits for the agent, then stays the same one, by the rights that its unit gives."""
    config = node.root / "node.yaml"
    config.write_text(yaml.safe_dump(node.config))
    rights = confined("tortie-bird.service")
    with serving(node.name, config, node.root / "bird.log", *rights):
        node.start()
        pid = until("BIRD runs", node.bird)
        pool = resource_record(Kind.IP_POOL, "pool", {"cidr": "10.65.0.0/24", "blockSize": 26})
        node.store.create(pool.key, pool.value)
        ip("netns", "add", f"{node.name}-pod1")
        node.namespaces.append(f"{node.name}-pod1")
        assert node.call("ADD") == (0, ANY), "the agent's rights are enough"
        assert node.metrics("pod1") == [1024]
        until("BIRD has the block", lambda: "10.65.0." in node.bird_conf())
        peer = resource_record(Kind.BGP_PEER, "tor", {"peerIP": "172.31.1.1", "asNumber": 65000})
        node.store.create(peer.key, peer.value)
        until("and so are BIRD's", node.speaks_bgp)
        for number in (signal.SIGKILL, signal.SIGTERM):
            assert node.stop(number) == (0 if number == signal.SIGTERM else -number)
            assert node.bird() == pid
            node.start()
        assert node.bird() == pid
        assert node.call("DEL") == (0, ANY)
    assert node.bird() == 0


def test_who_waits_may_be_stopped(node: Confined) -> None:
    config = node.root / "node.yaml"
    config.write_text(yaml.safe_dump(node.config))
    service = Service(node.name, config, node.root / "bird.log")
    until("it waits", (node.root / "run/bird.lock").exists)
    assert service.stop() == 0
    assert service.said("bird_started") == []


def test_a_second_one_is_refused(node: Confined) -> None:
    node.start()
    config = node.root / "node.yaml"
    with serving(node.name, config, node.root / "bird.log"):
        pid = until("BIRD runs", node.bird)
        second = Service(node.name, config, node.root / "second.log")
        assert second.process.wait(DEADLINE) == 1
        (line,) = second.said("bird_failed")
        assert "bird.lock" in str(line["reason"])
        assert node.bird() == pid


def test_a_bird_of_the_agents_is_left_alone(node: Confined) -> None:
    """After a change from supervised to external: the way out is named."""
    node.config["bird"] = {"mode": "supervised"}
    node.start()
    pid = until("BIRD runs", node.bird)
    assert node.stop() == 0
    node.config["bird"] = {"mode": "external"}
    node.start()
    service = Service(node.name, node.root / "node.yaml", node.root / "bird.log")
    assert service.process.wait(DEADLINE) == 1
    (line,) = service.said("bird_failed")
    assert f"`birdc -s {node.control} graceful restart`" in str(line["reason"])
    assert node.bird() == pid


def test_the_bird_of_a_killed_one_is_the_next_ones(node: Confined) -> None:
    """No session ends, nobody has to end anything, and it is looked after as an own one."""
    node.start()
    config, log = node.root / "node.yaml", node.root / "bird.log"
    first = Service(node.name, config, log)
    pid = until("BIRD runs", node.bird)
    first.stop(signal.SIGKILL)
    assert node.bird() == pid
    second = Service(node.name, config, log)
    (line,) = until("it is adopted", lambda: second.said("bird_adopted"))
    assert line["pid"] == pid == node.bird()
    assert second.stop() == 0
    assert not node.control.exists(), "ended, in the way that keeps routes"
    third = Service(node.name, config, log)
    pid = until("another BIRD runs", node.bird)
    third.stop(signal.SIGKILL)
    fourth = Service(node.name, config, log)
    until("it is adopted", lambda: len(fourth.said("bird_adopted")) == 2)
    os.kill(pid, signal.SIGKILL)
    assert fourth.process.wait(DEADLINE) == 1
    assert fourth.said("bird_ended")


def test_it_ends_with_bird(node: Confined) -> None:
    """For its supervisor to start both again."""
    node.start()
    service = Service(node.name, node.root / "node.yaml", node.root / "bird.log")
    os.kill(until("BIRD runs", node.bird), signal.SIGKILL)
    assert service.process.wait(DEADLINE) == 1
    (line,) = service.said("bird_ended")
    assert line["status"] == -signal.SIGKILL


def test_the_agent_that_looks_after_bird_itself(node: Confined, tmp_path: Path) -> None:
    path = tmp_path / "supervised.yaml"
    path.write_text(yaml.safe_dump({**node.config, "bird": {"mode": "supervised"}}))
    done = subprocess.run([*SERVICE, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "bird.mode is supervised: the agent looks after BIRD itself" in done.stderr


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[BirdLab]:
    """Node 0's BIRD is where tortie-bird has it."""
    built = BirdLab(tmp_path, "l2")
    run_dir = tmp_path / "run"
    places = (run_dir / f"bird.{end}" for end in ("conf", "ctl", "pid"))
    built.birds[0] = Bird(*places, deadline=DEADLINE)
    try:
        built.up()
        eventually(built.established)
        yield built
    finally:
        built.down()


def test_the_peers_keep_the_routes_while_bird_is_replaced(lab: BirdLab) -> None:
    """Neither the router nor the node's own kernel misses the block for a moment."""
    config = lab.workdir / "node.yaml"
    settings = {"nodename": "node0", "bird": {"mode": "external"}}
    config.write_text(yaml.safe_dump({**settings, "run_dir": str(lab.workdir / "run")}))
    eventually(lambda: str(BLOCK) in ip_in(lab.tor, "route show"))
    with (
        Watch(lab.tor, BLOCK.network_address) as far,
        Watch(lab.nodes[0], BLOCK.network_address) as near,
    ):
        lab.birds[0].restart_gracefully()
        for number in range(3):
            eventually(lambda: not lab.birds[0].alive())
            service = Service(lab.nodes[0], config, lab.workdir / f"service{number}.log")
            eventually(lab.birds[0].alive)
            eventually(lambda: lab.established() and not lab.birds[0].recovering())
            assert service.stop() == 0
            (line,) = service.said("bird_stopped")
            assert line["status"] == 0
        assert RTM_DELROUTE not in far.drain() + near.drain()
        assert str(BLOCK) in ip_in(lab.tor, "route show")
        service = Service(lab.nodes[0], config, lab.workdir / "last.log")
        eventually(lambda: lab.birds[0].alive() and lab.established())
        lab.birds[0].stop()  # an end in order is another thing
        far.wait_for(RTM_DELROUTE)
        assert service.process.wait(DEADLINE) == 1
