"""Agent, plugin and tortiectl on a real etcd, which restarts beneath them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cni_plugin.frame import encode_request, read_response
from libtortie.datastore.etcd import EtcdDatastore
from libtortie.datastore.etcd_config import EtcdConfig
from libtortie.model.keys import Kind, ResourceKey, Resources
from tests.fakes.agent_world import NAMESPACE, NODE, resource_record
from tests.fakes.etcd_server import EtcdMember, etcd_members
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, ip, until
from tests.fakes.tcp_proxy import tcp_proxy
from tortiectl.cli import main

pytestmark = pytest.mark.root


class EtcdNode:
    """A node whose etcd is outside of its namespace, behind a relay on its loopback."""

    def __init__(self, node: NodeProcess, member: EtcdMember, url: str) -> None:
        self.node = node
        self.member = member
        self.url = url
        node.config["datastore_type"] = "etcdv3"
        node.config["etcd_endpoints"] = url

    def call(self, verb: str, pod: str) -> tuple[int, dict[str, Any]]:
        """A CNI call to the agent."""
        path = self.node.root / "run" / "cni.sock"
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(150)
            client.connect(str(path))
            client.sendall(encode_request(self._environ(verb, pod), self._conf()))
            answer = read_response(client)
        return answer.code, json.loads(answer.stdout or b"{}")

    def call_alone(self, verb: str, pod: str) -> tuple[int, dict[str, Any]]:
        """The same by the fallback, a process without the agent."""
        done = subprocess.run(
            [
                "nsenter",
                f"--net=/run/netns/{self.node.name}",
                sys.executable,
                "-m",
                "cni_plugin.wiring",
            ],
            input=self._conf(),
            env={**os.environ, **self._environ(verb, pod)},
            capture_output=True,
            check=False,
            timeout=240,
        )
        return done.returncode, json.loads(done.stdout or b"{}")

    def add_namespace(self, pod: str) -> None:
        ip("netns", "add", f"{self.node.name}-{pod}")
        self.node.namespaces.append(f"{self.node.name}-{pod}")

    def _environ(self, verb: str, pod: str) -> dict[str, str]:
        return {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"ctr-{pod}",
            "CNI_NETNS": f"/run/netns/{self.node.name}-{pod}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={pod}",
        }

    def _conf(self) -> bytes:
        run_dir = self.node.root / "run"
        return json.dumps(
            {
                "cniVersion": "1.0.0",
                "name": "k8s-pod-network",
                "type": "tortie",
                "nodename": NODE,
                "etcd_endpoints": self.url,
                "policy_setup_timeout_seconds": 90,
                "endpoint_status_dir": str(run_dir / "endpoint-status"),
                "agent_socket": str(run_dir / "cni.sock"),
            }
        ).encode()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EtcdNode]:
    (tmp_path / "node").mkdir()
    (tmp_path / "etcd").mkdir()
    node = NodeProcess(tmp_path / "node", fresh_name("ae"))
    try:
        listener = node.inside(lambda: socket.create_server(("127.0.0.1", 0)))
        with (
            etcd_members(tmp_path / "etcd") as (member,),
            tcp_proxy(member.port, listener) as proxy,
        ):
            yield EtcdNode(node, member, proxy.url)
    finally:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, tmp_path, ignore_errors=True)
            stack.callback(node.close)


def test_a_node_works_on_etcd_through_its_restart(world: EtcdNode) -> None:
    node = world.node
    with closing(EtcdDatastore(EtcdConfig(world.member.url))) as store:
        pool = resource_record(Kind.IP_POOL, "pool", {"cidr": "10.65.0.0/24", "blockSize": 26})
        store.create(pool.key, pool.value)
        node.start()
        addresses = set()
        for pod in ("p1", "p2"):
            world.add_namespace(pod)
            code, result = world.call("ADD", pod)
            assert code == 0, result
            addresses.add(result["ips"][0]["address"])
            assert node.status(pod), "policy was not waited for"
            world.member.stop()
            world.member.start()
            world.member.wait_healthy()
        assert len(addresses) == 2
        wanted = {
            ResourceKey(Kind.NODE, NODE),
            ResourceKey(Kind.CLUSTER_INFORMATION, "default"),
            ResourceKey(Kind.FELIX_CONFIGURATION, f"node.{NODE}"),
        }

        def written() -> bool:
            kinds = {key.kind for key in wanted}
            listed = [store.list(Resources(kind)).records for kind in kinds]
            return wanted <= {record.key for records in listed for record in records}

        until("the node's start is written", written)

        environ = {"ETCD_ENDPOINTS": world.member.url}
        shown = CliRunner().invoke(main, ["ipam", "show"], env=environ, catch_exceptions=False)
        assert shown.exit_code == 0, shown.output
        assert "10.65.0.0/24" in shown.output

        assert node.stop() == 0
        assert world.call_alone("DEL", "p1")[0] == 0
        node.start()
        until("the status of p1 goes", lambda: not node.status("p1"))
        assert node.status("p2")
        assert world.call("DEL", "p2")[0] == 0
    assert node.lines("agent_failed") == []
