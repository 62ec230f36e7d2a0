"""The real agent and another: connections come with a VM, go with a VM, and end with their pod."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from felix_shim.exchange import Exchange, Permit
from felix_shim.hand_over import HandOver
from felix_shim.peer_credentials import Credentials, Files
from felix_shim.peer_messages import Batch, End, Message, Refused, Request, Unknown
from felix_shim.peers import Limits, Link, PeerServer, dial
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.objects import (
    KubeObject,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from libtortie.linux.conntrack import Conntrack
from libtortie.linux.flows import TCP, UDP, Flow, FlowTuple, Status, TcpState, TcpTracking
from libtortie.linux.netns import enter
from libtortie.model.keys import Kind
from tests.fakes import frames
from tests.fakes.agent_world import (
    ADDRESS,
    MAC,
    NAMESPACE,
    NODE,
    VMI,
    RecordingLog,
    resource_record,
)
from tests.fakes.certificates import Authority
from tests.fakes.conntrack import FakeTable
from tests.fakes.fresh_names import fresh_name
from tests.fakes.node_process import NodeProcess, until
from tests.fakes.patience import PATIENCE

pytestmark = pytest.mark.root

OTHER, OTHER_ADDRESS, OWN_ADDRESS, PORT = "n2", "172.31.1.3", "172.31.1.2", 9199
VM, POD = ip_address(ADDRESS), ip_address("10.66.0.5")
LIMITS = Limits(step=PATIENCE, idle=PATIENCE)


def flow(port: int) -> Flow:
    one = FlowTuple(VM, POD, TCP, port, 80)
    tcp = TcpTracking(TcpState.ESTABLISHED).liberal()
    return Flow(one, one.inverse(), 10000, Status.SEEN_REPLY | Status.ASSURED, tcp)


@dataclass
class Scene:
    """A node whose agent has a certificate, with KubeVirt's objects, and another node's address."""

    node: NodeProcess
    authority: Authority
    stack: ExitStack
    table: Conntrack = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.node.inside(lambda: Conntrack(deadline=PATIENCE))
        self.stack.callback(self.table.close)

    def credentials(self, name: str) -> Credentials:
        pair = self.authority.node(name)
        files = Files(self.authority.cert, pair.cert, pair.key)
        return Credentials(files, name, RecordingLog(), time.time)

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """A thread in the node's network."""

        def run() -> None:
            enter(f"/run/netns/{self.node.name}")
            body()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def source(self, *flows: Flow, **permits: Permit) -> tuple[FakeTable, RecordingLog]:
        """The other node's part: it has these connections, and lets them go."""
        log, table = RecordingLog(), FakeTable({one.original: one for one in flows})
        other = HandOver(table, _never, self.spawn, log, time.monotonic)
        other.want(Exchange(permits))
        credentials = self.credentials(OTHER)
        server = PeerServer(OTHER_ADDRESS, PORT, credentials, other.answer, self.spawn, log, LIMITS)
        thread = self.spawn("other", server.run)
        self.stack.callback(thread.join)
        self.stack.callback(server.stop)
        return table, log

    def ask(self, name: str, request: Request) -> list[Message]:
        """What the agent answers to a node of this name."""
        credentials = self.credentials(name)

        def work() -> list[Message]:
            with dial(NODE, OWN_ADDRESS, PORT, credentials, LIMITS) as link:
                return list(_answers(link, request))

        return self.node.inside(work)

    def create(
        self, kind: type[KubeObject], name: str, spec: Mapping[str, Any], status: Mapping[str, Any]
    ) -> str:
        """An object of KubeVirt's; its UID. Its status is a resource of its own."""
        body = {
            "apiVersion": "kubevirt.io/v1",
            "kind": kind.api.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }

        def work(client: HttpKubeClient) -> str:
            made = client.create(kind, body)
            client.patch(kind, name, NAMESPACE, {"status": status}, subresource="status")
            return made.metadata.uid

        return self.node.kube(work)

    def migrate(self, **state: str) -> str:
        """A live migration of the VM; its UID."""
        status = {"phase": "Running", "migrationState": state}
        return self.create(VirtualMachineInstanceMigration, "m1", {"vmiName": VMI}, status)

    def run_vm(self, node: str) -> None:
        status = {"nodeName": node, "phase": "Running"}
        self.node.vmi_uid = self.create(VirtualMachineInstance, VMI, {}, status)

    def attach_target(self) -> str:
        """The VM's pod at its migration's target, listened to; the migration's UID."""
        self.run_vm(OTHER)
        uid = self.migrate()
        self.node.attach("tgt", migration=uid, vmi_uid=self.node.vmi_uid)
        until("the agent listens", lambda: self.node.lines("sniffer_open"))
        until("it has no route", lambda: self.node.metrics("tgt") == [])
        return uid

    def known(self) -> set[int]:
        """The ports of the VM's connections that the node's kernel knows."""
        return {one.original.source_port for one in self.table.flows([VM])}


def _never(_: object) -> Link:
    raise AssertionError("a source asks nobody")


def _answers(link: Link, request: Request) -> Iterator[Message]:
    link.send(request)
    while (message := link.receive(PATIENCE)) is not None:
        assert not isinstance(message, Unknown)
        yield message
        if isinstance(message, End | Refused):
            return


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    keys = tmp_path / "keys"
    keys.mkdir()
    authority = Authority(keys, "peers")
    pair = authority.node(NODE)
    config = {
        "peer_ca_file": str(authority.cert),
        "peer_cert_file": str(pair.cert),
        "peer_key_file": str(pair.key),
    }
    with ExitStack() as stack:
        root = tmp_path / "node"
        root.mkdir()
        node = NodeProcess(root, fresh_name("ap"), api=True, **config)
        stack.callback(node.close)
        node.ip("address", "add", f"{OTHER_ADDRESS}/32", "dev", "lo")
        bgp = {"bgp": {"ipv4Address": f"{OTHER_ADDRESS}/24"}}
        record = resource_record(Kind.NODE, OTHER, bgp)
        node.store.create(record.key, record.value)
        node.start()
        yield Scene(node, authority, stack)


def test_connections_are_here_before_the_vm_and_the_last_ones_with_it(scene: Scene) -> None:
    uid = scene.attach_target()
    permit = Permit(NODE, scene.node.vmi_uid, frozenset({VM}))
    table, log = scene.source(flow(1), flow(2), **{uid: permit})
    until("they are in the kernel", lambda: scene.known() == {1, 2})
    assert scene.node.metrics("tgt") == []
    table.entries[flow(3).original] = flow(3)
    scene.node.send("tgt", frames.rarp(MAC))
    until("the route is raised", lambda: scene.node.metrics("tgt") == [512])
    until("the last is here, too", lambda: scene.known() == {1, 2, 3})
    until("the source was told", lambda: log.of("cut_over_noticed"))
    (last,) = [line for line in scene.node.lines("conntrack_copied") if line["last"]]
    assert last["flows"] == 3
    assert {one.original: one.tcp for one in scene.table.flows([VM])} == {
        one.original: one.tcp for one in (flow(1), flow(2), flow(3))
    }


def test_a_silent_source_does_not_delay_the_cut_over(scene: Scene) -> None:
    """It takes the connection and says nothing; and then there is none to take it."""

    def listen() -> socket.socket:
        return socket.create_server((OTHER_ADDRESS, PORT))

    silent = scene.node.inside(listen)
    scene.stack.callback(silent.close)
    scene.attach_target()
    silent.settimeout(PATIENCE)
    called, _ = silent.accept()
    with called:
        scene.node.send("tgt", frames.rarp(MAC))
        until("the route is raised", lambda: scene.node.metrics("tgt") == [512])
    raised = until("it is told", lambda: scene.node.lines("route_raised"))
    assert scene.node.lines("conntrack_copied") == []
    assert scene.node.lines("policy_gate_waits") == []
    assert raised[0]["metrics"] == [512]


def test_a_nodes_connections_go_with_its_vm_to_that_node_alone(scene: Scene) -> None:
    node = scene.node
    scene.run_vm(NODE)
    key = node.attach("src", vmi_uid=node.vmi_uid)
    assert scene.table.create(flow(7))
    request = Request("no-migration", node.vmi_uid, (VM,))
    (refused,) = scene.ask(OTHER, request)
    assert isinstance(refused, Refused) and "no-migration" in refused.reason
    uid = scene.migrate(sourceNode=NODE, targetNode=OTHER, sourcePod="src")
    request = Request(uid, node.vmi_uid, (VM,))

    def answered() -> list[Message]:
        found = scene.ask(OTHER, request)
        return [] if isinstance(found[0], Refused) else found

    batch, end = until("the agent knows of the migration", answered)
    assert isinstance(batch, Batch) and end == End(1)
    assert [one.original for one in batch.flows] == [flow(7).original]
    (refused,) = scene.ask("n3", request)
    assert isinstance(refused, Refused)
    scene.ask(OTHER, Request(uid, node.vmi_uid, (VM,), cut_over=True))
    (noticed,) = until("it is told", lambda: node.lines("cut_over_noticed"))
    assert noticed["endpoint"] == f"{NAMESPACE}/src/eth0"
    node.store.delete(key)
    until("its status file goes", lambda: node.status("src") is None)
    assert scene.known() == {7}, "what was the VM's is not the DEL's to take away"


def test_an_address_begins_without_the_connections_of_who_had_it(scene: Scene) -> None:
    node = scene.node
    key = node.attach("old", vm=False)
    one = FlowTuple(POD, VM, UDP, 5000, 53)
    assert scene.table.create(Flow(one, one.inverse(), 10000, Status.SEEN_REPLY | Status.ASSURED))
    node.stop(signal.SIGKILL)
    node.start()
    until("the old one is served again", lambda: node.status("old"))
    assert scene.known() == {5000}, "a restart takes nothing away"
    node.store.delete(key)
    until("the old one goes", lambda: node.status("old") is None)
    node.attach("new", vm=False)
    assert scene.known() == set()
    (line,) = until("it is told", lambda: node.lines("connections_forgotten"))
    assert (line["address"], line["count"]) == (ADDRESS, 1)


def test_without_a_certificate_it_says_so_and_listens_nowhere(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, fresh_name("ap"))
    try:
        node.start()
        assert node.lines("peers_off")

        def refused() -> int:
            with socket.socket() as sock:
                return sock.connect_ex((OWN_ADDRESS, PORT))

        assert node.inside(refused) != 0
    finally:
        node.close()
