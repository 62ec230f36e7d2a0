"""A VM that migrates under policy: what may pass goes on, and what may not arrives nowhere, ever.

Its policies allow flows in one direction only, and the nodes pick up no TCP connection in its
middle (`nf_conntrack_tcp_loose` 0): answers pass by the connection table alone. One VM goes from
node to node; meanwhile an agent is killed, at a moment that is told by what has happened.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest

from lab import control, names
from lab.agents import end_agent, kill_agent
from lab.certificates import certify, node_files
from lab.cluster import start_agent, until
from lab.datastore import with_store
from lab.nodes import in_node
from lab.objects import LabMigration, LabVMI
from lab.tools import run, set_sysctls
from libtortie.datastore.port import Datastore
from libtortie.linux.netns import Netns
from libtortie.model.keys import Kind
from tests.fakes.agent_world import resource_record
from tests.fakes.lab_vms import running_vm
from tests.fakes.node_process import DEADLINE
from tests.fakes.policed_vm import INWARD, OUTSIDE, OUTWARD, PolicedVM
from tests.fakes.running_lab import Lab, assert_settled, lab_up

pytestmark = pytest.mark.root

T = TypeVar("T")
VM = "policed"
HELD = "TargetReady"
Manifest = tuple[Kind, str, str, Mapping[str, Any]]
"""Kind, namespace, name and spec."""


def one_way(port: int, **end: Any) -> list[Mapping[str, Any]]:
    """TCP and UDP to a port, from or to whoever is outside."""
    return [
        {"action": "Allow", "protocol": protocol, **_merged(end, port)}
        for protocol in ("TCP", "UDP")
    ]


def _merged(end: Mapping[str, Any], port: int) -> dict[str, Any]:
    return {**end, "destination": {**end.get("destination", {}), "ports": [port]}}


WORKLOADS: tuple[Manifest, ...] = (
    (
        Kind.NETWORK_POLICY,
        control.NAMESPACE,
        "one-way",
        {
            "selector": f"app == '{VM}'",
            "types": ["Ingress", "Egress"],
            "ingress": one_way(INWARD, source={"nets": [f"{OUTSIDE}/32"]}),
            "egress": one_way(OUTWARD, destination={"nets": [f"{OUTSIDE}/32"]}),
        },
    ),
)
"""All that is not allowed is denied, both ways."""

NODES: tuple[Manifest, ...] = (
    *(
        (Kind.HOST_ENDPOINT, "", name, {"node": name, "interfaceName": "*"})
        for name in ("node1", "node2", "node3")
    ),
    (
        Kind.GLOBAL_NETWORK_POLICY,
        "",
        "nothing-to-nodes",
        {"selector": "!has(projectcalico.org/orchestrator)", "types": ["Ingress", "Egress"]},
    ),
)
"""Nothing gets to a node, or leaves it, but what is failsafe and what nodes need between them."""

POLICIES: dict[str, tuple[Manifest, ...]] = {"workloads": WORKLOADS, "nodes": WORKLOADS + NODES}
"""What is in force during the story, by name. Each is told with a lab of its own."""
MIGRATION_PORTS, CLOSED_PORT = (49152, 49153), 8080
CLOSED_SECONDS = 2.0


@dataclass
class Scene:
    """The VM on its way through the cluster."""

    lab: Lab
    vm: PolicedVM
    policies: str
    words: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def node(self) -> str:
        """Where the VM runs."""
        return control.get(LabVMI, VM).status.node_name

    def since(self, node: str, event: str) -> list[dict[str, Any]]:
        """What a node's agents have told of this since `look_from_here`."""
        path, found = self.lab.state.node(node, "log") / "node.log", []
        for line in path.read_text().splitlines()[self.seen.get(node, 0) :]:
            with suppress(ValueError):  # the last word of one that was killed
                found.append(json.loads(line))
        return [line for line in found if line["event"] == event]

    def look_from_here(self) -> None:
        """What was told before does not count from now on."""
        for node in (one.name for one in self.lab.topology.nodes):
            path = self.lab.state.node(node, "log") / "node.log"
            self.seen[node] = len(path.read_text().splitlines())

    def reach(self, node: str, *states: str) -> None:
        """Wait until the VM's endpoint on a node has come to one of these states, or has gone."""

        def reached() -> bool:
            moves = self.since(node, "migration_transition")
            gone = self.since(node, "endpoint_removed")
            return bool(gone) or any(move["to"] in states for move in moves)

        until(reached, f"the endpoint on {node} does not come to {states}")

    def begin(self) -> tuple[LabMigration, str, str]:
        """A migration whose target is ready and whose guest is held back; source and target."""
        self.vm.open_flows()
        self.look_from_here()
        source = self.node
        others = [one.name for one in self.lab.topology.nodes if one.name != source]
        target = others[self.words % len(others)]
        job = control.create_migration(VM, target, {names.ANNOTATION_HOLD: HELD})
        until(lambda: _phase(job) == HELD, f"the migration does not get to {HELD}")
        return job, source, target

    def end(self, job: LabMigration, target: str) -> None:
        """Nothing broke, and nothing arrived that must not."""
        over = control.await_migration(job.metadata.name, print)
        assert over.status.phase == "Succeeded"
        self.vm.goes_on()
        self.words += 1
        self.vm.answers_first(b"%08d" % self.words)
        assert_settled(self.lab, VM, self.vm.address)
        self.vm.goes_on()
        assert self.node == target
        self.vm.assert_nothing_denied_came()
        pod = over.status.migration_state.target_pod
        heard = self.vm.heard("allowed in")
        assert any(pod in place for place in heard), f"no ear in {pod}, only in {heard}"

    def restart_agent(self, node: str) -> None:
        """Kill it; its keeper starts the next."""
        kill_agent(self.lab.state, node)

    def end_agent(self, node: str) -> None:
        """Kill it and its keeper, with no word of warning."""
        end_agent(self.lab.state, node)


def _phase(job: LabMigration) -> str:
    return control.get(LabMigration, job.metadata.name).status.phase


def let_go(job: LabMigration) -> None:
    """The guest may go."""
    patch = {"metadata": {"annotations": {names.ANNOTATION_HOLD: None}}}
    name = job.metadata.name
    control.with_client(lambda api: api.patch(LabMigration, name, control.NAMESPACE, patch))


def store(lab: Lab, manifests: tuple[Manifest, ...]) -> None:
    """Write resources as a user would."""

    def work(datastore: Datastore) -> None:
        for kind, namespace, name, spec in manifests:
            record = resource_record(kind, name, spec, namespace)
            datastore.create(record.key, record.value)

    with_store(lab.state, lab.state.read().datastore, work)


def rules_of(lab: Lab, node: str) -> str:
    """What a node's kernel has."""
    return run(in_node(lab.state, node, ["nft", "list", "table", "inet", "tortie"]))


@pytest.fixture(scope="module", params=POLICIES)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    strict = {
        "net.netfilter.nf_conntrack_tcp_loose": "0",
        "net.netfilter.nf_conntrack_udp_timeout": "3600",
        "net.netfilter.nf_conntrack_udp_timeout_stream": "3600",
    }
    with ExitStack() as stack:
        lab = stack.enter_context(lab_up(tmp_path_factory.mktemp("lab") / "state", 1.0))
        for node in lab.topology.nodes:
            set_sysctls(node.netns, strict)
        stack.enter_context(running_vm(lab, VM))
        with ExitStack() as traffic:
            vm = PolicedVM(VM, traffic)
            everything_passes(vm)
            with vm.without_tries():
                store(lab, POLICIES[request.param])
                until(lambda: f"dport {INWARD}" in rules_of(lab, "node1"), "no policy in force")
            vm.take_turns(3)
            vm.forget()
            yield Scene(lab, vm, request.param)


def everything_passes(vm: PolicedVM) -> None:
    """Without policy what is tried arrives, and is heard: in the guest, its pod, and outside."""

    def heard() -> bool:
        assert not vm.broken, vm.broken
        return len(vm.heard("denied in")) == 3 and len(vm.heard("denied out")) == 3

    until(heard, "what is tried is not heard")


def test_nodes_are_open_to_each_other_for_migrations_alone(scene: Scene) -> None:
    """While they deny everything; else for all."""
    first, second = scene.lab.topology.nodes[:2]
    denied = scene.policies == "nodes"

    def answers(port: int) -> bool:
        with in_space(second.netns, lambda: socket.create_server(("0.0.0.0", port))):
            return in_space(first.netns, partial(connects, str(second.address.ip), port))

    until(lambda: answers(CLOSED_PORT) is not denied, "the nodes' policy is not in force")
    for port in MIGRATION_PORTS:
        assert answers(port), port


def in_space(space: str, work: Callable[[], T]) -> T:
    return Netns(deadline=DEADLINE).call(str(names.netns_path(space)), work)


def connects(address: str, port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(CLOSED_SECONDS if port == CLOSED_PORT else DEADLINE)
        try:
            sock.connect((address, port))
        except (TimeoutError, PermissionError):
            return False
        return True


def test_flows_go_on_and_nothing_denied_arrives(scene: Scene) -> None:
    """Row 5: while the VM is here, on its way, and there."""
    job, _, target = scene.begin()
    until(lambda: bool(scene.since(target, "conntrack_copied")), "no connections come")
    let_go(job)
    scene.end(job, target)


def held(scene: Scene, job: LabMigration, node: str) -> None:
    """While the target waits for the guest; which then comes before the agent is back."""
    scene.end_agent(node)
    let_go(job)
    start_agent(scene.lab.state, node)


def at(*states: str) -> Callable[[Scene, LabMigration, str], None]:
    """As soon as the endpoint there has come to one of these states."""

    def kill(scene: Scene, job: LabMigration, node: str) -> None:
        let_go(job)
        scene.reach(node, *states)
        scene.restart_agent(node)

    return kill


KILLS: dict[str, Callable[[Scene, LabMigration, str], None]] = {
    "target waits": held,
    "target live": at("live", "time-wait"),
    "target in time-wait": at("time-wait"),
    "target settled": at("base"),
    "source waits": held,
    "source departed": at("departed"),
}


@pytest.mark.parametrize("moment", KILLS)
def test_an_agent_killed_on_the_way_breaks_no_flow_and_lets_nothing_in(
    scene: Scene, moment: str
) -> None:
    job, source, target = scene.begin()
    until(lambda: bool(scene.since(target, "conntrack_copied")), "no connections come")
    node = source if moment.startswith("source") else target
    KILLS[moment](scene, job, node)
    scene.end(job, target)
    until(lambda: len(scene.since(node, "cni_serving")) == 1, "the agent does not serve")


def test_new_certificates_are_used_by_the_next_migration(scene: Scene) -> None:
    for one in scene.lab.topology.nodes:
        certify(scene.lab.state, one.name)
    job, source, target = scene.begin()
    until(lambda: bool(scene.since(target, "conntrack_copied")), "no connections come")
    let_go(job)
    scene.end(job, target)
    for node in (source, target):
        assert scene.since(node, "peer_certificate_loaded"), node
        assert not scene.since(node, "peer_certificate_unusable"), node


def test_a_node_without_a_certificate_says_so_once_and_the_vm_moves_all_the_same(
    scene: Scene,
) -> None:
    """What this costs: a connection whose entry stayed behind. The last test: it breaks flows."""
    scene.vm.open_flows()
    scene.vm.busy.clear()
    scene.look_from_here()
    target = next(one.name for one in scene.lab.topology.nodes if one.name != scene.node)
    scene.end_agent(target)
    for path in node_files(scene.lab.state, target).iterdir():
        path.unlink()
    start_agent(scene.lab.state, target)
    moved = control.create_migration(VM, target)
    assert control.await_migration(moved.metadata.name, print).status.phase == "Succeeded"
    assert_settled(scene.lab, VM, scene.vm.address)
    opener, other = scene.vm.quiet["quiet tcp out"]
    other.sendall(b"lost")
    until(lambda: retransmitted(other) >= 3, "the kernel does not try again")
    opener.setblocking(False)
    with pytest.raises(BlockingIOError):
        opener.recv(1)
    scene.vm.assert_nothing_denied_came()
    assert len(scene.since(target, "peer_certificate_unusable")) == 1
    certify(scene.lab.state, target)
    until(lambda: bool(scene.since(target, "peers_serving")), "the certificate is not seen")


def retransmitted(sock: socket.socket) -> int:
    """How often the kernel has sent the oldest unanswered segment again (`tcpi_retransmits`)."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2]
