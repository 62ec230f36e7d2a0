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

from felix_shim.jsonlog import Log
from libtortie import go_yaml
from libtortie.errors import NotFound, TortieError, Unauthorized, Unavailable, first_line
from libtortie.kube.objects import Api, KubeNode, KubeObject, NodeStatus
from libtortie.kube.port import KubeClient, KubeReader, PatchType
from libtortie.model.ipam import IPAddress
from libtortie.model.plain_ip import plain_address
from libtortie.model.times import rfc3339

CONDITION = "NetworkUnavailable"
UP = "CalicoIsUp"
UP_MESSAGE = "Calico is running on this node"
RETRY_SECONDS = 5.0
ABSENT_SECONDS = 30.0
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


def condition_patch(now: datetime) -> dict[str, Any]:
    """The status that lets the scheduler use the node."""
    condition = {
        "type": CONDITION,
        "status": "False",
        "reason": UP,
        "message": UP_MESSAGE,
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": rfc3339(now),
    }
    return {"status": {"conditions": [condition]}}


def is_up(node: NodeView) -> bool:
    """Whether the Node says already what we would say."""
    return any(
        one.type == CONDITION and (one.status, one.reason) == ("False", UP)
        for one in node.status.conditions
    )


@dataclass(slots=True)
class NodeCondition:
    """Tells the API once that this node has a network; a thread's body and its stop.

    A stop of the agent takes nothing back: workloads keep their network while it is away.
    """

    kube: KubeClient
    name: str
    log: Log
    now: Callable[[], datetime]
    _stop: threading.Event = field(default_factory=threading.Event)
    _complaint: str = ""

    def run(self) -> None:
        """Until it is said, forbidden, or time to stop."""
        while (delay := self.attempt()) and not self._stop.wait(delay):
            pass

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    def attempt(self) -> float:
        """One attempt; seconds until the next, 0 when there is no need for one."""
        try:
            if not is_up(self.kube.get(NodeView, self.name)):
                self.kube.patch(
                    NodeView,
                    self.name,
                    "",
                    condition_patch(self.now()),
                    patch_type=PatchType.STRATEGIC,
                    subresource="status",
                )
                self.log.info("node_condition_set", condition=CONDITION, reason=UP)
        except NotFound as error:
            return self._complain(error, ABSENT_SECONDS)
        except Unavailable as error:
            return self._complain(error, RETRY_SECONDS)
        except Unauthorized as error:
            return self._complain(error, 0.0)
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
