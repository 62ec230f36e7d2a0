"""A lost SQLite file and a real agent: it does not start, touches nothing, and takes it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libtortie.model.names import host_ifname
from tests.fakes.agent_world import NAMESPACE
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node whose agent runs, with a pod."""
    made = NodeProcess(tmp_path, fresh_name("dl"))
    try:
        made.start()
        made.attach("pod")
        until("the pod's route", lambda: made.metrics("pod") == [1024])
        yield made
    finally:
        made.close()


def kernel(node: NodeProcess) -> tuple[str, str, str]:
    """Routes, links, and rules without their counters."""
    inside = ["nsenter", f"--net=/run/netns/{node.name}"]
    routes, links, rules = (
        subprocess.run([*inside, *words], check=True, capture_output=True, text=True).stdout
        for words in (["ip", "route"], ["ip", "link"], ["nft", "-s", "list", "ruleset"])
    )
    return routes, links, rules


def lose_datastore(node: NodeProcess) -> bytes:
    """Kill -9 and remove the file; what was in it."""
    node.store.compact()
    node.stop(signal.SIGKILL)
    node.store.close()  # the last one out moves the log into the file
    path = node.root / "tortie.db"
    content = path.read_bytes()
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return content


def test_a_lost_file_stops_the_agent_and_nothing_else(node: NodeProcess) -> None:
    content, path = lose_datastore(node), node.root / "tortie.db"
    known = (node.root / "state" / "datastore-id").read_text().strip()
    before = kernel(node)
    node.start(wait=False)
    assert node.agent is not None
    assert node.agent.wait(timeout=90) == 1
    (failed,) = node.lines("agent_failed")
    for part in (str(path), "missing", known, "backup", "--init-datastore"):
        assert part in failed["reason"]
    assert kernel(node) == before
    assert not path.exists()
    assert node.status("pod"), "the pod's status file went"
    path.write_bytes(content)
    node.start()
    assert node.metrics("pod") == [1024]


def test_a_new_datastore_only_when_it_is_meant(node: NodeProcess) -> None:
    lose_datastore(node)
    known = (node.root / "state" / "datastore-id").read_text()
    command = [sys.executable, "-m", "felix_shim.agent"]
    command += ["--config", str(node.root / "node.yaml"), "--init-datastore"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "made, empty" in said
    assert (node.root / "state" / "datastore-id").read_text() != known
    node.start()
    until("the route of a pod nobody knows any more goes", lambda: not node.metrics("pod"))


def test_a_file_lost_beneath_a_running_agent_frees_nothing(node: NodeProcess) -> None:
    for suffix in ("", "-wal", "-shm"):
        (node.root / f"tortie.db{suffix}").unlink(missing_ok=True)
    node.add_pod("late")
    until("the agent notices", lambda: node.lines("watch_lost"))
    assert node.metrics("pod") == [1024]
    assert not (node.root / "tortie.db").exists()


def test_the_plugin_makes_no_datastore(node: NodeProcess) -> None:
    lose_datastore(node)
    netconf = {
        "cniVersion": "1.1.0",
        "name": "k8s-pod-network",
        "type": "tortie",
        "nodename": "n0",
        "datastore_type": "sqlite",
        "sqlite_path": str(node.root / "tortie.db"),
        "agent_socket": str(node.root / "run" / "cni.sock"),
    }
    for command in ("ADD", "DEL", "STATUS"):
        done = subprocess.run(
            [sys.executable, "-m", "cni_plugin.wiring"],
            input=json.dumps(netconf),
            env={
                **os.environ,
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": "c1",
                "CNI_IFNAME": "eth0",
                "CNI_NETNS": f"/run/netns/{node.name}-pod",
                "CNI_PATH": "/opt/cni/bin",
                "CNI_ARGS": f"K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME=other",
            },
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0, (command, done.stdout)
        assert "does not exist: only tortie-node makes it" in done.stdout, (command, done.stdout)
    assert not (node.root / "tortie.db").exists()
    assert host_ifname(NAMESPACE, "pod") in kernel(node)[1]
