"""The plugin's fallback and the token that the agent renews for it, by real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root

ACCOUNT = "system:serviceaccount:kube-system:tortie"


class TokenNode(CalledNode):
    """A node whose API wants a token, which only the agent can read where a kubelet puts it."""

    def __init__(self, root: Path, name: str) -> None:
        self.token = root / "token"
        self.kubeconfig = root / "host" / "kubeconfig"
        super().__init__(
            root, name, k8s_token_file=str(self.token), cni_kubeconfig=str(self.kubeconfig)
        )

    def rotate(self, token: str) -> None:
        """From now on the API knows this token only, and the kubelet has renewed the file."""
        self.server.tokens.replace({token: ACCOUNT})
        renewed = self.root / "token.new"
        renewed.write_text(token)
        renewed.rename(self.token)

    def renewed(self, token: str) -> None:
        """Wait until the agent has written a token."""
        until(
            f"{token} is in the kubeconfig",
            lambda: self.kubeconfig.exists() and f'"{token}"' in self.kubeconfig.read_text(),
        )

    def fallback(self, verb: str, **settings: Any) -> Any:
        """A call of the fallback, with the kubeconfig in its configuration."""
        conf = {
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "policy_setup_timeout_seconds": 0,  # there is no agent to wait for
            **settings,
        }
        return self.call(verb, "web", "c1", program="tortie-cni", **conf)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TokenNode]:
    made = TokenNode(tmp_path, fresh_name("kc"))
    try:
        yield made
    finally:
        made.close()


def test_the_fallback_works_after_renewals_and_names_the_file_when_there_was_none(
    node: TokenNode,
) -> None:
    node.world.put_pod("web")
    node.rotate("first")
    node.start()
    node.renewed("first")
    node.rotate("second")
    node.renewed("second")
    node.stop(signal.SIGKILL)
    assert node.fallback("ADD").status == 0
    node.server.tokens.replace({"third": ACCOUNT})  # and nobody is there to renew it
    answer = node.fallback("ADD")
    assert answer.code == 106
    assert f"token of {node.kubeconfig}, written " in answer.body["msg"]
    assert "second" not in answer.body["msg"]
    answer = node.fallback("STATUS")
    assert answer.code == 50
    assert f"token of {node.kubeconfig}, written " in answer.body["msg"]
    node.rotate("fourth")
    node.start()
    node.renewed("fourth")
    node.stop(signal.SIGKILL)
    assert node.fallback("DEL").status == 0
    assert node.owners() == {}
    said = (node.root / "log" / "node.log").read_text() + (node.root / "stderr.log").read_text()
    assert not [token for token in ("first", "second", "fourth") if f'"{token}"' in said]
