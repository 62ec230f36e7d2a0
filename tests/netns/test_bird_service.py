"""`tortie-bird` beside the agent: it outlives it, waits for it, and its own end costs no route."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest
import yaml

from felix_shim.drivers.bird import Bird
from tests.fakes.bird_lab import BLOCK, RTM_DELROUTE, BirdLab, Watch, eventually, ip
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import DEADLINE, NodeProcess, until

pytestmark = pytest.mark.root
SERVICE = [sys.executable, "-m", "felix_shim.bird_service", "--config"]


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


def setpriv(unit: str) -> list[str]:
    """What a unit lets its program do, as setpriv(1) says it."""
    text = resources.files("conf").joinpath("systemd", unit).read_text()
    match = re.search(r"^CapabilityBoundingSet=(.+)$", text, re.MULTILINE)
    assert match and "NoNewPrivileges=yes" in text
    names = [name.removeprefix("CAP_").lower() for name in match[1].split()]
    bounding = ",".join(["-all", *(f"+{name}" for name in names)])
    return ["setpriv", f"--bounding-set={bounding}", "--inh-caps=-all", "--no-new-privs"]


class Confined(NodeProcess):
    """A node whose agent has the rights of its unit, and a BIRD of somebody else's."""

    def spawn(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        rights = setpriv("tortie-node.service") if self.module in command else []
        return super().spawn([*rights, *command], log)

    @property
    def socket(self) -> Path:
        return self.root / "run/bird.ctl"

    def bird(self) -> int:
        """The pid of the BIRD that answers and has the agent's configuration."""
        command = ["birdc", "-s", str(self.socket), "show protocols"]
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
    rights = setpriv("tortie-bird.service")
    with serving(node.name, config, node.root / "bird.log", *rights):
        node.start()
        pid = until("BIRD runs", node.bird)
        node.attach("pod1")
        assert node.metrics("pod1") == [1024], "the agent's rights are enough"
        for number in (signal.SIGKILL, signal.SIGTERM):
            assert node.stop(number) == (0 if number == signal.SIGTERM else -number)
            assert node.bird() == pid
            node.start()
        assert node.bird() == pid
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
    assert f"`birdc -s {node.socket} graceful restart`" in str(line["reason"])
    assert node.bird() == pid


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
    eventually(lambda: str(BLOCK) in ip(lab.tor, "route show"))
    with (
        Watch(lab.tor, BLOCK.network_address) as far,  # type: ignore[arg-type]  # the block is IPv4
        Watch(lab.nodes[0], BLOCK.network_address) as near,  # type: ignore[arg-type]  # as above
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
        assert str(BLOCK) in ip(lab.tor, "route show")
        service = Service(lab.nodes[0], config, lab.workdir / "last.log")
        eventually(lambda: lab.birds[0].alive() and lab.established())
        lab.birds[0].stop()  # an end in order is another thing
        far.wait_for(RTM_DELROUTE)
        assert service.process.wait(DEADLINE) == 1
