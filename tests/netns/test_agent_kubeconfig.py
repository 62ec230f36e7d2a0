"""The plugin's fallback and the token that the agent renews for it, by real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.called_node import Answer, CalledNode
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

    def fallback(self, verb: str) -> Answer:
        """A call of the fallback, with the kubeconfig in its configuration."""
        conf = {
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "policy_setup_timeout_seconds": 0,  # there is no agent to wait for
        }
        return self.call(verb, "web", "c1", program="tortie-cni", **conf)

    def served(self, verb: str) -> None:
        """The fallback succeeds.

        As a runtime does, it is called again: the API is in this process, which may stand still
        for longer than the fallback waits.
        """
        until(f"{verb} succeeds", lambda: self.fallback(verb).status == 0)

    def refused(self, verb: str, code: int) -> None:
        """The fallback names the kubeconfig and not what is in it."""

        def named() -> Answer | None:
            answer = self.fallback(verb)
            assert answer.status, "there is no token that the API knows"
            return answer if f"token of {self.kubeconfig}, written " in str(answer.body) else None

        answer: Answer | None = until(f"{verb} names the kubeconfig", named)
        assert answer is not None
        assert answer.code == code
        assert "second" not in str(answer.body)


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
    node.served("ADD")
    node.server.tokens.replace({"third": ACCOUNT})  # and nobody is there to renew it
    node.refused("ADD", 106)
    node.refused("STATUS", 50)
    node.rotate("fourth")
    node.start()
    node.renewed("fourth")
    node.stop(signal.SIGKILL)
    node.served("DEL")
    assert node.owners() == {}
    said = (node.root / "log" / "node.log").read_text() + (node.root / "stderr.log").read_text()
    assert not [token for token in ("first", "second", "fourth") if f'"{token}"' in said]
