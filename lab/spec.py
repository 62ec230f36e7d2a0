"""What the lab's KubeVirt and scheduler read of a `spec` that `tortiectl.kubevirt.spec` does not.

A field that neither has is handed on untouched from VM to VMI and means nothing to the lab.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from libtortie.kube.objects import View
from tortiectl.kubevirt.spec import Affinity, NodeAffinity, NodeTerm, VMISpec


class Preference(View):
    """One preferred term of a node affinity."""

    weight: int = 1
    preference: NodeTerm = NodeTerm()


class LabNodeAffinity(NodeAffinity):
    """`affinity.nodeAffinity` with its preferred part."""

    preferred: tuple[Preference, ...] = Field(
        default=(), alias="preferredDuringSchedulingIgnoredDuringExecution"
    )


class LabAffinity(Affinity):
    """`spec.affinity` of a pod, as the scheduler reads it."""

    node_affinity: LabNodeAffinity = LabNodeAffinity()


class LabVMISpec(VMISpec):
    """`VMI.spec`; `affinity_body` is what the launcher pod gets, whole."""

    affinity_body: dict[str, Any] = Field(default_factory=dict, alias="affinity")
    termination_grace_period_seconds: int = 30

    @property
    def pod_network(self) -> str:
        """Name of the network that is the pod's; the lab has no Multus to take its place."""
        return next((one.name for one in self.networks if one.pod is not None), "")
