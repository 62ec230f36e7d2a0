"""Attachment pods: what brings hotplugged volumes to a launcher. Pure.

One per launcher, on its node, owned by the launcher pod itself. For the network they are ordinary
pods: an address of their own, never the VM's.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab import objects as kv
from lab.objects import LabPod, LabVMI
from lab.rendering import attachment_body
from lab.world import Action, Create, Remove, World, over


def plan_attachments(vmi: LabVMI, world: World) -> Iterator[Action]:
    """An attachment pod for each launcher that runs, none for one that does not."""
    wanted = vmi.hotplugged and not vmi.metadata.deleting and not vmi.final
    for launcher in world.launchers(vmi):
        present = world.attachments(launcher)
        if not wanted or over(launcher):
            yield from (Remove(pod) for pod in present if not pod.metadata.deleting)
        elif not present and launcher.status.phase == "Running" and _is_due(vmi, launcher):
            yield Create(LabPod, attachment_body(vmi, launcher))


def _is_due(vmi: LabVMI, launcher: LabPod) -> bool:
    """A volume is plugged into a guest that runs, or into a target before it comes."""
    return vmi.status.phase == "Running" or kv.LABEL_JOB in launcher.metadata.labels


def attachment_ready(launcher: LabPod, world: World) -> bool:
    """Whether a launcher's attachment pod runs."""
    return any(
        pod.status.phase == "Running" and not pod.metadata.deleting
        for pod in world.attachments(launcher)
    )
