"""Interfaces with any name that the kernel takes, on every datastore: made, found again, freed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_plugin.ipam_plugin import IPAMPlugin
from libtortie.errors import InvalidInput
from tests.fakes.cni_stores import CNI_STORES, StoredWorld
from tests.fakes.cni_world import conf

NAMES = ("net1", "Net1", "net_1", "eth0.100", "-n+~{")
ALL = ("eth0", *NAMES)
BRIDGE = {"name": "lan", "type": "bridge", "ipam": {"type": "tortie-ipam"}}


@pytest.fixture(params=list(CNI_STORES))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoredWorld]:
    with CNI_STORES[request.param](request, tmp_path) as made:
        yield made


@pytest.fixture
def pod(world: StoredWorld) -> str:
    world.put_pod("web", spec={"nodeName": "node1"})
    return "web"


def listed(*ifnames: str) -> dict[str, object]:
    return {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": n} for n in ifnames]}


def test_addresses_for_another_plugins_interface(world: StoredWorld, pod: str) -> None:
    node = world.node()
    ipam = IPAMPlugin(node.ports())
    calls = {name: node.args(pod, "c1", ifname=name, uid="uid-of-web") for name in ALL}
    results = {name: ipam.cmd_add(args, conf(**BRIDGE)) for name, args in calls.items()}
    assert len(world.allocated()) == len({one.addresses for one in results.values()}) == len(ALL)
    for name, args in calls.items():
        assert ipam.cmd_add(args, conf(**BRIDGE)) == results[name], "a repeat answers the same"
        ipam.cmd_check(args, conf(**BRIDGE, prevResult=results[name].to_wire("1.0.0")))
    ipam.cmd_gc(conf(**BRIDGE, **listed(*ALL[:-1])))
    assert len(world.allocated()) == len(ALL) - 1
    for left, args in zip(reversed(range(len(ALL))), calls.values(), strict=True):
        ipam.cmd_del(args, conf(**BRIDGE))
        assert len(world.allocated()) == max(0, left - 1)
    assert world.nothing_left()


def test_our_own_interface(world: StoredWorld, pod: str) -> None:
    node = world.node()
    node.add(pod, "c1", uid="uid-of-web")
    before = world.left()
    for name in NAMES:
        if world.on_kubernetes:
            with pytest.raises(InvalidInput, match="keeps endpoints on pods"):
                node.add(pod, "c1", uid="uid-of-web", ifname=name)
        else:
            result = node.add(pod, "c1", uid="uid-of-web", ifname=name)
            assert node.add(pod, "c1", uid="uid-of-web", ifname=name) == result
    made = 1 if world.on_kubernetes else len(ALL)
    assert len(world.allocated()) == len(node.veths()) == len(world.endpoints()) == made
    node.gc(("c1", "eth0"), *(("c1", name) for name in NAMES[1:]))
    assert len(world.endpoints()) == max(1, made - 1)
    for name in NAMES:
        node.delete(pod, "c1", ifname=name)
    assert world.left() == before
    node.delete(pod, "c1")
    assert world.nothing_left()


def test_a_container_whose_id_cannot_be_kept_is_refused_and_gone(
    world: StoredWorld, pod: str
) -> None:
    """What ADD refuses, a runtime has deleted: that succeeds, as often as it likes."""
    node = world.node()
    ipam = IPAMPlugin(node.ports())
    for container in ("C1_a", "c1.", "c1..a"):
        args = node.args(pod, container, uid="uid-of-web")
        if world.on_kubernetes:
            with pytest.raises(InvalidInput, match="Kubernetes cannot store the name"):
                ipam.cmd_add(args, conf(**BRIDGE))
        else:
            ipam.cmd_add(args, conf(**BRIDGE))
        for _ in range(2):
            ipam.cmd_del(args, conf(**BRIDGE))
            node.delete(pod, container)
        assert world.nothing_left()
