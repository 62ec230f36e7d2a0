"""A cluster for the page: VMs with addresses, migrations, an IPAM; and who asks for pages of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from controllers.page.pages import Pages, Shelves, shelves_of
from controllers.page.problems import LastPass
from controllers.page.read import Source
from controllers.page.site import answer
from libtortie.datastore.port import Datastore
from libtortie.history import keep
from libtortie.kube.migrations import Migration
from libtortie.kube.objects import VirtualMachineInstance
from libtortie.model.history import Fact
from libtortie.serving import Answer, Asked
from tests.fakes.gc_world import V4, Town
from tests.fakes.ipam_world import START, vm_pod

Json = dict[str, Any]
WAIT = 60.0
"""Seconds that a test may wait for a reading; it ends with the reading."""


def vmi(name: str, *, node: str = "n1", namespace: str = "shop", **status: Any) -> Json:
    """A VMI as the API has it."""
    return {
        "metadata": {"namespace": namespace, "name": name, "uid": f"vmi-{name}"},
        "status": {"phase": "Running", "nodeName": node, **status},
    }


def job(name: str, vm: str, phase: str = "Running", **state: Any) -> Json:
    """A migration as the API has it: from n1 to n2, of two minutes after midnight."""
    ended = {"endTimestamp": "2026-01-01T00:02:09Z"} if phase in ("Succeeded", "Failed") else {}
    state = {"sourceNode": "n1", "targetNode": "n2", "migrationUid": f"job-{name}"} | ended | state
    times = [
        {"phase": one, "phaseTransitionTimestamp": f"2026-01-01T00:02:0{second}Z"}
        for second, one in enumerate(dict.fromkeys(("Scheduling", phase)), 1)
    ]
    return {
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": f"job-{name}",
            "creationTimestamp": "2026-01-01T00:02:00Z",
        },
        "spec": {"vmiName": vm},
        "status": {
            "phase": phase,
            "migrationState": state,
            "phaseTransitionTimestamps": times,
        },
    }


def own(town: Town, vm: str, node: str = "n1") -> str:
    """A VM's launcher gets an address for it; the address."""
    handle = f"k8s-pod-network.vmi.shop.{vm}"
    owner = vm_pod(f"virt-launcher-{vm}-x", vm=vm, node=node)
    (got,) = town.world.client(node).claim_vm(handle, owner, V4)
    return str(got.address)


@dataclass
class PageSite:
    """Pages over a town in memory. Each reading is waited for to its end."""

    town: Town = field(default_factory=Town)
    passes: LastPass | None = None
    complaints: list[str] = field(default_factory=list)
    seconds: float = 1000.0
    store: Datastore | None = None

    def __post_init__(self) -> None:
        source = Source(self.store or self.town.world.store, self.town.kube, lambda: START)
        self.shelves: Shelves = shelves_of(
            source, self.complaints.append, monotonic=lambda: self.seconds, wait=WAIT
        )
        self.pages = Pages(self.shelves, self.passes, lambda: START)

    def vm(self, name: str, node: str = "n1", **status: Any) -> str:
        """A VM that runs; its address."""
        self.town.kube.put(vmi(name, node=node, **status), VirtualMachineInstance)
        return own(self.town, name, node)

    def job(self, name: str, vm: str, phase: str = "Running", **state: Any) -> None:
        """A migration, or how far it is now."""
        self.town.kube.put(job(name, vm, phase, **state), Migration)

    def recorded(self, *facts: Fact) -> None:
        """Agents have kept these facts."""
        keep(self.town.world.store, facts, "test")

    def later(self, seconds: float) -> None:
        """Time passes for what decides when to read anew."""
        self.seconds += seconds

    def ask(self, path: str, had: str = "", **query: str) -> Answer:
        """A request's answer; `had` are tags of what is there already."""
        return answer(self.pages, Asked(path, query, {"if-none-match": had} if had else {}))

    def html(self, path: str, **query: str) -> str:
        """A page as a browser gets it."""
        body = self.ask(path, **query).body
        assert isinstance(body, bytes)
        return body.decode()

    def json(self, path: str, **query: str) -> Json:
        """A page as a program gets it."""
        body = self.ask(path, format="json", **query).body
        assert isinstance(body, bytes)
        found = json.loads(body)
        assert isinstance(found, dict)
        return found


@contextmanager
def page_site(**options: Any) -> Iterator[PageSite]:
    """A site whose readers run."""
    site = PageSite(**options)
    with running(*(one.run for one in site.shelves.all())):
        try:
            yield site
        finally:
            for one in site.shelves.all():
                one.stop()


@contextmanager
def running(*bodies: Callable[[], None]) -> Iterator[None]:
    """Threads, which whoever uses them makes end."""
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
