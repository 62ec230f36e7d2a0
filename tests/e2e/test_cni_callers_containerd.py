"""containerd's `ctr run --cni`: no CNI_ARGS, and a DEL with an empty CNI_NETNS."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.calling_runtime import CallingNode
from tests.fakes.containerd import Containerd
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until

pytestmark = pytest.mark.root


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CallingNode]:
    with closing(CallingNode(tmp_path / "node", fresh_name("cd"))) as made:
        made.start()
        made.configure(made.network())
        yield made


@pytest.fixture
def containerd(node: CallingNode) -> Iterator[Containerd]:
    """In a directory with a short name: sockets' paths are bounded."""
    directory = Path(tempfile.mkdtemp(prefix="td-", dir="/tmp"))
    try:
        with closing(Containerd(node, directory)) as made:
            made.prepare()
            yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_containers_get_an_address_and_give_it_back(
    node: CallingNode, containerd: Containerd
) -> None:
    for _ in range(2):
        done = containerd.run(fresh_name("ctr"), "ip", "address", "show", "eth0")
        assert done.returncode == 0, done.stderr
        assert "inet 10.65.0." in done.stdout
        assert node.owners() == {}, "its DEL has come, and named no namespace"
    node.configure(node.network(ipam={"ipv4_pools": ["nowhere"]}))

    def refused() -> bool:
        """Whether ctr says what our plugin said; on a busy machine its own steps may fail first."""
        done = containerd.run(fresh_name("ctr"), "true")
        assert done.returncode != 0
        return "the given pool (nowhere) does not exist" in done.stderr

    until("the refusal is told", refused)
    assert node.owners() == {}
    until("policy goes", lambda: not node.left()["status"])
