"""What the Kubernetes API knows about this node and its cluster, and what we tell it.

The API is asked, never needed: where it forbids something or does not know it, that is an answer.
Only the silent API (`Unavailable`) is passed on, for another attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import yaml
from pydantic import Field

from libtortie import go_yaml
from libtortie.errors import NotFound, TortieError, Unavailable, first_line
from libtortie.jsonlog import Log
from libtortie.kube.objects import Api, KubeNode, KubeObject, NodeStatus
from libtortie.kube.port import KubeClient, KubeReader, PatchType
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import plain_address
from libtortie.model.times import rfc3339

CONDITION = "NetworkUnavailable"
UP = "CalicoIsUp"
UP_MESSAGE = "Calico is running on this node"
DOWN = "CalicoIsDown"
DOWN_MESSAGE = "Calico is shutting down on this node"
READY = "TortieReady"
"""Our own condition, for whoever wants to tell our agent from Calico's."""
RETRY_SECONDS = 5.0
ABSENT_SECONDS = 30.0
LOOK_SECONDS = 60.0
"""Between two looks at what was said: a Node that was deleted and registered anew lacks it."""
_KUBE_SYSTEM = "kube-system"


class NodeView(KubeObject):
    """A core Node with its status."""

    api: ClassVar[Api] = KubeNode.api
    status: NodeStatus = NodeStatus()


class ConfigMap(KubeObject):
    """A ConfigMap."""

    api: ClassVar[Api] = Api("", "v1", "configmaps", "ConfigMap", True)
    data: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What installers left behind: types for ClusterInformation, kubeadm's pod subnets."""

    types: tuple[str, ...] = ()
    pod_cidrs: str = ""


def internal_ips(kube: KubeReader, name: str) -> tuple[IPAddress, ...]:
    """InternalIPs of a Node. Raises `Unavailable` when it is not there yet, and as the client."""
    try:
        node = kube.get(NodeView, name)
    except NotFound as error:
        raise Unavailable(f"ip: the API has no Node {name} yet") from error
    texts = [one.address for one in node.status.addresses if one.type == "InternalIP"]
    found = []
    for text in texts:
        try:
            found.append(plain_address(text))
        except ValueError as error:
            raise Unavailable(f"ip: Node {name} has InternalIP {text!r}") from error
    if not found:
        raise Unavailable(f"ip: Node {name} has no InternalIP yet")
    return tuple(found)


def cluster_facts(kube: KubeReader) -> ClusterFacts:
    """Read the installers' ConfigMaps. Raises `Unavailable` and `Unauthorized`."""
    types = []
    kubeadm = _config_map(kube, "kubeadm-config")
    if kubeadm is not None:
        types.append("kubeadm")
    if _config_map(kube, "full-cluster-state") is not None:
        types.append("rancher")
    return ClusterFacts(tuple(types), _pod_subnet(kubeadm) if kubeadm is not None else "")


def _config_map(kube: KubeReader, name: str) -> ConfigMap | None:
    try:
        return kube.get(ConfigMap, name, _KUBE_SYSTEM)
    except NotFound:
        return None


def _pod_subnet(kubeadm: ConfigMap) -> str:
    try:
        body = go_yaml.load(kubeadm.data.get("ClusterConfiguration", ""))
    except yaml.YAMLError:
        return ""
    networking = body.get("networking") if isinstance(body, dict) else None
    subnet = networking.get("podSubnet") if isinstance(networking, dict) else None
    return subnet if isinstance(subnet, str) else ""


def conditions(now: datetime, *, up: bool) -> dict[str, Any]:
    """The status that lets the scheduler use the node, or, at an orderly stop, not."""
    network = (
        (CONDITION, "False", UP, UP_MESSAGE) if up else (CONDITION, "True", DOWN, DOWN_MESSAGE)
    )
    ready = (READY, "True", "AgentReady", "CNI is served, policy and routes are in force")
    stopped = (READY, "False", "AgentStopped", "tortie-node was told to stop")
    told = [_condition(*network, now), _condition(*(ready if up else stopped), now)]
    return {"status": {"conditions": told}}


def _condition(kind: str, status: str, reason: str, message: str, now: datetime) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": rfc3339(now),
    }


def is_up(node: NodeView) -> bool:
    """Whether the Node says already what we would say."""
    found = {one.type: (one.status, one.reason) for one in node.status.conditions}
    return found.get(CONDITION) == ("False", UP) and found.get(READY) == ("True", "AgentReady")


@dataclass(slots=True)
class NodeCondition:
    """Tells the API that this node has a network, and at an orderly stop that it has none for new
    pods; a thread's body and its stop.

    Who runs keeps the network while the agent is away: the condition keeps others from coming. An
    agent that fails says nothing, as it is started again at once.
    """

    kube: KubeClient
    name: str
    log: Log
    now: Callable[[], datetime]
    look_seconds: float = LOOK_SECONDS
    _stop: threading.Event = field(default_factory=threading.Event)
    _leaves: bool = False
    _said: bool = False
    _complaint: str = ""

    def run(self) -> None:
        """See that it is said, until it is time to stop; an orderly stop is said too."""
        while not self._stop.wait(self.attempt() or self.look_seconds):
            pass
        if self._leaves and self._said:
            self._tell(up=False)

    def leave(self) -> None:
        """Make `run` say that the node takes no more pods, and return."""
        self._leaves = True
        self._stop.set()

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    def attempt(self) -> float:
        """Say that the node is up, if the Node does not; seconds until the next attempt, 0 where
        none is needed or would be of use soon."""
        return self._tell(up=True)

    def _tell(self, *, up: bool) -> float:
        try:
            if not up or not is_up(self.kube.get(NodeView, self.name)):
                self.kube.patch(
                    NodeView,
                    self.name,
                    "",
                    conditions(self.now(), up=up),
                    patch_type=PatchType.STRATEGIC,
                    subresource="status",
                )
                reason = UP if up else DOWN
                self.log.info("node_condition_set", condition=CONDITION, reason=reason)
            self._said, self._complaint = up, ""
        except NotFound as error:
            return self._complain(error, ABSENT_SECONDS)
        except Unavailable as error:
            return self._complain(error, RETRY_SECONDS)
        except TortieError as error:
            return self._complain(error, 0.0)
        return 0.0

    def _complain(self, error: TortieError, delay: float) -> float:
        """Once for each kind of trouble."""
        if type(error).__name__ != self._complaint:
            self._complaint = type(error).__name__
            self.log.warning(
                "node_condition_not_set", reason=first_line(error), retry_seconds=delay
            )
        return delay
