"""The real agent process in a namespace: policy, routes, status files, signs, restarts."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from felix_shim.drivers.bird import NICE
from libtortie.kube.objects import (
    KubeObject,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.names import host_ifname
from tests.fakes import frames
from tests.fakes.agent_world import ADDRESS, MAC, NAMESPACE, NODE, VMI, resource_record
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, until

pytestmark = pytest.mark.root
ROUNDS, MOST_ROUNDS, QUICK_MS = 20, 200, 5.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node without an API."""
    made = NodeProcess(tmp_path, fresh_name("ag"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def vm_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with the lab's API server and KubeVirt's kinds."""
    made = NodeProcess(tmp_path, fresh_name("ag"), api=True)
    try:
        create_vmi(made)
        made.start()
        yield made
    finally:
        made.close()


def routed(node: NodeProcess, pod: str, *metrics: int) -> Callable[[], bool]:
    """Whether a pod's routes have exactly these metrics."""
    return lambda: node.metrics(pod) == list(metrics)


def more(node: NodeProcess, event: str, count: int) -> Callable[[], bool]:
    """Whether an event was logged more often than this."""
    return lambda: len(node.lines(event)) > count


def create_vmi(node: NodeProcess) -> None:
    body = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": VMI, "namespace": NAMESPACE},
        "status": {"nodeName": "n0", "phase": "Running"},
    }
    made = node.kube(lambda client: client.create(VirtualMachineInstance, body))
    node.vmi_uid = made.metadata.uid


def migrate(node: NodeProcess, name: str = "m1", phase: str = "Running") -> str:
    """A live migration of the VM; its UID."""
    body = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"vmiName": VMI},
        "status": {"phase": phase},
    }
    made = node.kube(lambda client: client.create(VirtualMachineInstanceMigration, body))
    return made.metadata.uid


def patch(node: NodeProcess, kind: type[KubeObject], name: str, status: dict[str, object]) -> None:
    body = {"status": status}
    node.kube(lambda client: client.patch(kind, name, NAMESPACE, body, subresource="status"))


def attach_target(node: NodeProcess, pod: str = "tgt") -> None:
    """A migration's target on this node, known as such to the agent.

    It may hear of the endpoint first: then that has a route until the agent hears of the migration.
    """
    uid = migrate(node)
    node.attach(pod, migration=uid, vmi_uid=node.vmi_uid)
    until("the agent listens", lambda: node.lines("sniffer_open"))
    until("it has no route", routed(node, pod))


def known_again(node: NodeProcess) -> None:
    """Start an agent that is away; wait until it knows all of the API's objects."""
    known = len(node.lines("in_sync"))
    node.start()
    until("both kinds are in sync again", lambda: len(node.lines("in_sync")) == known + 2)


def test_an_endpoint_gets_rules_route_status_and_node_resource(node: NodeProcess) -> None:
    key = node.attach("web", vm=False)
    assert host_ifname(NAMESPACE, "web") in node.rules()
    until("the route", lambda: node.metrics("web") == [1024])
    stored = until("the node", lambda: node.stored(ResourceKey(Kind.NODE, NODE)))
    assert stored.spec.bgp.ipv4_address == "172.31.1.2/24"
    assert (node.root / "nodename").read_text() == NODE
    node.store.delete(key)
    until("the route goes", lambda: node.metrics("web") == [])
    until("the status file goes", lambda: node.status("web") is None)
    until("the rules go", lambda: host_ifname(NAMESPACE, "web") not in node.rules())


def test_a_stop_leaves_the_kernel_as_it_is(node: NodeProcess) -> None:
    node.attach("web", vm=False)
    until("the route", lambda: node.metrics("web") == [1024])
    assert node.stop() == 0
    assert node.metrics("web") == [1024]
    assert host_ifname(NAMESPACE, "web") in node.rules()
    assert node.status("web")
    assert node.lines("threads_left") == []


def test_a_restart_keeps_the_status_files_of_what_is_in_force_and_no_others(
    node: NodeProcess,
) -> None:
    """One pod stays, one goes while no agent runs, and one left a file of a time before."""
    node.attach("stays", vm=False)
    gone = node.attach("goes", vm=False, address="10.65.0.9")
    node.stop(signal.SIGKILL)
    node.store.delete(gone)
    directory = node.root / "run" / "endpoint-status"
    (directory / "k8s default%2Fnever eth0").write_text('{"containerID": "ctr-never"}')
    (directory / ".new-1").write_text('{"contain')
    node.start()
    until("strays go", lambda: len(list(directory.iterdir())) == 1)
    found = node.status("stays")
    assert found is not None and found["containerID"] == "ctr-stays" and found["generation"] > 0


def test_a_second_agent_is_refused_and_disturbs_nothing(node: NodeProcess) -> None:
    command = ["nsenter", f"--net=/run/netns/{node.name}", *agent_command(node)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=90)
    assert done.returncode == 1
    assert any("another agent" in line.get("reason", "") for line in node.lines("agent_failed"))
    assert (node.root / "run" / "cni.sock").exists()
    assert node.agent is not None and node.agent.poll() is None


def agent_command(node: NodeProcess) -> list[str]:
    return [sys.executable, "-m", "felix_shim.agent", "--config", str(node.root / "node.yaml")]


def test_a_route_somebody_deletes_comes_back(node: NodeProcess) -> None:
    node.attach("web", vm=False)
    until("the route", lambda: node.metrics("web") == [1024])
    node.ip("route", "del", f"{ADDRESS}/32", "metric", "1024")
    until("the route is back", lambda: node.metrics("web") == [1024])


def test_many_endpoints_at_once(node: NodeProcess) -> None:
    pods = [f"p{number}" for number in range(40)]
    for pod in pods:
        node.add_pod(pod)
    for number, pod in enumerate(pods):
        node.store_endpoint(pod, vm=False, address=f"10.65.1.{number + 1}")
    for pod in pods:
        until(f"{pod} is in force", partial(node.status, pod))
        until(f"{pod} has its route", routed(node, pod, 1024))


SIGNS = {
    "rarp": frames.rarp(MAC),
    "garp": frames.arp(MAC, ADDRESS, ADDRESS),
    "ip": frames.ipv4(MAC, ADDRESS, "192.0.2.1"),
}


@pytest.mark.parametrize("kind", SIGNS)
def test_each_kind_of_sign_raises_the_route(vm_node: NodeProcess, kind: str) -> None:
    attach_target(vm_node)
    assert vm_node.metrics("tgt") == []
    vm_node.send("tgt", SIGNS[kind])
    until("the raised route", lambda: vm_node.metrics("tgt") == [512])
    assert until("the sign is logged", lambda: vm_node.lines("sign"))[0]["kind"] == kind


def test_what_is_no_sign_raises_nothing(vm_node: NodeProcess) -> None:
    attach_target(vm_node)
    for frame in (
        frames.rarp(frames.OTHER_MAC),
        frames.rarp(frames.OTHER_MAC, source=MAC),
        frames.arp(MAC, "0.0.0.0", ADDRESS),
        frames.arp(MAC, "10.9.9.9", "10.9.9.9"),
        frames.ipv6(MAC, "::", "ff02::16"),
        frames.neighbour_solicitation(MAC, "::", "2001:db8::1"),
    ):
        vm_node.send("tgt", frame)
    for frame in SIGNS.values():
        vm_node.send_from_host("tgt", frame)
    sent = time.time_ns()
    vm_node.send("tgt", SIGNS["rarp"])
    until("a true sign still counts", lambda: vm_node.metrics("tgt") == [512])
    (sign,) = until("it is logged", lambda: vm_node.lines("sign"))
    assert sign["kernel_ns"] >= sent, "what the sniffer heard before was none"


def test_a_migration_from_sign_to_convergence(vm_node: NodeProcess) -> None:
    spec = {"liveMigrationRouteConvergenceTime": "2s"}
    record = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", spec)
    vm_node.store.create(record.key, record.value)
    attach_target(vm_node)
    vm_node.send("tgt", SIGNS["rarp"])
    until("raised", lambda: vm_node.metrics("tgt") == [512])
    patch(vm_node, VirtualMachineInstance, VMI, {"nodeName": NODE})
    patch(vm_node, VirtualMachineInstanceMigration, "m1", {"phase": "Succeeded"})
    until("back to normal", lambda: vm_node.metrics("tgt") == [1024])
    until("it is told", lambda: vm_node.lines("route_reverted"))
    moves = [(line["from"], line["to"]) for line in vm_node.lines("migration_transition")]
    assert moves[-3:] == [("target", "live"), ("live", "time-wait"), ("time-wait", "base")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_while_raised_keeps_the_route(vm_node: NodeProcess, number: int) -> None:
    attach_target(vm_node)
    vm_node.send("tgt", SIGNS["rarp"])
    until("raised", lambda: vm_node.metrics("tgt") == [512])
    until("remembered", lambda: b'"live"' in state_file(vm_node))
    watcher = vm_node.spawn(["ip", "-o", "monitor", "route"], "routes.log")
    vm_node.processes.append(watcher)
    heard = (vm_node.root / "routes.log").read_text
    until("the watcher hears of routes", lambda: changed_route(vm_node, "192.0.2.1") in heard())
    if number == signal.SIGTERM:  # the first has it wait until the route is plain again
        assert vm_node.agent is not None
        vm_node.agent.send_signal(number)
        until("it waits", lambda: vm_node.lines("stop_waits_for_migrations"))
    vm_node.stop(number)
    known_again(vm_node)
    assert vm_node.metrics("tgt") == [512]
    until("all is heard", lambda: changed_route(vm_node, "192.0.2.2") in heard())
    assert ADDRESS not in heard()


def changed_route(node: NodeProcess, address: str) -> str:
    """Change a route that is nobody's; its address."""
    node.ip("route", "replace", address, "dev", "up0")
    node.ip("route", "del", address, "dev", "up0")
    return address


def state_file(node: NodeProcess) -> bytes:
    try:
        return (node.root / "state" / "migration-state.json").read_bytes()
    except FileNotFoundError:
        return b""


def test_a_restart_with_a_broken_state_file_believes_the_kernel(vm_node: NodeProcess) -> None:
    attach_target(vm_node)
    vm_node.send("tgt", SIGNS["rarp"])
    until("raised", lambda: vm_node.metrics("tgt") == [512])
    until("remembered", lambda: b'"live"' in state_file(vm_node))
    vm_node.stop(signal.SIGKILL)
    (vm_node.root / "state" / "migration-state.json").write_bytes(b"{half a")
    known_again(vm_node)
    assert vm_node.lines("state_unreadable")
    assert vm_node.metrics("tgt") == [512]


def test_latency_from_sign_to_route(vm_node: NodeProcess) -> None:
    """From the kernel's time stamp of the frame to the kernel's acknowledgement of the route."""
    uid = migrate(vm_node)
    latencies: list[float] = []
    while len(latencies) < ROUNDS or (min(latencies) >= QUICK_MS and len(latencies) < MOST_ROUNDS):
        number = len(latencies)
        pod, before = f"tgt{number}", len(vm_node.lines("sniffer_open"))
        key = vm_node.attach(pod, migration=uid, vmi_uid=vm_node.vmi_uid)
        until("listening", more(vm_node, "sniffer_open", before))
        vm_node.send(pod, frames.rarp(MAC))
        until("raised", more(vm_node, "route_raised", number))
        latencies.append(vm_node.lines("route_raised")[number]["latency_ms"])
        vm_node.store.delete(key)
        until("gone", routed(vm_node, pod))
    median = statistics.median(latencies)
    print(f"sign to route, ms: median {median:.2f} ({min(latencies):.2f}..{max(latencies):.2f})")
    assert min(latencies) < QUICK_MS, "a busy machine delays some, not all"


def test_bird_is_started_and_outlives_the_agent(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, fresh_name("ag"), bird={"mode": "supervised"})
    pid_file, control = tmp_path / "run" / "bird.pid", tmp_path / "run" / "bird.ctl"
    try:
        node.start()
        until("BIRD runs", lambda: control.exists() and pid_of(pid_file))
        node.attach("web", vm=False)
        first = pid_of(pid_file)
        until("BIRD goes first", lambda: os.getpriority(os.PRIO_PROCESS, first) == NICE)
        group = Path(f"/proc/{first}/autogroup")  # there where the kernel makes such groups
        until(
            "so does its session", lambda: not group.exists() or f"nice {NICE}" in group.read_text()
        )
        assert node.stop() == 0
        assert birdc(control).startswith("0001 ")
        node.start()
        assert pid_of(pid_file) == first
        os.kill(first, signal.SIGKILL)
        until("BIRD is back", lambda: pid_of(pid_file) not in (0, first))
    finally:
        if node.agent is not None:
            node.stop(signal.SIGKILL)  # else it would start another
        with suppress(ProcessLookupError):
            if left := pid_of(pid_file):
                os.kill(left, signal.SIGKILL)
        node.close()


def pid_of(file: Path) -> int:
    """What a file that BIRD may be writing names; 0 as long as that is nobody."""
    try:
        return int(file.read_text() or 0)
    except FileNotFoundError:
        return 0


def birdc(control: Path) -> str:
    """BIRD's greeting on its control socket."""
    with socket.socket(socket.AF_UNIX) as opened:
        opened.settimeout(60)
        opened.connect(str(control))
        return opened.recv(100).decode()
