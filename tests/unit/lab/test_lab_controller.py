"""KubeVirt's plan carried out while the API fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from lab import world as w
from lab.controller import Controller
from lab.hypervisor import Guests
from lab.objects import LabMigration, LabVMI
from libtortie.errors import Unavailable
from libtortie.kube.client import HttpKubeClient
from tests.fakes.lab_world import GUEST, REPORT, job, launcher, running, vmi


@dataclass
class FailingClient:
    """Takes patches; fails the one whose number (from 1) is `fails`."""

    fails: int = 0
    patched: list[tuple[type, dict[str, Any]]] = field(default_factory=list)
    asked: int = 0

    def patch(
        self, model: type, name: str, namespace: str, body: dict[str, Any], *, subresource: str
    ) -> None:
        self.asked += 1
        if self.asked == self.fails:
            raise Unavailable(f"patch {name}")
        self.patched.append((model, body))


class Looker(Controller):
    """A controller that sees a world of ours."""

    def __init__(self, client: FailingClient, seen: w.World) -> None:
        super().__init__(cast(HttpKubeClient, client), cast(Guests, None), lambda _: None)
        self._seen = seen

    def _world(self) -> w.World:
        return self._seen


MOVING = {"migrationUid": "job-1", "sourcePod": "pod-1", "targetNode": "node2"}
ARRIVED = running(
    vmi(migrationState=MOVING, activePods={"pod-1": "node1", "pod-2": "node2"}),
    job("Running"),
    launcher("pod-2", "node2", job=job()),
    guests={"vmi-uid": w.GuestView("pod-2", GUEST.mac, GUEST.addresses, moved={"job-1": REPORT})},
)
"""The guest of a migration has just arrived on the target."""


def told(client: FailingClient) -> tuple[bool, bool]:
    """Whether the instance is said to be on the target, and the migration to be over."""
    statuses = [(model, body.get("status", {})) for model, body in client.patched]
    return (
        any(model is LabVMI and status.get("nodeName") == "node2" for model, status in statuses),
        any(model is LabMigration and status.get("phase") for model, status in statuses),
    )


def test_a_look_that_meets_no_failure_is_done() -> None:
    client = FailingClient()
    assert Looker(client, ARRIVED).act()
    assert told(client) == (True, True)


@pytest.mark.parametrize("fails", range(1, 20))
def test_a_migration_is_over_only_once_its_instance_says_where_the_guest_is(fails: int) -> None:
    """Or nobody would ever say it: a migration that is over is looked at no more."""
    client = FailingClient(fails)
    done = Looker(client, ARRIVED).act()
    assert done is (client.asked < fails)
    moved, over = told(client)
    assert moved or not over
