"""A cluster's objects, read with the user's credentials, for a preflight. Never writes.

Kinds are read at the same time. What may not be read, or is not served, is told and leaves the
rest; without VMIs and nodes there is nothing to judge.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from libtortie.errors import Unauthorized
from libtortie.kube.migrations import Migration, Object
from tortiectl.kubevirt.access import Access
from tortiectl.kubevirt.objects import (
    ANNOTATION_BRIDGE,
    HANDLER,
    LABEL_ROLE,
    LAUNCHER,
    VM,
    VMI,
    Claim,
    KubeVirt,
    Node,
    PersistentVolume,
    Pod,
)
from tortiectl.kubevirt.reading import Gap, Listed, Unreadable, absent, read_list
from tortiectl.kubevirt.settings import settings_of
from tortiectl.preflight.read_network import NetworkReading
from tortiectl.preflight.read_services import ServiceReading
from tortiectl.preflight.world import Cluster

T = TypeVar("T", bound=Object)
THREADS = 4
_NEEDED = (VMI, VM, Migration, Claim, Node, Pod)


@dataclass
class _Reading:
    """What was read, and what was not."""

    access: Access
    holes: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def take(self, model: type[T], listed: Listed[T]) -> dict[str, T]:
        """A kind's objects by `namespace/name`."""
        self.unreadable += listed.unreadable
        if listed.gap is Gap.NOT_SERVED:
            if model.api.group == VMI.api.group:
                self.missing.append(f"{model.api.plural}.{model.api.group}")
        elif listed.gap is Gap.FORBIDDEN:
            (self.holes if model in _NEEDED else self.gaps).append(listed.reason)
        return {one.id: one for one in listed.objects}

    def only(self, listed: Listed[T]) -> T | None:
        """The one object of a kind; what may not be seen is told."""
        if listed.gap is Gap.FORBIDDEN:
            self.gaps.append(listed.reason)
        return next(iter(listed.objects), None)


def read_cluster(access: Access, namespace: str = "", conflist: str = "") -> Cluster:
    """The cluster, or what concerns the VMs of a namespace. Raises `NotFound` without KubeVirt,
    `Unauthorized` when VMIs or nodes may not be read, `Unavailable`."""
    reading, objects = _Reading(access), access.objects
    services = ServiceReading(objects, access.client)
    network = NetworkReading(lambda: access.connection.store, objects, access.client)
    with ThreadPoolExecutor(THREADS) as pool:
        vmis = pool.submit(read_list, objects, VMI, namespace)
        pods = pool.submit(read_list, objects, Pod, label_selector=f"{LABEL_ROLE}={LAUNCHER}")
        claims = pool.submit(read_list, objects, Claim, namespace)
        moves = pool.submit(read_list, objects, Migration, namespace)
        hosts = pool.submit(read_list, objects, Node)
        disks = pool.submit(read_list, objects, PersistentVolume)
        kubevirts = pool.submit(read_list, objects, KubeVirt)
        told = pool.submit(network.read, conflist)
        rules, renewals = pool.submit(services.rules), pool.submit(services.renewals)
        budgets = pool.submit(services.budgets, namespace)
        quotas = pool.submit(services.quotas, namespace)
        allowed = pool.submit(services.may_migrate, namespace)
        found_vmis = vmis.result()
        _require(access, found_vmis)
        vms = pool.submit(_vms, access, found_vmis.objects, namespace)
        _require(access, hosts.result())
        kubevirt = reading.only(kubevirts.result())
        place = kubevirt.metadata.namespace if kubevirt is not None else "kubevirt"
        certificates = pool.submit(services.certificates, place)
        settings = settings_of(kubevirt)
        handlers = pool.submit(_handlers, access, place, settings.migration_network)
        return Cluster(
            vmis=reading.take(VMI, found_vmis),
            vms=reading.take(VM, vms.result()),
            migrations=tuple(reading.take(Migration, moves.result()).values()),
            launchers=tuple(reading.take(Pod, pods.result()).values()),
            nodes=reading.take(Node, hosts.result()),
            claims=_unless_hidden(claims.result(), reading.take(Claim, claims.result())),
            volumes=reading.take(PersistentVolume, disks.result()),
            settings=settings,
            network=told.result(),
            certificates=certificates.result(),
            renewals=renewals.result(),
            rules=rules.result(),
            budgets=budgets.result(),
            quotas=quotas.result(),
            handlers=tuple(reading.take(Pod, handlers.result()).values()),
            missing_kinds=tuple(reading.missing),
            may_migrate=allowed.result(),
            unreadable=(*reading.unreadable, *network.unreadable),
            holes=(*reading.holes, *network.holes),
            gaps=(*reading.gaps, *network.gaps, *services.gaps),
            now=datetime.now(UTC),
        )


def _vms(access: Access, vmis: tuple[VMI, ...], namespace: str) -> Listed[VM]:
    """VMs, which only say where an annotation went that a VMI lacks: else they are not read."""
    if all(ANNOTATION_BRIDGE in vmi.metadata.annotations for vmi in vmis):
        return Listed()
    return read_list(access.objects, VM, namespace)


def _handlers(access: Access, namespace: str, network: str) -> Listed[Pod]:
    """virt-handler's pods, which only say who is on a network of migrations' own."""
    if not network:
        return Listed()
    return read_list(access.objects, Pod, namespace, label_selector=f"{LABEL_ROLE}={HANDLER}")


def _unless_hidden(listed: Listed[T], found: dict[str, T]) -> dict[str, T] | None:
    return found if listed.gap is Gap.NONE else None


def _require(access: Access, listed: Listed[T]) -> None:
    if listed.gap is Gap.NOT_SERVED:
        raise absent(access.objects)
    if listed.gap is Gap.FORBIDDEN:
        raise Unauthorized(listed.reason)
