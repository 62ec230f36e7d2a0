"""A pod's sandbox as a kubelet sees it, and what the pod needs next. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from lab import names
from lab.cni_runtime import Attachment, CniError
from lab.objects import LabPod
from lab.tools import LabError


class Step(Enum):
    """What a pod needs next."""

    NOTHING = auto()
    SET_UP = auto()
    REPORT = auto()
    """It runs, and the API does not say so yet."""
    REPLACE = auto()
    """Its sandbox has died: another one, and DEL for the dead one afterwards."""
    FAIL = auto()
    """Its sandbox has died, and the pod must not be started again."""
    TEAR_DOWN = auto()
    FORGET = auto()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a kubelet made for a pod."""

    namespace: str
    pod: str
    uid: str
    container_id: str
    netns: str
    addresses: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether ADD succeeded."""
        return bool(self.addresses)

    def attachment(self, present: bool) -> Attachment:
        """The CNI view of it; `present`: its namespace still exists."""
        return Attachment(
            container_id=self.container_id,
            netns=str(names.netns_path(self.netns)) if present else "",
            args=(
                ("IgnoreUnknown", "1"),
                ("K8S_POD_NAMESPACE", self.namespace),
                ("K8S_POD_NAME", self.pod),
                ("K8S_POD_INFRA_CONTAINER_ID", self.container_id),
                ("K8S_POD_UID", self.uid),
            ),
        )


def decide(pod: LabPod | None, sandbox: Sandbox | None, present: bool = True) -> Step:
    """What to do for a pod as the API shows it (None: it is gone).

    A sandbox that is not ready is the rest of an ADD that failed: it goes before the next try.
    `present` says whether the sandbox's namespace still exists.
    """
    over = pod is None or pod.metadata.deleting or pod.finished
    if sandbox is None or pod is None:
        if sandbox is not None:
            return Step.TEAR_DOWN
        if over:
            return Step.FORGET if pod is not None and pod.metadata.deleting else Step.NOTHING
        return Step.SET_UP
    if over or not sandbox.ready:
        return Step.TEAR_DOWN
    if not present:
        return Step.FAIL if pod.spec.restart_policy == "Never" else Step.REPLACE
    return Step.NOTHING if pod.status.phase == "Running" else Step.REPORT


def running_status(pod: LabPod, sandbox: Sandbox, node_address: str) -> dict[str, Any]:
    """The status of a pod whose containers run; no guest is ever paused, so all gates are open."""
    kinds = (
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "Ready",
        *(gate.condition_type for gate in pod.spec.readiness_gates),
    )
    return {
        "phase": "Running",
        "reason": None,
        "message": None,
        "hostIP": node_address,
        "podIP": sandbox.addresses[0] if sandbox.addresses else "",
        "podIPs": [{"ip": address} for address in sandbox.addresses],
        "conditions": [{"type": kind, "status": "True"} for kind in kinds],
        "containerStatuses": [
            {
                "name": container.name,
                "ready": True,
                "started": True,
                "restartCount": 0,
                "containerID": f"lab://{sandbox.container_id}",
                "state": {"running": {}},
            }
            for container in pod.spec.containers
        ],
    }


def refused_status(error: LabError) -> dict[str, Any]:
    """The status of a pod whose sandbox was refused, in a kubelet's words."""
    words = f'plugin type="{error.plugin}" failed (add): ' if isinstance(error, CniError) else ""
    detail = error.message if isinstance(error, CniError) else str(error)
    if isinstance(error, CniError) and error.details:
        detail = f"{detail}: {error.details}"
    message = f"Failed to create pod sandbox: {words}{detail}"
    condition = {
        "type": "PodReadyToStartContainers",
        "status": "False",
        "reason": "FailedCreatePodSandBox",
        "message": message,
    }
    return {
        "phase": "Pending",
        "reason": "FailedCreatePodSandBox",
        "message": message,
        "conditions": [{"type": "PodScheduled", "status": "True"}, condition],
    }


def failed_status() -> dict[str, Any]:
    """The status of a pod that ended with its sandbox."""
    return {
        "phase": "Failed",
        "message": "The pod's sandbox was killed",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "PodFailed"},
        ],
    }


def ending_s(pod: LabPod | None) -> float:
    """How long a pod's containers take to end, in seconds, of the time its deletion grants them."""
    if pod is None or not pod.metadata.deleting or pod.finished:
        return 0.0
    granted = float(pod.metadata.deletion_grace_period_seconds)
    return min(granted, names.linger_s(pod.metadata.annotations))
