"""What becomes of a configuration: shared parts, node name, Kubernetes client."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_plugin import wiring
from cni_plugin.errors import InvalidConfig
from cni_plugin.wiring import SharedParts, build_plugin, node_name
from libtortie.errors import Unavailable
from tests.fakes.cni_world import CniWorld, conf, first_address


def parts(world: CniWorld, ready: bool = True) -> SharedParts:
    node = world.node()
    ports = node.ports()
    return SharedParts(
        store=world.store,
        kube=world.kube,
        kernel=node.kernel,
        node="node1",
        table_ready=lambda: ready,
        log=ports.log,
        namespaces=node.machine,
        locks=node.locks,
        mtu_file=world.directory / "mtu",
    )


def test_a_plugin_from_the_agents_parts(tmp_path: Path) -> None:
    world = CniWorld(tmp_path)
    world.put_pod("web-0")
    settings = conf(policy_setup_timeout_seconds=0)
    args = world.node().args("web-0", "c1")
    result = build_plugin(settings, shared=parts(world)).cmd_add(args, settings)
    assert first_address(result) in world.allocated()
    build_plugin(settings, shared=parts(world)).cmd_del(args, settings)
    assert world.nothing_left()
    with pytest.raises(Unavailable):
        build_plugin(settings, shared=parts(world, ready=False)).cmd_add(args, settings)


def test_the_agents_node_name_must_be_the_configurations(tmp_path: Path) -> None:
    world = CniWorld(tmp_path)
    with pytest.raises(InvalidConfig, match="'other' is not the agent's 'node1'"):
        build_plugin(conf(nodename="other"), shared=parts(world))
    build_plugin(conf(nodename="node1"), shared=parts(world))


def test_the_status_directory_is_the_configurations(tmp_path: Path) -> None:
    world = CniWorld(tmp_path)
    world.put_pod("web-0")
    status = tmp_path / "status"
    status.mkdir()
    (status / "k8s default%2Fweb-0 eth0").write_text('{"containerID": "c1"}')
    settings = conf(endpoint_status_dir=str(status), policy_setup_timeout_seconds=30)
    build_plugin(settings, shared=parts(world)).cmd_add(world.node().args("web-0", "c1"), settings)
    assert "policy_timeout" not in [event for event, _ in world.node().log]


@pytest.mark.parametrize(
    ("content", "expected"), [("n1\n", "n1"), ("  n1  ", "n1"), ("", ""), ("\n", ""), (None, "")]
)
def test_node_name_from_the_file(tmp_path: Path, content: str | None, expected: str) -> None:
    file = tmp_path / "nodename"
    if content is not None:
        file.write_text(content)
    assert node_name(conf(nodename_file=str(file))) == expected
    assert node_name(conf(nodename_file=str(file), nodename="set")) == "set"


def test_kubernetes_needs_an_address() -> None:
    with pytest.raises(InvalidConfig, match="kubeconfig or k8s_api_root"):
        wiring._kube(conf(kubernetes={}))
    assert wiring._kube(conf()) is None
    direct = wiring._kube(conf(kubernetes={"k8s_api_root": "http://127.0.0.1:1"}))
    assert direct is not None
