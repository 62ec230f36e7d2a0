"""What the agent asks the API about its node, and what it tells it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from felix_shim.kube_node import (
    ABSENT_SECONDS,
    RETRY_SECONDS,
    ClusterFacts,
    ConfigMap,
    NodeCondition,
    NodeView,
    cluster_facts,
    internal_ips,
)
from libtortie.errors import InvalidInput, Unauthorized, Unavailable
from libtortie.kube.objects import KubeNode
from tests.fakes.agent_world import RecordingLog
from tests.fakes.kube import FakeKube
from tests.fakes.node_process import until

NOW = datetime(2026, 8, 22, 13, 30, tzinfo=UTC)


def node(conditions: list[dict[str, Any]], addresses: list[tuple[str, str]]) -> dict[str, Any]:
    found = [{"type": kind, "address": address} for kind, address in addresses]
    return {
        "metadata": {"name": "n1"},
        "status": {"conditions": conditions, "addresses": found},
    }


@pytest.fixture
def kube() -> FakeKube:
    made = FakeKube()
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    down = {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}
    made.put(node([ready, down], [("Hostname", "n1"), ("InternalIP", "192.0.2.1")]), KubeNode)
    return made


@pytest.fixture
def log() -> RecordingLog:
    return RecordingLog()


@pytest.fixture
def condition(kube: FakeKube, log: RecordingLog) -> NodeCondition:
    return NodeCondition(kube, "n1", log, lambda: NOW)


def test_the_node_is_told_once_and_other_conditions_stay(
    condition: NodeCondition, kube: FakeKube
) -> None:
    assert condition.attempt() == 0
    conditions = kube.api.get(kube._kind(KubeNode), "", "n1")["status"]["conditions"]
    assert {one["type"] for one in conditions} == {"Ready", "NetworkUnavailable", "TortieReady"}
    (told,) = [one for one in conditions if one["type"] == "NetworkUnavailable"]
    assert told == {
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": "CalicoIsUp",
        "message": "Calico is running on this node",
        "lastHeartbeatTime": "2026-08-22T13:30:00Z",
        "lastTransitionTime": "2026-08-22T13:30:00Z",
    }
    assert condition.attempt() == 0
    assert [verb for verb, _ in kube.calls].count("patch") == 1


def told(kube: FakeKube) -> dict[str, tuple[str, str]]:
    conditions = kube.api.get(kube._kind(KubeNode), "", "n1")["status"]["conditions"]
    return {one["type"]: (one["status"], one["reason"]) for one in conditions}


def test_a_node_that_was_registered_anew_is_told_again(
    condition: NodeCondition, kube: FakeKube
) -> None:
    condition.look_seconds = 0.01
    thread = threading.Thread(target=condition.run)
    thread.start()
    try:
        until("told", lambda: told(kube).get("TortieReady") == ("True", "AgentReady"))
        fresh = [{"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}]
        kube.put(node(fresh, [("InternalIP", "192.0.2.1")]), KubeNode)
        until("told again", lambda: told(kube).get("TortieReady") == ("True", "AgentReady"))
        assert told(kube)["NetworkUnavailable"] == ("False", "CalicoIsUp")
    finally:
        condition.stop()
        thread.join(60)
    assert not thread.is_alive()


def test_what_goes_wrong_again_after_it_went_right_is_told_again(
    condition: NodeCondition, kube: FakeKube, log: RecordingLog
) -> None:
    for _ in range(2):
        kube.fail(Unavailable("away"), verb="get")
        assert condition.attempt() == RETRY_SECONDS
        assert condition.attempt() == 0
    assert len(log.of("node_condition_not_set")) == 2


def test_an_orderly_stop_keeps_new_pods_away_and_the_next_start_lets_them_come(
    condition: NodeCondition, kube: FakeKube, log: RecordingLog
) -> None:
    condition.leave()
    condition.run()
    assert told(kube)["NetworkUnavailable"] == ("True", "CalicoIsDown")
    assert told(kube)["TortieReady"] == ("False", "AgentStopped")
    assert NodeCondition(kube, "n1", log, lambda: NOW).attempt() == 0
    assert told(kube)["NetworkUnavailable"] == ("False", "CalicoIsUp")
    assert told(kube)["TortieReady"] == ("True", "AgentReady")


def test_a_stop_that_is_not_orderly_takes_nothing_back(
    condition: NodeCondition, kube: FakeKube
) -> None:
    condition.stop()
    condition.run()
    assert told(kube)["NetworkUnavailable"] == ("False", "CalicoIsUp")


def test_who_never_said_that_it_is_up_says_no_goodbye(
    condition: NodeCondition, kube: FakeKube
) -> None:
    kube.fail(Unavailable("away"), verb="get")
    condition.leave()
    condition.run()
    assert told(kube)["NetworkUnavailable"] == ("True", "NoRouteCreated")


def test_a_missing_right_is_logged_once_and_for_all(
    condition: NodeCondition, kube: FakeKube, log: RecordingLog
) -> None:
    kube.fail(Unauthorized("patch nodes n1: 403"), verb="patch")
    condition.leave()
    condition.run()
    assert [line["reason"] for line in log.of("node_condition_not_set")] == ["patch nodes n1: 403"]


@pytest.mark.parametrize(
    ("error", "delay"), [(Unavailable("x"), RETRY_SECONDS), (InvalidInput("x"), 0)]
)
def test_only_silence_is_tried_again(
    condition: NodeCondition,
    kube: FakeKube,
    log: RecordingLog,
    error: Exception,
    delay: float,
) -> None:
    kube.fail(error, verb="get", times=2)
    assert condition.attempt() == delay
    assert condition.attempt() == delay
    assert len(log.of("node_condition_not_set")) == 1


def test_a_node_that_is_not_there_yet_is_waited_for(kube: FakeKube, log: RecordingLog) -> None:
    condition = NodeCondition(kube, "n2", log, lambda: NOW)
    assert condition.attempt() == ABSENT_SECONDS
    thread = threading.Thread(target=condition.run)
    thread.start()
    condition.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_internal_ips(kube: FakeKube) -> None:
    assert [str(one) for one in internal_ips(kube, "n1")] == ["192.0.2.1"]
    kube.put(node([], [("ExternalIP", "192.0.2.1")]), KubeNode)
    with pytest.raises(Unavailable, match="no InternalIP"):
        internal_ips(kube, "n1")
    with pytest.raises(Unavailable, match="no Node n2"):
        internal_ips(kube, "n2")
    kube.put(node([], [("InternalIP", "n1.example")]), KubeNode)
    with pytest.raises(Unavailable, match=r"n1\.example"):
        internal_ips(kube, "n1")


def config_map(name: str, configuration: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "kube-system"}
    return {"metadata": meta, "data": {"ClusterConfiguration": configuration}}


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ("networking: {podSubnet: 10.244.0.0/16}", "10.244.0.0/16"),
        ("networking: {serviceSubnet: 10.96.0.0/12}", ""),
        ("networking: 7", ""),
        ("[", ""),
        ("", ""),
    ],
)
def test_kubeadms_configuration(kube: FakeKube, configuration: str, expected: str) -> None:
    kube.put(config_map("kubeadm-config", configuration), ConfigMap)
    assert cluster_facts(kube) == ClusterFacts(("kubeadm",), expected)


def test_rancher_and_nobody(kube: FakeKube) -> None:
    assert cluster_facts(kube) == ClusterFacts()
    kube.put(config_map("full-cluster-state", ""), ConfigMap)
    assert cluster_facts(kube) == ClusterFacts(("rancher",))


def test_a_view_of_a_node_without_status() -> None:
    assert NodeView.model_validate({"status": None}).status.conditions == ()
