"""Leases of coordination.k8s.io/v1. Unlike other views they are written back whole, with whatever
their metadata has: labels and annotations are somebody's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import ConfigDict

from libtortie.kube.objects import Api, KubeObject, Meta, View


class WholeMeta(Meta):
    """`metadata` with every field that was sent."""

    model_config = ConfigDict(extra="allow")


class LeaseSpec(View):
    """`Lease.spec`."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(KubeObject):
    """Who holds something, and for how long without a sign of life."""

    api: ClassVar[Api] = Api("coordination.k8s.io", "v1", "leases", "Lease", True)
    metadata: WholeMeta = WholeMeta()
    spec: LeaseSpec = LeaseSpec()

    def kept(self, version: str) -> dict[str, Any]:
        """`metadata` for an update of what was read at a resourceVersion."""
        meta: dict[str, Any] = self.metadata.model_dump(by_alias=True, exclude_unset=True)
        return {**meta, "resourceVersion": version}


def micro_time(time: datetime) -> str:
    """Kubernetes' MicroTime: RFC 3339 in UTC with six digits of a second, or it is refused."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
