"""containerd as a kubelet calls it: RunPodSandbox, StopPodSandbox, RemovePodSandbox of the CRI."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.calling_runtime import CallingNode
from tests.fakes.containerd import Containerd
from tests.fakes.cri import Cri, CriError, Sandbox
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import until
from tests.fakes.oci_image import IMAGE

pytestmark = pytest.mark.root

CRI = """
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{bin_dir}"
  conf_dir = "{conf_dir}"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallingNode]:
    root = tmp_path_factory.mktemp("cri") / "node"
    with closing(CallingNode(root, fresh_name("cr"))) as made:
        made.start_and_settle()
        made.configure(network(made))
        yield made


@pytest.fixture(scope="module")
def cri(node: CallingNode) -> Iterator[Cri]:
    """In a directory with a short name: sockets' paths are bounded."""
    directory = Path(tempfile.mkdtemp(prefix="tc-", dir="/tmp"))
    text = CRI.format(image=IMAGE, bin_dir=node.bin_dir, conf_dir=node.conf_dir)
    try:
        with closing(Containerd(node, directory, cri=text)) as containerd:
            containerd.prepare("sleep", "1000000")
            with closing(Cri(containerd.address)) as client:
                until("its network is ready", client.is_ready)
                yield client
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def network(node: CallingNode, *behind: dict[str, Any], **ours: Any) -> dict[str, Any]:
    """Our network, with the API that knows the pods."""
    api = {"k8s_api_root": node.config["k8s_api_root"]}
    return node.network(*behind, kubernetes=api, datastore_type="sqlite", **ours)


def pod(node: CallingNode, attempt: int = 0) -> Sandbox:
    """A pod that the API knows, by a name of its own: control groups have the machine's."""
    name = fresh_name("pod")
    node.world.put_pod(name)
    return Sandbox(name, f"uid-of-{name}", attempt=attempt)


def ping(node: CallingNode, address: str) -> bool:
    command = node.inside_command("ping", "-c1", "-W2", address)
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


def test_a_sandbox_has_its_address_from_run_to_stop(node: CallingNode, cri: Cri) -> None:
    before = node.left()
    wanted = pod(node)
    sandbox = cri.run(wanted)
    address = cri.address(sandbox)
    handle, owner, _ = node.owners()[address]
    assert handle.endswith(f".{sandbox}")
    assert owner == wanted.name
    assert node.endpoints()[wanted.name] == sandbox
    until("the node reaches it", lambda: ping(node, address))
    cri.stop(sandbox)
    assert address not in node.owners()
    assert wanted.name not in node.endpoints()
    cri.stop(sandbox)
    cri.remove(sandbox)  # another DEL, of a namespace that is gone
    node.rest(before)


def test_a_new_sandbox_of_the_same_pod(node: CallingNode, cri: Cri) -> None:
    """The kubelet makes one anew when the first has died; the old one's end comes later."""
    before = node.left()
    wanted = pod(node)
    first = cri.run(wanted)
    cri.stop(first)
    second = cri.run(Sandbox(wanted.name, wanted.uid, attempt=1))
    address = cri.address(second)
    cri.remove(first)
    assert node.owners()[address][1] == wanted.name, "the old one's DEL takes nothing of it"
    assert node.endpoints()[wanted.name] == second
    until("the node reaches it", lambda: ping(node, address))
    cri.stop(second)
    cri.remove(second)
    node.rest(before)


def test_what_the_plugin_refuses_is_what_the_kubelet_reads(node: CallingNode, cri: Cri) -> None:
    before = node.left()
    forged = pod(node)
    with pytest.raises(CriError, match="this sandbox is of UID another-uid"):
        cri.run(Sandbox(forged.name, "another-uid"))
    node.rest(before)
    sandbox = cri.run(forged)
    assert cri.address(sandbox) in node.owners()
    cri.stop(sandbox)
    cri.remove(sandbox)
    node.rest(before)
