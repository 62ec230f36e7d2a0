"""Who a call is for the API and the node: names, credentials, podCIDRs, throttling."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from cni_plugin import wiring
from cni_plugin.delegate import Delegate
from cni_plugin.errors import InvalidConfig
from cni_plugin.ipam_plugin import IPAMPlugin
from cni_plugin.plugin import Plugin
from cni_plugin.throttle import Throttled
from cni_plugin.wiring import SharedParts, build_plugin, node_name, pod_cidrs
from libtortie.errors import InvalidInput, Malformed, NotFound
from libtortie.kube.objects import KubeNode, Pod
from tests.fakes.cni_world import Clock, CniWorld, conf
from tests.fakes.ipam_program import FakeProgram
from tests.fakes.kube import FakeKube


def test_older_ways_to_name_the_node(tmp_path: Path) -> None:
    """The file comes first; the host's own name only where the file is optional."""
    file = str(tmp_path / "nodename")
    assert node_name(conf(nodename_file=file)) == ""
    assert node_name(conf(nodename_file=file, hostname="old")) == "old"
    optional = {"nodename_file": file, "nodename_file_optional": True}
    assert node_name(conf(**optional)) == socket.gethostname().lower()
    assert node_name(conf(**optional, hostname="old")) == "old"
    Path(file).write_text("by-file\n")
    assert node_name(conf(**optional, hostname="old")) == "by-file"
    assert node_name(conf(**optional, nodename="set")) == "set"


KUBECONFIG = """
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://k:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: of-the-file}}]
"""


def test_credentials_of_the_policy_section_count_first(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    section = {"kubernetes": {"kubeconfig": str(file)}, "datastore_type": "sqlite"}
    plain = wiring._kube_config(conf(**section))
    assert plain is not None
    assert (plain.server, plain.token, plain.insecure) == ("https://k:6443", "of-the-file", True)
    policy = {
        "type": "k8s",
        "k8s_api_root": "https://p:6443",
        "k8s_auth_token": "of-the-policy",
        "k8s_client_certificate": "/cert",
        "k8s_client_key": "/key",
        "k8s_certificate_authority": "/ca",
    }
    config = wiring._kube_config(conf(**section, policy=policy))
    assert config is not None
    assert (config.server, config.token, config.insecure) == (
        "https://p:6443",
        "of-the-policy",
        False,
    )
    files = [one.path for one in (config.client_cert, config.client_key, config.ca) if one]
    assert files == [Path("/cert"), Path("/key"), Path("/ca")]
    assert config.origin is None, "the kubeconfig must not be read again over them"
    alone = wiring._kube_config(conf(policy=policy))
    assert alone is not None
    assert (alone.server, alone.token) == ("https://p:6443", "of-the-policy")
    untouched = wiring._kube_config(conf(**section, policy={"type": "k8s"}))
    assert untouched == plain
    with pytest.raises(InvalidInput, match="no header can carry"):
        wiring._kube_config(conf(policy={**policy, "k8s_auth_token": "a\nb"}))


def test_the_networks_that_kubernetes_gave_a_node() -> None:
    kube = FakeKube()

    def found(spec: dict[str, Any]) -> list[str]:
        kube.put({"metadata": {"name": "n1"}, "spec": spec}, KubeNode)
        return [str(one) for one in pod_cidrs(kube, "n1")]

    both = {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}
    assert found(both) == ["10.1.0.0/24", "fd00::/64"]
    assert found({"podCIDR": "10.1.0.0/24"}) == ["10.1.0.0/24"]
    with pytest.raises(InvalidInput, match="Node n1 has no podCIDR"):
        found({})
    with pytest.raises(Malformed, match="Node n1: podCIDRs"):
        found({"podCIDR": "nonsense"})
    with pytest.raises(NotFound):
        pod_cidrs(kube, "n2")
    with pytest.raises(InvalidInput, match="needs the Kubernetes API"):
        pod_cidrs(None, "n1")


def parts(world: CniWorld, program: FakeProgram) -> SharedParts:
    return world.node().shared(run=program, reaches=lambda url: url == "http://ready")


def test_a_delegated_ipam_of_the_agents(world: CniWorld) -> None:
    """The Node is the agent's own, or the one that `kubernetes.node_name` names."""
    program = FakeProgram(world.directory / "bin")
    section = {"type": "host-local", "subnet": "usePodCidr"}
    for name, cidr in (("node1", "10.7.0.0/24"), ("core-1", "10.8.0.0/24")):
        world.kube.put({"metadata": {"name": name}, "spec": {"podCIDR": cidr}}, KubeNode)
    for number, (named, cidr) in enumerate((("", "10.7.0.0/24"), ("core-1", "10.8.0.0/24"))):
        pod, container = f"web-{number}", f"c{number}"
        world.put_pod(pod)
        settings = conf(
            CNI_PATH=program.path,
            ipam=section,
            kubernetes={"k8s_api_root": "http://api", "node_name": named},
            datastore_type="sqlite",
            policy_setup_timeout_seconds=0,
            readiness_gates=["http://ready"],
        )
        plugin = build_plugin(settings, shared=parts(world, program))
        plugin.cmd_add(world.node().args(pod, container), settings)
        assert program.asked[-1][2]["ipam"]["subnet"] == cidr


def test_whose_plugin_a_configuration_is(world: CniWorld) -> None:
    shared = parts(world, FakeProgram(world.directory / "bin"))
    assert isinstance(build_plugin(conf(), shared=shared), Plugin)
    assert isinstance(build_plugin(conf(type="calico"), shared=shared), Plugin)
    foreign = conf(type="bridge", ipam={"type": "tortie-ipam"})
    assert isinstance(build_plugin(foreign, shared=shared), IPAMPlugin)
    with pytest.raises(InvalidConfig, match="is none of ours"):
        conf(type="bridge", ipam={"type": "host-local"})


def test_a_throttled_api(world: CniWorld) -> None:
    clock, pod = Clock(), world.put_pod("web-0")
    kube = Throttled(world.kube, 2.0, 3, monotonic=clock.monotonic, sleep=clock.sleep)
    moments = []
    for _ in range(3):
        assert kube.get(Pod, "web-0", "default") == pod
        moments.append(clock.elapsed)
    for _ in range(2):
        assert kube.list(Pod, "default")[0] == (pod,)
        moments.append(clock.elapsed)
    assert moments == [0, 0, 0, 0.5, 1.0]
    assert [(found, clock.elapsed) for found, _ in kube.pages(Pod, "default")] == [((pod,), 1.5)]
    kube.get(Pod, "web-0", "default")
    assert clock.elapsed == 2.0, "one page has taken one turn"
    clock.sleep(60)
    for moment in (62.0, 62.0, 62.0, 62.5):
        kube.get(Pod, "web-0", "default")
        assert clock.elapsed == moment, "no more than the burst is saved up"


def test_qps_is_obeyed_where_it_is_set() -> None:
    api = {"kubernetes": {"k8s_api_root": "http://127.0.0.1:1"}}
    assert isinstance(wiring._kube(conf(**api, qps=5)), Throttled)
    assert not isinstance(wiring._kube(conf(**api, burst=5)), Throttled)


def test_what_is_not_delegated_has_no_delegate(world: CniWorld) -> None:
    shared = parts(world, FakeProgram(world.directory / "bin"))
    assert wiring._delegate(conf(), shared) is None
    assert isinstance(wiring._delegate(conf(ipam={"type": "static"}), shared), Delegate)
