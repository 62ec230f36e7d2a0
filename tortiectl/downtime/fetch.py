"""Figures of a VM's last migration from the libvirt of the node it went to.

The source's libvirt is gone by then, though its pod may still say Running. The command reads
without forgetting (`--keep-completed`), so that asking twice answers twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from libtortie.errors import NotFound, TortieError, Unavailable
from tortiectl.kubevirt.launchers import active_launcher
from tortiectl.kubevirt.objects import VMI, Pod

CONTAINER = "compute"
SOCKET = "qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock"
_ROOT_SOCKET = "qemu+unix:///system?socket=/var/run/libvirt/virtqemud-sock"

Exec = Callable[[str, str, str, Sequence[str]], str]
"""Runs a command in (namespace, pod, container) and returns what it prints."""


def command(vmi: VMI) -> list[str]:
    """The command that prints the figures of a VMI's domain. Pure."""
    domain = f"{vmi.metadata.namespace}_{vmi.metadata.name}"
    return ["virsh", "-c", SOCKET, "domjobinfo", "--completed", "--keep-completed", domain]


def place(vmi: VMI, pods: Iterable[Pod]) -> Pod:
    """The pod to ask. Raises `NotFound` that says why there is none. Pure."""
    state = vmi.status.migration_state
    if not state.target_node:
        raise NotFound(f"VMI {vmi.id} has not migrated since it was started: nothing to measure")
    if state.failed:
        why = state.failure_reason or "no reason is given"
        raise NotFound(f"the last migration of VMI {vmi.id} failed ({why}): it has no downtime")
    if not state.completed and not state.end_timestamp:
        raise NotFound(
            f"VMI {vmi.id} is migrating to {state.target_node} now: follow it with "
            f"`tortiectl vm migrate {vmi.id} --watch`, and ask again when it has ended"
        )
    return active_launcher(vmi, pods, state.target_node)


def fetch(vmi: VMI, pods: Iterable[Pod], execute: Exec) -> str:
    """What virsh prints. Raises `NotFound`, `Unavailable` with what to do."""
    pod = place(vmi, pods)
    try:
        return execute(vmi.metadata.namespace, pod.metadata.name, CONTAINER, command(vmi))
    except Unavailable as error:
        raise explained(error, vmi, pod) from error


def explained(error: TortieError, vmi: VMI, pod: Pod) -> TortieError:
    """A failure of the command, with its cause where it is known. Pure."""
    text = str(error)
    if "omain not found" in text or "failed to get domain" in text:
        return NotFound(
            f"libvirt in pod {pod.id} does not know the domain: the guest of {vmi.id} has been "
            f"stopped or has moved on ({text})"
        )
    if "orbidden" in text or "cannot create resource" in text:
        return Unavailable(f"{text}: `vm downtime` needs the right to create pods/exec")
    if "failed to connect" in text or "No such file or directory" in text:
        return Unavailable(
            f"{text}: if the launcher runs as root, ask it by hand with {_ROOT_SOCKET!r} and give "
            "the text with --file"
        )
    return error
