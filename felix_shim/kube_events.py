"""The agent's Kubernetes Events: about a VM's pod and about the VM, of what the log tells anyway.

`hear` is a listener of the log: on whatever thread decides, it looks an Event up in a table
(`notices`) and passes it on. Never: wait, raise, or ask the API there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from felix_shim.model import Endpoint
from felix_shim.notices import Wording, wording
from libtortie.events import (
    EventSender,
    KubeEvent,
    Notice,
    Severity,
    Subject,
    instance,
    pod,
)
from libtortie.model.names import vm_of_handle

__all__ = ["CLOSED_REASON", "COMPONENT", "REASON", "KubeEvent", "NodeEvents", "subjects"]

COMPONENT = "tortie-node"
REASON = "LiveMigrationWarning"
CLOSED_REASON = "PolicyNotObeyed"

Subjects = tuple[Subject, ...]


def subjects(namespace: str, name: str, whose: Mapping[str, object]) -> Subjects:
    """The pod, and the VM if it is one's; `whose` has `pod_uid`, `vmi`, `vmi_uid`."""
    found = [pod(namespace, name, str(whose.get("pod_uid") or ""))] if name else []
    if whose.get("vmi"):
        found.append(instance(namespace, str(whose["vmi"]), str(whose.get("vmi_uid") or "")))
    return tuple(found)


@dataclass(slots=True)
class NodeEvents:
    """Safe from any thread; everything returns at once."""

    sender: EventSender
    _of: dict[object, Subjects] = field(default_factory=dict)
    _endpoints: dict[object, object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def warn(self, endpoint: Endpoint, text: str) -> None:
        """Tell of a migration's trouble."""
        self._tell(_of_endpoint(endpoint), Wording(REASON, text, Severity.WARNING))

    def closed(self, endpoint: Endpoint, text: str) -> None:
        """Tell of a policy that closes an endpoint."""
        self._tell(_of_endpoint(endpoint), Wording(CLOSED_REASON, text, Severity.WARNING))

    def hear(self, event: str, fields: Mapping[str, object]) -> None:
        """Tell of a decision, if it is one that operators ask about."""
        if event in ("endpoint_added", "endpoint_removed"):
            self._know(fields, gone=event == "endpoint_removed")
            return
        said = wording(event, fields)
        if said is not None:
            self._tell(self._about(fields), said)

    def _know(self, fields: Mapping[str, object], *, gone: bool) -> None:
        """Who an endpoint is: later lines name it alone."""
        endpoint, container = fields.get("endpoint"), fields.get("container_id")
        namespace, name = getattr(endpoint, "namespace", ""), getattr(endpoint, "pod", "")
        with self._lock:
            if gone:
                self._of.pop(endpoint, None)
                self._endpoints.pop(container, None)
            else:
                self._of[endpoint] = subjects(namespace, name, fields)
                self._endpoints[container] = endpoint

    def _about(self, fields: Mapping[str, object]) -> Subjects:
        with self._lock:
            endpoint = fields.get("endpoint") or self._endpoints.get(fields.get("container_id"))
            known = self._of.get(endpoint, ())
        if "command" in fields or "pod" in fields:  # a CNI call says itself whose it is
            namespace, name = str(fields.get("namespace", "")), str(fields.get("pod", ""))
            return subjects(namespace, name, fields)
        if known or "handle_id" not in fields:
            return known
        vm = vm_of_handle(str(fields["handle_id"]))
        return (instance(*vm),) if vm is not None else ()

    def _tell(self, about: Subjects, said: Wording) -> None:
        for one in about:
            self.sender.tell(Notice(one, said.reason, said.message, said.severity))


def _of_endpoint(endpoint: Endpoint) -> Subjects:
    return subjects(endpoint.id.namespace, endpoint.id.pod, endpoint.whose)
