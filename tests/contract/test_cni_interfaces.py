"""A pod's further interface on every datastore: it comes and goes, or is refused whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libtortie.errors import InvalidInput
from libtortie.model import names
from tests.fakes.cni_stores import CNI_STORES, StoredWorld
from tests.fakes.cni_world import CniNode, conf, first_address

LAN: dict[str, Any] = {"name": "lan", "ipam": {"type": "tortie-ipam", "ipv4_pools": ["lan"]}}


@pytest.fixture(params=list(CNI_STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredWorld]:
    with CNI_STORES[request.param](request, tmp_path) as made:
        made.pool("lan", "10.77.0.0/24", assignmentMode="Manual")
        yield made


def end(node: CniNode, ifname: str, **settings: Any) -> None:
    """As Multus ends a sandbox: each of its networks, whether its ADD succeeded or not."""
    args = node.args("web-0", "c1", ifname=ifname, uid="uid-of-web-0")
    for _ in range(2):
        node.plugin.cmd_del(args, conf(**settings))


def test_a_further_interface_comes_and_goes_or_is_refused_whole(world: StoredWorld) -> None:
    world.put_pod("web-0", spec={"nodeName": "node1"})
    node = world.node()
    address = first_address(node.add("web-0", "c1", uid="uid-of-web-0"))
    alone = world.left()

    def second() -> str:
        added = node.add("web-0", "c1", ifname="net1", uid="uid-of-web-0", conf=LAN)
        return first_address(added)

    if world.on_kubernetes:
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"want a pod's interface eth0 .*tortie-ipam"):
                second()
            assert world.left() == alone
    else:
        other = second()
        assert world.allocated() == {address: "k8s-pod-network.c1", other: "lan.c1.net1"}
        assert names.host_ifname("default", "web-0", "net1") in node.veths()
    end(node, "net1", **LAN)
    assert world.left() == alone
    node.gc(("c1", "net1"), name="lan")
    node.gc(("c1", "eth0"), ("c1", "net1"))
    assert world.left() == alone
    end(node, "eth0")
    assert world.allocated() == {}
