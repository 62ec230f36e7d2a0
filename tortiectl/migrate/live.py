"""What is told beside a migration's phases: figures of its source, and what the network does."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from ipam.vm_handles import read_vm_handles
from libtortie.errors import NotFound, TortieError, first_line
from libtortie.model.keys import Kind, ResourceKey
from libtortie.model.resources import FelixConfiguration
from libtortie.model.times import parse_duration
from libtortie.wording import visible
from tortiectl.downtime.amounts import rate, size
from tortiectl.downtime.domjobinfo import parse_domjobinfo
from tortiectl.downtime.fetch import CONTAINER, SOCKET
from tortiectl.downtime.job import Job
from tortiectl.kubevirt.access import Access
from tortiectl.kubevirt.launchers import active_launcher
from tortiectl.kubevirt.objects import LABEL_ROLE, LAUNCHER, VMI, Pod
from tortiectl.kubevirt.overview import by_vm
from tortiectl.kubevirt.reading import read_list

DEFAULT_CONVERGENCE = 30.0
EVERY = 2.0
"""Seconds between two lines of figures."""
AGREE = 10.0
"""Seconds in which an agent has swapped the owner in IPAM, if it can."""

Say = Callable[[str], None]


class Figures:
    """Bytes and dirty rate from the source's libvirt, as long as it can be asked."""

    def __init__(self, access: Access, vmi: VMI, say: Say) -> None:
        self._access, self._vmi, self._say = access, vmi, say
        self._next, self._off = 0.0, False

    def tell(self) -> None:
        """One line, at most every two seconds; a failure is told once, and ends it."""
        if self._off or time.monotonic() < self._next:
            return
        try:
            job = self._ask()
        except TortieError as error:
            self._off = True
            click.echo(visible(f"no figures: {first_line(error)}"), err=True)
            return
        self._next = time.monotonic() + EVERY
        parts = [
            f"{size(job.data_processed)} sent" if job.data_processed is not None else "",
            f"{size(job.data_remaining)} left" if job.data_remaining is not None else "",
            f"dirty rate {rate(job.dirty_rate)}" if job.dirty_rate is not None else "",
        ]
        self._say(f"{self._vmi.id}: {', '.join(filter(None, parts))}")

    def _ask(self) -> Job:
        meta, access = self._vmi.metadata, self._access
        selector = f"{LABEL_ROLE}={LAUNCHER}"
        pods = read_list(access.objects, Pod, meta.namespace, label_selector=selector)
        pod = active_launcher(self._vmi, pods.objects).metadata.name
        command = ["virsh", "-c", SOCKET, "domjobinfo", f"{meta.namespace}_{meta.name}"]
        return parse_domjobinfo(access.execute(meta.namespace, pod, CONTAINER, command))


def settled(access: Access, vmi: VMI, target: str, say: Say) -> None:
    """What the network does afterwards: the owner in IPAM, and when the route is plain again."""
    try:
        store = access.connection.store
        ends = time.monotonic() + AGREE
        key = vmi.metadata.namespace, vmi.metadata.name
        while True:
            handle = by_vm(read_vm_handles(store)[0]).get(key)
            if handle is None:
                return  # not of this IPAM
            if all(piece.owners.active.get("node") == target for piece in handle.pieces):
                say(f"{vmi.id}: IPAM agrees: its addresses are {target}'s")
                break
            if time.monotonic() >= ends:
                say(f"{vmi.id}: IPAM does not have {target} as owner yet: see the agent there")
                break
            time.sleep(0.2)
        seconds = _convergence(access)
    except TortieError as error:
        click.echo(visible(f"the network's part: {first_line(error)}"), err=True)
        return
    say(f"{vmi.id}: its route is raised, and is plain again {seconds:g} s after the cut-over")


def _convergence(access: Access) -> float:
    try:
        value = access.connection.store.get(ResourceKey(Kind.FELIX_CONFIGURATION, "default")).value
    except NotFound:
        return DEFAULT_CONVERGENCE
    text = (
        value.spec.live_migration_route_convergence_time
        if isinstance(value, FelixConfiguration)
        else ""
    )
    try:
        return parse_duration(text) if text else DEFAULT_CONVERGENCE
    except ValueError:
        return DEFAULT_CONVERGENCE
