"""What a kubelet decides for a pod and its sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab import names
from lab.cni_runtime import CniError
from lab.objects import LabPod
from lab.sandbox import (
    Sandbox,
    Step,
    decide,
    ending_s,
    failed_status,
    refused_status,
    running_status,
)
from lab.seed import pod_body
from tests.fakes.lab_world import deleting, launcher

READY = Sandbox("default", "p", "u", "c", "tlab-pod-p-u", ("10.65.0.2",))
HALF = replace(READY, addresses=())


@pytest.mark.parametrize(
    ("phase", "gone", "sandbox", "step"),
    [
        ("Pending", False, None, Step.SET_UP),
        ("Running", False, READY, Step.NOTHING),
        ("Pending", False, READY, Step.REPORT),
        ("Pending", False, HALF, Step.TEAR_DOWN),
        ("Succeeded", False, READY, Step.TEAR_DOWN),
        ("Succeeded", False, None, Step.NOTHING),
        ("Running", True, READY, Step.TEAR_DOWN),
        ("Running", True, None, Step.FORGET),
    ],
)
def test_kubelet_decides(phase: str, gone: bool, sandbox: Sandbox | None, step: Step) -> None:
    pod = launcher("pod-1", "node1", phase)
    assert decide(deleting(pod) if gone else pod, sandbox) is step


def test_kubelet_removes_the_sandbox_of_a_pod_that_is_gone() -> None:
    assert decide(None, READY) is Step.TEAR_DOWN
    assert decide(None, READY, present=False) is Step.TEAR_DOWN
    assert decide(None, None) is Step.NOTHING


def test_a_dead_sandbox_is_replaced_unless_the_pod_may_not_start_again() -> None:
    body = pod_body("p", "default", "node1") | {"status": {"phase": "Running"}}
    assert decide(LabPod.model_validate(body), READY, present=False) is Step.REPLACE
    assert decide(launcher("pod-1", "node1"), READY, present=False) is Step.FAIL
    assert decide(deleting(launcher("pod-1", "node1")), READY, present=False) is Step.TEAR_DOWN


def test_a_sandbox_tells_the_plugin_who_it_is() -> None:
    args = dict(READY.attachment(True).args)
    assert args["K8S_POD_NAME"] == "p"
    assert args["K8S_POD_UID"] == "u"
    assert args["K8S_POD_INFRA_CONTAINER_ID"] == READY.attachment(True).container_id == "c"
    assert READY.attachment(True).netns == "/run/netns/tlab-pod-p-u"
    assert READY.attachment(False).netns == ""


def test_containers_take_their_time_within_what_deletion_grants() -> None:
    pod = launcher("pod-1", "node1")
    slow = pod.model_copy(
        update={
            "metadata": pod.metadata.model_copy(
                update={"annotations": {names.ANNOTATION_LINGER: "20"}}
            )
        }
    )
    assert ending_s(slow) == 0.0
    assert ending_s(deleting(slow, deletion_grace_period_seconds=30)) == 20.0
    assert ending_s(deleting(slow, deletion_grace_period_seconds=5)) == 5.0
    assert ending_s(deleting(pod, deletion_grace_period_seconds=30)) == 0.0


def test_pod_status_in_a_kubelets_words() -> None:
    pod = launcher("pod-1", "node1")
    status = running_status(pod, READY, "172.31.0.11")
    assert status["podIPs"] == [{"ip": "10.65.0.2"}]
    assert [one["ready"] for one in status["containerStatuses"]] == [True]
    assert "kubevirt.io/virtual-machine-unpaused" in str(status["conditions"])
    refused = refused_status(CniError("tortie", 100, "no", "why"))
    assert refused["message"] == (
        'Failed to create pod sandbox: plugin type="tortie" failed (add): no: why'
    )
    assert refused["phase"] == "Pending"
    assert failed_status()["phase"] == "Failed"
