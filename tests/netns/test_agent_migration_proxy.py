"""`tortie-node --migration-proxy`: the agent starts the proxy, and again; adopts it; stops it."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.processes import in_namespaces, namespace_inodes, start_time
from libtortie.control_client import ask
from libtortie.errors import Unavailable
from tests.fakes.fresh_names import fresh_name
from tests.fakes.migration_proxies import KEY, PATIENCE, Pki
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root


class ProxyNode(NodeProcess):
    """A node whose agent keeps a proxy; `wanted` is the proxy's configuration."""

    def __init__(self, root: Path, name: str) -> None:
        self.wanted = root / "proxy.yaml"
        super().__init__(root, name, migration_proxy=str(self.wanted))
        tls = Pki.make(root / "pki").tls().model_dump()
        self.proxy_config: dict[str, Any] = {"tls": tls, "listen": "127.0.0.1"}
        self.wanted.write_text(json.dumps(self.proxy_config))

    def do(self, verb: str, **more: Any) -> dict[str, Any]:
        """Ask the proxy."""
        path = self.root / "run" / "migration-proxy.sock"
        return ask(str(path), {"do": verb, **more}, seconds=PATIENCE)

    def pid(self) -> int:
        """The proxy's process; 0 while none answers."""
        try:
            return int(self.do("status")["pid"])
        except Unavailable:
            return 0

    def proxy(self) -> int:
        """The same, once it answers."""
        until("the proxy answers", self.pid)
        return self.pid()

    def migrate(self) -> None:
        """Have a migration that keeps the proxy from ending its drain."""
        self.do("start-target", key=KEY, files=[str(self.root / "virtqemud-sock")])


@pytest.fixture
def node() -> Iterator[ProxyNode]:
    made = ProxyNode(Path(tempfile.mkdtemp(prefix="tt-")), fresh_name("proxy"))
    try:
        yield made
    finally:
        made.close()


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    return start_time(pid) is None


def test_started_started_again_and_stopped(node: ProxyNode) -> None:
    node.start()
    first = node.proxy()
    os.kill(first, signal.SIGKILL)
    until("another proxy answers", lambda: node.pid() not in (0, first))
    second = node.pid()
    (ended,) = node.lines("migration_proxy_ended")
    assert (ended["pid"], ended["status"], ended["level"]) == (first, -signal.SIGKILL, "error")
    assert node.stop() == 0
    assert gone(second)
    *_, ended = node.lines("migration_proxy_ended")
    assert (ended["pid"], ended["status"], ended["level"]) == (second, 0, "info")


def test_an_agent_that_is_told_to_stop_serves_on_while_the_proxy_drains(node: ProxyNode) -> None:
    node.start()
    node.proxy()
    node.migrate()
    agent = node.agent
    assert agent is not None
    agent.send_signal(signal.SIGTERM)
    until("the proxy drains", lambda: node.do("status")["shutting_down"])
    assert agent.poll() is None
    assert (node.root / "run" / "cni.sock").exists()
    assert not node.lines("agent_stopped")
    node.do("stop-target", key=KEY)
    assert node.stop() == 0
    (ended,) = node.lines("migration_proxy_ended")
    assert ended["status"] == 0


def test_a_killed_agent_leaves_it_to_the_next_one(node: ProxyNode) -> None:
    """With its migrations: they do not notice."""
    node.start()
    pid = node.proxy()
    node.migrate()
    ports = node.do("target-ports", key=KEY)
    node.stop(signal.SIGKILL)
    assert node.do("target-ports", key=KEY) == ports
    node.start()
    until("the proxy is adopted", lambda: node.lines("migration_proxy_adopted"))
    assert node.do("target-ports", key=KEY) == ports
    assert node.pid() == pid
    node.do("stop-target", key=KEY)
    assert node.stop() == 0
    assert gone(pid)


def test_an_adopted_one_that_is_killed_is_started_again(node: ProxyNode) -> None:
    node.start()
    pid = node.proxy()
    node.stop(signal.SIGKILL)
    node.start()
    until("the proxy is adopted", lambda: node.lines("migration_proxy_adopted"))
    os.kill(pid, signal.SIGKILL)
    until("another proxy answers", lambda: node.pid() not in (0, pid))


def test_a_proxy_that_cannot_begin_hinders_nobody(node: ProxyNode) -> None:
    """The agent serves CNI, tells of it, and tries again until the file is mended."""
    node.wanted.write_text("lisen: migration0")
    node.start()
    until("it has ended twice", lambda: len(node.lines("migration_proxy_ended")) > 1)
    assert {line["status"] for line in node.lines("migration_proxy_ended")} == {1}
    assert "lisen: Extra inputs" in (node.root / "stderr.log").read_text()
    node.wanted.write_text(json.dumps(node.proxy_config))
    node.proxy()
    assert node.stop() == 0


def test_without_the_option_nothing_of_it_runs(node: ProxyNode) -> None:
    """Its configuration alone, even in the usual place, starts nothing."""
    del node.config["migration_proxy"]
    node.config["cni_workers"] = 0
    node.start()
    assert node.agent is not None
    until("all is settled", lambda: node.lines("cni_serving"))
    assert set(in_namespaces(namespace_inodes([node.name]))) == {node.agent.pid}
    assert not (node.root / "run" / "migration-proxy.sock").exists()
    assert node.stop() == 0
    assert not [line for line in node.lines() if "migration_proxy" in line["event"]]
