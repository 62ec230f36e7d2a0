"""The native executable in a pod's life: a real agent, its death, its absence."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_plugin.durable import replace_file
from cni_plugin.program import native_executable
from tests.fakes.called_node import Answer, CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root


class NativeNode(CalledNode):
    """A node with the native executable beside Python's."""

    def __init__(self, root: Path, name: str) -> None:
        super().__init__(root, name)
        made = native_executable(str(root / "run" / "cni.sock"), str(root / "tortie-cni"))
        replace_file(root / "native", made, 0o755)

    def native(self, verb: str, pod: str, container: str, **settings: Any) -> Answer:
        return self.call(verb, pod, container, program="native", **settings)

    def served(self, verb: str) -> Answer:
        """What the executable's call for the pod succeeds with.

        As a runtime does, it is called again: the API is in this process, which may stand still
        for longer than the fallback waits.
        """

        def answer() -> Answer | None:
            found = self.native(verb, "web", "c1")
            return found if found.status == 0 else None

        found: Answer | None = until(f"{verb} succeeds", answer)
        assert found is not None
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NativeNode]:
    made = NativeNode(tmp_path, fresh_name("cn"))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_pods_life_by_the_native_executable(node: NativeNode) -> None:
    node.world.put_pod("web")
    node.done("ADD", "web", "c0")  # the node's own route to the gateway stays
    node.done("DEL", "web", "c0")
    before = node.emptied("web")
    first = node.native("ADD", "web", "c1")
    assert first.status == 0, first.body
    assert node.native("ADD", "web", "c1") == first
    assert node.call("ADD", "web", "c1") == first, "Python's has the same answer"
    assert node.native("CHECK", "web", "c1", prevResult=first.body).status == 0
    assert node.native("CHECK", "web", "c1").code == 7, "an error comes through, too"
    assert node.native("DEL", "web", "c1").status == 0
    node.rest(before)


def test_without_agent_the_fallback_and_without_that_the_reason(node: NativeNode) -> None:
    node.world.put_pod("web")
    added = node.native("ADD", "web", "c1")
    node.stop(signal.SIGKILL)
    assert node.served("ADD") == added
    fallback = node.root / "tortie-cni"
    away = fallback.rename(node.root / "away")
    answer = node.native("DEL", "web", "c1")
    assert answer.code == 11
    assert f"{fallback} cannot run: No such file" in answer.body["msg"]
    away.rename(fallback)
    node.served("DEL")
    assert node.owners() == {}
