"""What the agent decides becomes Kubernetes Events of the pod and of its VM."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from felix_shim import notices
from felix_shim.endpoints import parse_endpoint
from felix_shim.kube_events import CLOSED_REASON, REASON, NodeEvents
from felix_shim.migration_table import Input, State
from felix_shim.model import Endpoint
from felix_shim.notices import wording
from libtortie.events import EventSender, KubeEvent
from libtortie.jsonlog import JsonLog
from libtortie.model.resources import WorkloadEndpoint
from tests.fakes.agent_world import NAMESPACE, VMI_UID, RecordingLog, endpoint_record
from tests.fakes.kube import FakeKube

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)


def endpoint(pod: str = "web", *, vm: bool = True) -> Endpoint:
    value = endpoint_record(pod, vm=vm).value
    assert isinstance(value, WorkloadEndpoint)
    return parse_endpoint(value)


class Scene:
    """A log that is listened to, and the Events that come of it."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        numbers = count()
        self.sender = EventSender(
            self.kube,
            "tortie-node",
            "n1",
            RecordingLog(),
            lambda: NOW,
            lambda: float(next(numbers)),
            "n1",
        )
        self.events = NodeEvents(self.sender)
        self.log = JsonLog(io.StringIO(), level="error")
        self.log.listen(self.events.hear)

    def add(self, found: Endpoint) -> None:
        self.log.info(
            "endpoint_added", endpoint=found.id, container_id=found.container_id, **found.whose
        )

    def remove(self, found: Endpoint) -> None:
        self.log.info("endpoint_removed", endpoint=found.id, container_id=found.container_id)

    def told(self) -> list[tuple[str, str, str]]:
        """(kind, reason, type) of what is sent, by kind."""
        while self.sender._waiting:
            self.sender.send_next()
        found = [(one["involvedObject"]["kind"], one["reason"], one["type"]) for one in self.all()]
        return sorted(found)

    def all(self) -> list[dict[str, Any]]:
        found, _ = self.kube.list(KubeEvent)
        kind = self.kube._kind(KubeEvent)
        names = [(one.metadata.namespace, one.metadata.name) for one in found]
        return [self.kube.api.get(kind, namespace, name) for namespace, name in names]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_warnings_are_about_the_pod_and_its_vm(scene: Scene) -> None:
    scene.events.warn(endpoint(), "still announced")
    scene.events.closed(endpoint("ctr", vm=False), "NetworkPolicy shop/p cannot be obeyed")
    assert scene.told() == [
        ("Pod", "LiveMigrationWarning", "Warning"),
        ("Pod", "PolicyNotObeyed", "Warning"),
        ("VirtualMachineInstance", "LiveMigrationWarning", "Warning"),
    ]
    by_kind = {one["involvedObject"]["kind"]: one["involvedObject"] for one in scene.all()}
    assert by_kind["VirtualMachineInstance"]["uid"] == VMI_UID
    assert by_kind["Pod"]["namespace"] == NAMESPACE


def test_a_line_about_an_endpoint_is_told_of_its_pod_and_vm(scene: Scene) -> None:
    web = endpoint()
    scene.add(web)
    scene.log.info("route_raised", endpoint=web.id, dst="10.65.0.2/32", latency_ms=1.5)
    assert scene.told() == [
        ("Pod", "RouteRaised", "Normal"),
        ("VirtualMachineInstance", "RouteRaised", "Normal"),
    ]
    assert {one["involvedObject"]["uid"] for one in scene.all()} == {web.pod_uid, VMI_UID}
    assert scene.all()[0]["message"] == "route to 10.65.0.2/32 raised, 1.5 ms after its sign"


def test_nobody_is_told_of_an_endpoint_that_is_unknown_or_gone(scene: Scene) -> None:
    web = endpoint()
    scene.log.info("route_raised", endpoint=web.id, dst="10.65.0.2/32")
    scene.add(web)
    scene.remove(web)
    scene.log.info("route_raised", endpoint=web.id, dst="10.65.0.2/32")
    scene.log.event("policy_timeout", container_id=web.container_id, timeout_seconds=3.0)
    assert scene.told() == []
    assert not scene.events._of and not scene.events._endpoints


def test_a_container_is_found_by_its_id(scene: Scene) -> None:
    scene.add(endpoint("ctr", vm=False))
    container = endpoint("ctr", vm=False).container_id
    scene.log.event("policy_timeout", container_id=container, timeout_seconds=3.0)
    assert scene.told() == [("Pod", "PolicyTimeout", "Warning")]


def test_a_cni_call_says_itself_whose_it_is(scene: Scene) -> None:
    scene.log.event(
        "cni_error",
        command="ADD",
        code=103,
        error="10.65.0.2 is held by handle k8s",
        namespace="shop",
        pod="web-0",
        pod_uid="uid-9",
        container_id="c9",
    )
    assert scene.told() == [("Pod", "NetworkRefused", "Warning")]
    (one,) = scene.all()
    assert one["involvedObject"]["uid"] == "uid-9"
    assert one["message"] == "10.65.0.2 is held by handle k8s (CNI code 103)"


def test_a_freed_vm_is_named_by_its_handle(scene: Scene) -> None:
    scene.log.info("vm_address_freed", handle_id="k8s.vmi.shop.db", addresses=("10.65.0.2",))
    scene.log.info("vm_address_freed", handle_id="k8s.vmi." + "0" * 64, addresses=("10.65.0.3",))
    assert scene.told() == [("VirtualMachineInstance", "AddressReleased", "Normal")]
    (one,) = scene.all()
    assert (one["involvedObject"]["namespace"], one["involvedObject"]["name"]) == ("shop", "db")


def test_a_line_below_the_logs_level_is_told_all_the_same(scene: Scene) -> None:
    web = endpoint()
    scene.add(web)
    scene.log.debug("owner_swapped", endpoint=web.id)
    assert [reason for _, reason, _ in scene.told()] == ["OwnerSwapped"] * 2


VM = {"vmi": "db", "address": "10.65.0.2"}
ADD = {"command": "ADD", "pod": "web", "error": "x"}


@pytest.mark.parametrize(
    ("event", "fields", "reason"),
    [
        ("cni_add", {"address": "10.65.0.2"}, ""),
        ("cni_add", VM, "AddressGranted"),
        ("cni_add", {**VM, "kept": True}, "AddressKept"),
        ("cni_add", {**VM, "kept": True, "target": True}, "AddressShared"),
        ("cni_del", {}, ""),
        ("cni_del", {"vmi": "db", "freed": False}, "AddressKept"),
        ("cni_del", {"vmi": "db", "freed": True}, "AddressReleased"),
        ("cni_error", {**ADD, "code": 11}, "NetworkNotReady"),
        ("cni_error", {**ADD, "code": 101}, "NetworkRefused"),
        ("cni_error", {**ADD, "code": 101, "command": "DEL"}, ""),
        ("cni_error", {"command": "ADD", "code": 4}, ""),
        ("migration_begun", {"state": State.TARGET}, "MigrationTargetPrepared"),
        ("migration_begun", {"state": State.LIVE}, ""),
        ("migration_transition", {"to": State.TARGET}, "MigrationTargetPrepared"),
        ("migration_transition", {"to": State.REFUSED}, "AnnouncementsRefused"),
        ("migration_transition", {"to": State.TIME_WAIT}, "MigrationConfirmed"),
        ("migration_transition", {"to": State.DEPARTED, "input": Input.RAISED_ELSEWHERE}, "VMLeft"),
        ("migration_transition", {"to": State.BASE}, ""),
        ("sign", {"kind": "rarp"}, "VMSeenOnTarget"),
        ("route_raised", {"dst": "10.65.0.2/32"}, "RouteRaised"),
        ("route_reverted", {"dst": "10.65.0.2/32", "metrics": [1024]}, "RouteReverted"),
        ("policy_gate_waits", {"reason": "x"}, "PolicyGateWaits"),
        ("policy_gate_opened", {"waited_ms": 3.1}, "PolicyGateOpened"),
        ("policy_timeout", {"timeout_seconds": 3.0}, "PolicyTimeout"),
        ("owner_swapped", {}, "OwnerSwapped"),
        ("owner_swap_failed", {"reason": "x"}, "OwnerSwapFailed"),
        ("convergence_held", {}, "ConvergenceHeld"),
        ("migration_limited", {"text": "IPPool p: x"}, "LiveMigrationLimited"),
        ("settings", {}, ""),
    ],
)
def test_every_step_an_operator_asks_about_has_words(
    event: str, fields: Mapping[str, object], reason: str
) -> None:
    said = wording(event, fields)
    assert (said.reason if said else "") == reason
    assert said is None or (said.message and "None" not in said.message)


def test_the_manual_has_every_reason() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "events.md").read_text(encoding="utf-8")
    said = set(re.findall(r'Wording\(\s*"(\w+)"', Path(notices.__file__).read_text()))
    listed = set(re.findall(r"`([A-Z][A-Za-z]+)`(?=[^\n]*\| (?:Normal|Warning) \|)", manual))
    assert said | {REASON, CLOSED_REASON} == listed
