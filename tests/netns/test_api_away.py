"""The API server is away for an hour. Nothing of what runs is torn down, calls are told to come
again, and once it is back everything is as it says, without a restart of anything of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.apiserver.server import ApiServer
from libtortie.kube.policies import KubeNetworkPolicy
from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import API_PORT, until

pytestmark = pytest.mark.root
PORT = 9091
HOUR = 3600.0
LAUNCHER = "virt-launcher-db-1"
CLOSED = {
    "metadata": {"name": "closed", "namespace": "default"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


class Abandoned(CalledNode):
    """A node whose API comes and goes, and whose time can run."""

    def __init__(self, root: Path) -> None:
        self.time = root / "time"
        self.time.mkdir(parents=True)
        super().__init__(root, fresh_name("aw"), metrics_port=PORT)
        self.module = "tests.fakes.hasty_agent"

    def leave(self) -> None:
        """The API server ends."""
        self.server.close()

    def come_back(self) -> None:
        """Another one, with what was stored."""
        assert self.server.crashes == []
        self.server = ApiServer(api=self.world.kube.api, port=API_PORT)
        self.inside(self.server.start)

    def elapsed(self) -> float:
        return float((self.time / "elapsed").read_text())

    def pass_(self, seconds: float) -> None:
        """Let the agent's time pass."""
        end = self.elapsed() + seconds
        (self.time / "hurry").touch()
        try:
            until("the time has passed", lambda: self.elapsed() >= end, seconds=300)
        finally:
            (self.time / "hurry").unlink()

    def seen(self) -> dict[str, Any]:
        """What those who run here have."""
        return {
            "links": [one["ifname"] for one in self.ip_json("link")],
            "routes": {one["dst"]: one.get("metric") for one in self.ip_json("route")},
            "rules": re.sub(r"packets \d+ bytes \d+", "", self.rules()),
            "status": [self.status("web"), self.status(LAUNCHER)],
            "owners": self.owners(),
            "endpoints": self.endpoints(),
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Abandoned]:
    monkeypatch.setenv("HASTY", str(tmp_path / "node" / "time"))
    made = Abandoned(tmp_path / "node")
    try:
        made.world.put_vm()
        made.world.put_launcher(LAUNCHER)
        for pod in ("web", "new"):
            made.world.put_pod(pod)
        made.world.kube.put(CLOSED, KubeNetworkPolicy)
        made.start()
        yield made
    finally:
        made.close()


def test_an_hour_without_the_api_takes_nothing_away(node: Abandoned) -> None:
    node.done("ADD", "web", "c1")
    node.done("ADD", LAUNCHER, "c2")
    until("it is ready", lambda: node.probe("/readyz") == {})
    before = node.seen()
    assert node.agent is not None
    process = node.agent.pid

    node.leave()
    until("its absence is told", lambda: {"api", "watches"} <= node.probe("/readyz").keys())
    node.pass_(HOUR)
    assert node.probe("/livez") == {}, "a restart would cure nothing"
    assert node.seen() == before
    answer = node.call("ADD", "new", "c3")
    assert answer.code == 11, answer
    assert "127.0.0.1" in answer.body["msg"], "it says who is silent"
    assert node.seen() == before, "and leaves nothing"
    attempts = len(node.lines("api_watch_lost_still"))
    assert len(node.lines("api_watch_lost")) < attempts / 10, "what lasts is told once"

    node.world.kube.remove(KubeNetworkPolicy, "closed", "default")
    node.come_back()
    back = node.elapsed()
    until("it is ready again", lambda: node.probe("/readyz") == {})
    print(f"ready {node.elapsed() - back:.0f} s after the API's return")
    until("what has changed meanwhile is obeyed", lambda: node.rules() != before["rules"])
    node.done("ADD", "new", "c3")
    now = node.seen()
    for what in ("routes", "owners", "endpoints"):
        assert before[what].items() <= now[what].items(), what
    assert now["status"] == before["status"]
    assert node.agent.pid == process
    assert node.agent.poll() is None
