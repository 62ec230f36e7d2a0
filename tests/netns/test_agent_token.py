"""The agent's token expires: it is told by name of the file, nothing is taken away, and as soon as
the file has a good one everything goes on without a restart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.apiserver.auth import SERVICE_ACCOUNT
from libtortie.kube.policies import KubeNetworkPolicy
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guarded_node import ACCOUNTS, PLUGIN, GuardedNode
from tests.fakes.node_process import until

pytestmark = pytest.mark.root
FRESH = "agent-token-2"
CLOSED = {
    "metadata": {"name": "closed", "namespace": "default"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GuardedNode]:
    made = GuardedNode(tmp_path / "node", fresh_name("tk"))
    try:
        for pod in ("web", "new"):
            made.world.put_pod(pod)
        made.start()
        yield made
    finally:
        made.close()


def uncounted(node: GuardedNode) -> str:
    return re.sub(r"packets \d+ bytes \d+", "", node.rules())


def test_a_token_that_expired_is_named_and_a_new_one_taken(node: GuardedNode) -> None:
    node.done("ADD", "web", "c1")
    rules, routes = uncounted(node), node.metrics("web")
    accounts = {PLUGIN: ACCOUNTS[PLUGIN], FRESH: "tortie-node"}
    names = {token: f"{SERVICE_ACCOUNT}kube-system:{name}" for token, name in accounts.items()}
    node.server.tokens.replace(names)
    node.server.cut_watches()

    def refused() -> list[str]:
        lines = node.lines("api_watch_lost")
        found = [line for line in lines if line["reason"].startswith("Unauthorized")]
        told = any(line["kind"] == KubeNetworkPolicy.api.plural for line in found)
        return [line["reason"] for line in found] if told else []

    said = until("it is told", refused)
    node.world.kube.put(CLOSED, KubeNetworkPolicy)
    assert all(str(node.token) in one and "ago" in one for one in said), "file and age"
    assert (uncounted(node), node.metrics("web")) == (rules, routes), "nothing is taken away"
    assert node.status("web")

    node.token.write_text(FRESH)
    until("what has changed meanwhile is obeyed", lambda: uncounted(node) != rules)
    node.done("ADD", "new", "c2")
    assert node.agent is not None
    assert node.agent.poll() is None
