"""Runs KubeVirt's plan against the API: watches in, actions out, one thread that decides.

The loop does nothing before every kind has been listed once (what it has not seen yet is unknown,
not absent), plans again after each change, once a second for what time alone brings, and half a
second after an action that failed. A lost API leaves guests running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Generic, TypeVar

from lab import kubevirt, names, world
from lab.guest_kind import Wishes
from lab.hypervisor import Guest, Guests, Move
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from lab.tools import LabError
from libtortie.errors import AlreadyExists, Conflict, NotFound, TortieError, first_line
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.follow import follow
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import Applied, Gone
from tortiectl.kubevirt.objects import Claim, Node

T = TypeVar("T", bound=KubeObject)
RETRY_S = 0.5
TICK_S = 1.0
DEFAULT_COPY_S = 0.3
"""Between "the migration runs" and the switch-over: a small guest's memory takes about as long."""
DEFAULT_BLACKOUT_MS = 50.0


class Mirror(Generic[T]):
    """Every object of one kind, kept current by a thread."""

    def __init__(self, client: HttpKubeClient, model: type[T], changed: Callable[[], None]) -> None:
        self._client = client
        self._model = model
        self._changed = changed
        self._objects: dict[world.Name, T] = {}
        self._listing: set[world.Name] = set()
        self._lock = threading.Lock()
        self.synced = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Follow the kind until `stop`."""
        for event in follow(self._client, self._model, stop=stop):
            with self._lock:
                if isinstance(event, Applied):
                    name = _name(event.object)
                    self._objects[name] = event.object
                    self._listing.add(name)
                elif isinstance(event, Gone):
                    self._objects.pop(_name(event.object), None)
                else:
                    # What a fresh list did not name has gone meanwhile.
                    for name in set(self._objects) - self._listing:
                        del self._objects[name]
                    self._listing = set(self._objects)
                    self.synced.set()
            self._changed()

    def objects(self) -> dict[world.Name, T]:
        """A copy of the current state."""
        with self._lock:
            return dict(self._objects)


def _name(found: KubeObject) -> world.Name:
    return found.metadata.namespace, found.metadata.name


class Controller:
    """KubeVirt for the whole lab."""

    def __init__(
        self,
        client: HttpKubeClient,
        guests: Guests,
        log: Callable[[str], None],
    ) -> None:
        self._client = client
        self._guests = guests
        self._log = log
        self._wake = threading.Event()
        self._vms = Mirror(client, LabVM, self._wake.set)
        self._vmis = Mirror(client, LabVMI, self._wake.set)
        self._migrations = Mirror(client, LabMigration, self._wake.set)
        self._pods = Mirror(client, LabPod, self._wake.set)
        self._nodes = Mirror(client, Node, self._wake.set)
        self._claims = Mirror(client, Claim, self._wake.set)

    def poke(self) -> None:
        """Something outside of the API changed: plan again."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Plan and act until `stop`."""
        mirrors = (
            self._vms,
            self._vmis,
            self._migrations,
            self._pods,
            self._nodes,
            self._claims,
        )
        threads = [threading.Thread(target=mirror.run, args=(stop,)) for mirror in mirrors]
        for thread in threads:
            thread.start()
        planned = time.monotonic()
        while not stop.is_set():
            news = self._wake.wait(0.2)
            if not all(mirror.synced.is_set() for mirror in mirrors):
                continue
            if not news and time.monotonic() - planned < TICK_S:
                continue
            self._wake.clear()
            planned = time.monotonic()
            if not self.act():
                stop.wait(RETRY_S)
                self._wake.set()
        for thread in threads:
            thread.join()

    def act(self) -> bool:
        """One look and what follows from it; False when something has to be tried again soon."""
        outcomes = [self._act_all(steps) for steps in kubevirt.plan(self._world())]
        return all(outcomes)

    def _world(self) -> world.World:
        self._guests.tend()
        return world.World(
            vms=self._vms.objects(),
            vmis=self._vmis.objects(),
            migrations=self._migrations.objects(),
            pods=self._pods.objects(),
            nodes={name: node for (_, name), node in self._nodes.objects().items()},
            claims=self._claims.objects(),
            guests={guest.vmi_uid: view_of(guest) for guest in self._guests.all()},
            now=datetime.now(UTC),
        )

    def _act_all(self, actions: Iterable[world.Action]) -> bool:
        """Perform actions in order; False, without the rest, when one must be tried again."""
        for action in actions:
            try:
                self._act(action)
            except (AlreadyExists, NotFound, Conflict):
                # The view was stale: the event that says so is on its way.
                continue
            except (TortieError, OSError) as error:
                self._log(f"{type(action).__name__}: {first_line(error)}")
                return False
        return True

    def _act(self, action: world.Action) -> None:
        match action:
            case world.Create(model, body):
                self._client.create(model, body)
                self._log(f"created {body['kind']} {body['metadata']['name']}")
            case world.Remove(found):
                meta = found.metadata
                self._client.delete(type(found), meta.name, meta.namespace, uid=meta.uid)
            case world.Patch(found, body, status):
                meta = found.metadata
                self._client.patch(
                    type(found),
                    meta.name,
                    meta.namespace,
                    body,
                    subresource="status" if status else "",
                )
            case world.StartGuest(vmi, pod):
                self._guests.start(vmi, pod)
                self._wake.set()
            case world.StopGuest(uid):
                self._guests.stop(uid)
            case world.PrepareTarget(vmi, pod):
                self._guests.prepare_target(vmi, pod)
                self._wake.set()
            case world.CutOver(vmi, migration, target):
                self._cut_over(vmi, migration, target)
            case world.AbortMove(vmi_uid, migration_uid, why):
                self._guests.abort(vmi_uid, migration_uid, why)

    def _cut_over(self, vmi: LabVMI, migration: LabMigration, target: LabPod) -> None:
        guest = self._guests.get(vmi.metadata.uid)
        if guest is None:
            raise LabError(f"vmi {vmi.metadata.name} has no guest")
        annotations = migration.metadata.annotations
        wishes = Wishes(
            blackout_ms=number(annotations, names.ANNOTATION_BLACKOUT, DEFAULT_BLACKOUT_MS),
            garp=annotations.get(names.ANNOTATION_GARP) == "true",
            silent=annotations.get(names.ANNOTATION_SILENT) == "true",
            hold=annotations.get(names.ANNOTATION_HOLD_MOVE, ""),
        )
        copy_s = number(annotations, names.ANNOTATION_COPY, DEFAULT_COPY_S)
        self._guests.cut_over(
            vmi.metadata.uid, Move(migration.metadata.uid, target.metadata.uid, wishes, copy_s)
        )


def view_of(guest: Guest) -> world.GuestView:
    """A guest as the plan sees it."""
    return world.GuestView(
        pod_uid=guest.pod_uid,
        mac=guest.interface.mac,
        addresses=guest.addresses,
        targets=frozenset(guest.targets),
        moving=frozenset(guest.moving),
        moved=dict(guest.moved),
        failed=dict(guest.failed),
    )


def number(annotations: Mapping[str, str], key: str, default: float) -> float:
    """The number an annotation asks for; nonsense is an error, not the default."""
    text = annotations.get(key, "")
    try:
        return float(text) if text else default
    except ValueError as error:
        raise LabError(f"annotation {key}: {text!r} is no number") from error
