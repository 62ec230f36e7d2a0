"""A cut-over with late policy and the real agent: waited for, told, counted, and nothing let in.

The kernel takes no more rules while a file is there: `nft` is a stand-in that then refuses, and
somebody has touched the agent's tables, so that it has to replace them by `nft`.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from felix_shim.kube_entries import followed_kinds
from felix_shim.kube_events import KubeEvent
from libtortie.history import history
from libtortie.linux.netns import Netns
from libtortie.model.history import What
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import Resource
from libtortie.past_migrations import migrations
from tests.fakes.agent_world import NAMESPACE, NODE, resource_record
from tests.fakes.called_node import CalledNode
from tests.fakes.fresh_names import fresh_name
from tests.fakes.guest import PORT, Guest, Prober
from tests.fakes.node_process import ip, until

pytestmark = pytest.mark.root

POD, POLICY = "virt-launcher-db-1", ResourceKey(Kind.NETWORK_POLICY, "db", NAMESPACE)
DENIED = PORT + 1
STAND_IN = """#!/bin/sh
[ -e {flag} ] && [ "$1" = -f ] && {{ echo 'Error: refused on purpose' >&2; exit 1; }}
exec {nft} "$@"
"""


class PodEvent(KubeEvent):
    """What `kubectl describe pod` shows."""

    message: str = ""
    reason: str = ""
    type: str = ""
    involved_object: dict[str, str]


@dataclass
class Scene:
    """A migration's target under policy, its guest not here yet."""

    node: CalledNode
    address: str
    guest: Guest
    prober: Prober
    flag: Path

    def refuse_rules(self) -> None:
        """From now on, and a policy changes: its rules do not get in."""
        self.flag.touch()
        table = ["inet", "tortie", "somebody-elses"]
        ip("netns", "exec", self.node.name, "nft", "add", "chain", *table)
        failed = len(self.node.lines("apply_failed"))
        stored = self.node.store.get(POLICY)
        self.node.store.update(POLICY, policy(PORT, 7999), stored.revision)
        until("the rules are refused", lambda: len(self.node.lines("apply_failed")) > failed)

    def take_rules(self) -> None:
        """As ever."""
        self.flag.unlink()

    def arrive(self) -> float:
        """The guest runs here and is told about; when that was."""
        began = self.guest.arrive()
        until("the sign is heard", lambda: self.node.lines("sign"))
        return began

    def told(self, words: str) -> list[PodEvent]:
        """The warnings about the VM's pod that say so, as Events."""
        events, _ = self.node.kube(lambda api: api.list(PodEvent, NAMESPACE))
        found = [one for one in events if words in one.message and one.type == "Warning"]
        of_pod = [one for one in found if one.involved_object["kind"] == "Pod"]
        assert all(one.involved_object["name"] == POD for one in of_pod)
        return of_pod

    def assert_nothing_denied_passes(self, began: float) -> None:
        """Of what is sent to another port, though what is sent to the guest's own is answered."""
        until("the guest answers", lambda: self.prober.answered_since(began))
        path = self.node.sandbox("ctr1")

        def listen() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            sock.bind((self.address, DENIED))
            return sock

        def send() -> socket.socket:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for port in (DENIED, DENIED, DENIED):
                sock.sendto(b"?", (self.address, port))
            return sock

        with Netns(deadline=120).call(path, listen) as denied:
            with Netns(deadline=120).call(self.prober.path, send):
                sent = time.monotonic()
            until("a later one is answered", lambda: self.prober.answered_since(sent))
            with pytest.raises(BlockingIOError):
                denied.recv(1)


def policy(*ports: int) -> Resource:
    """The VM may be asked on these ports, and on no others."""
    rule = {"action": "Allow", "protocol": "UDP", "destination": {"ports": list(ports)}}
    spec = {"selector": "kubevirt.io == 'virt-launcher'", "ingress": [rule]}
    found = resource_record(Kind.NETWORK_POLICY, "db", spec, namespace=NAMESPACE).value
    assert isinstance(found, Resource)
    return found


@pytest.fixture
def settings() -> Mapping[str, str]:
    """The gate's; the default."""
    return {}


@pytest.fixture
def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str]
) -> Iterator[Scene]:
    tools, flag = tmp_path / "tools", tmp_path / "refuse"
    tools.mkdir()
    (tools / "nft").write_text(STAND_IN.format(flag=flag, nft=shutil.which("nft")))
    (tools / "nft").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with ExitStack() as stack:
        node = CalledNode(tmp_path / "node", fresh_name("gt"))
        stack.callback(node.close)
        node.store.create(POLICY, policy(PORT))
        felix = resource_record(Kind.FELIX_CONFIGURATION, f"node.{NODE}", settings)
        node.store.create(felix.key, felix.value)
        address = node.vm_elsewhere()
        node.world.put_migration("m1", phase="Running")
        node.world.put_launcher(POD, migration="m1")
        node.start()
        answer = node.done("ADD", POD, "ctr1")
        until("the agent listens", lambda: node.lines("sniffer_open"))
        guest = Guest(node, "ctr1", address, answer.body["interfaces"][1]["mac"])
        stack.callback(guest.leave)
        prober = Prober(node, address)
        stack.callback(prober.close)
        yield Scene(node, address, guest, prober, flag)


def test_late_policy_raises_the_route_with_the_last_complete_one(scene: Scene) -> None:
    node = scene.node
    scene.refuse_rules()
    began = scene.arrive()
    until("it is raised all the same", lambda: node.metrics(POD) == [512])
    (waits,), (late,) = node.lines("policy_gate_waits"), node.lines("policy_gate_late")
    assert waits["endpoint"] == late["endpoint"]
    assert late["waited_ms"] >= 500
    until("an Event tells", lambda: scene.told("raised with the last complete policy"))
    assert node.status(POD), "its last complete policy is in force"
    scene.assert_nothing_denied_passes(began)
    scene.take_rules()
    until("the latest is there", lambda: "7999" in node.rules())
    assert len(scene.told("last complete policy")) == 1


@pytest.mark.parametrize("settings", [{"policyGateOnTimeout": "Hold", "policyGateTimeout": "50ms"}])
def test_held_back_it_is_raised_when_policy_is_there(scene: Scene) -> None:
    node = scene.node
    scene.refuse_rules()
    scene.arrive()
    (held,) = until("it is held", lambda: node.lines("policy_gate_held"))
    assert "latest rules" in held["reason"]
    until("an Event tells", lambda: scene.told("held back"))
    assert node.metrics(POD) == [] and not node.lines("route_raised")
    began = time.monotonic()
    scene.take_rules()
    until("it is raised", lambda: node.metrics(POD) == [512])
    assert "7999" in node.rules(), "policy first"
    (opened,) = node.lines("policy_gate_opened")
    assert opened["waited_ms"] >= 50
    scene.assert_nothing_denied_passes(began)


def test_policy_that_comes_in_time_is_no_event(scene: Scene) -> None:
    """The ordinary case: no wait at all."""
    began = scene.arrive()
    until("it is raised", lambda: scene.node.metrics(POD) == [512])
    scene.assert_nothing_denied_passes(began)
    assert not scene.node.lines("policy_gate_waits")
    assert not scene.told("policy")


def test_a_migration_is_told_of_as_events_and_kept_in_the_history(scene: Scene) -> None:
    node = scene.node
    scene.arrive()
    until("it is raised", lambda: node.metrics(POD) == [512])
    wanted = {"AddressShared", "MigrationTargetPrepared", "VMSeenOnTarget", "RouteRaised"}

    def reasons(kind: str) -> set[str]:
        events, _ = node.kube(lambda api: api.list(PodEvent, NAMESPACE))
        return {one.reason for one in events if one.involved_object["kind"] == kind}

    until("the pod is told of", lambda: wanted <= reasons("Pod"))
    until("the VM is told of", lambda: wanted <= reasons("VirtualMachineInstance"))

    def kept() -> bool:
        facts = history(node.store, address=ip_address(scene.address)).facts
        steps = {one.details.get("step") for one in facts}
        return (
            What.TARGETED in {one.what for one in facts}
            and {"prepared", "heard", "raised"} <= steps
        )

    until("the history has it", kept)
    (one,) = migrations(history(node.store).facts)
    assert (one.target, one.outcome) == (NODE, "running")
    assert one.sign_to_route_ms is not None


def test_an_api_that_is_away_delays_no_raise(scene: Scene) -> None:
    """What the agent has heard before is the latest that it knows of."""
    node = scene.node
    node.server.stop()
    kinds = {kind.api.plural for kind in followed_kinds("sqlite")}
    until(
        "no kind is heard of",
        lambda: kinds <= {one["kind"] for one in node.lines("api_watch_lost")},
    )
    began = scene.arrive()
    until("it is raised", lambda: node.metrics(POD) == [512])
    assert not node.lines("policy_gate_waits")
    scene.assert_nothing_denied_passes(began)
