"""What happens to the VM after its live migrations, act by act; kubectl and tortiectl are actors.

An act does one thing as a user would, checks what it did, and says what was seen; a promise that
breaks is a `LabError`. After each, the VM's address is compared with the one it began with.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lab import control, names
from lab.cluster import tool, until
from lab.measure import await_echo, guest_ips, start_streams
from lab.nodes import in_netns, in_node
from lab.objects import LABEL_JOB, LABEL_LAUNCHER, LAUNCHER, LabMigration, LabPod, LabVM, LabVMI
from lab.report import Act
from lab.state import StateDir
from lab.stream import StreamReport
from lab.tools import LabError
from libtortie.errors import TortieError

TOOL_DEADLINE_S = 120.0
DRAIN_S = 90
CONFIGURATION = "KubeVirtVMAddressPersistence"
EVICTION_WORDS = "evacuation of VMI"
REFUSAL_WORDS = "live migration target pod is not allowed"
EVACUATION = "kubevirt-evacuation-"


@dataclass(frozen=True, slots=True)
class Stage:
    """The VM, the addresses it must keep, who reaches it from where, and where one commands."""

    state: StateDir
    vm: str
    addresses: Mapping[int, str]
    nodes: Sequence[str]
    probers: Sequence[str]

    def kubectl(self, *arguments: str) -> str:
        """Run the real kubectl against the lab's API. Raises `LabError` with its last words."""
        env = {
            "KUBECONFIG": str(self.state.kubeconfig),
            "KUBECACHEDIR": str(self.state.root / "kubectl-cache"),
        }
        argv = in_netns(names.netns(names.API), [str(tool("kubectl")), *arguments])
        return words_of(argv, env)

    def tortiectl(self, *arguments: str) -> str:
        """Run tortiectl on the first node, as it is configured there. Raises `LabError`."""
        return words_of(in_node(self.state, self.nodes[0], [str(tool("tortiectl")), *arguments]))

    def vmi(self) -> LabVMI:
        """The VM's instance. Raises `NotFound`."""
        return control.get(LabVMI, self.vm)

    def launcher(self) -> LabPod:
        """The pod in which the guest runs. Raises `LabError`."""
        where = self.vmi().status.node_name
        for pod in control.listing(LabPod):
            ours = pod.metadata.labels.get(LABEL_LAUNCHER) == LAUNCHER
            if ours and pod.spec.node_name == where and pod.status.phase == "Running":
                return pod
        raise LabError(f"no launcher pod of {self.vm} runs on {where}")

    def whereabouts(self) -> tuple[dict[int, str], str]:
        """Addresses and node of the instance; both empty without one."""
        vmi = control.find(LabVMI, self.vm)
        return ({}, "") if vmi is None else (guest_ips(vmi), vmi.status.node_name)

    def reachable(self) -> None:
        """Wait until the guest answers from outside and from a pod. Raises `LabError`."""
        for netns in self.probers:
            for address in self.addresses.values():
                await_echo(address, netns)


def words_of(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Everything a program says, on both streams. Raises `LabError` when it fails."""
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=TOOL_DEADLINE_S,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(str(error)) from error
    if done.returncode:
        raise LabError(f"{' '.join(argv)}: exit {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def reboot(stage: Stage) -> str:
    """`virtctl restart`: the instance is made anew, in another pod."""
    before = control.restart_vm(stage.vm)
    after = control.await_vm(stage.vm, besides=before.metadata.uid)
    stage.reachable()
    return f"a new instance, in pod {stage.launcher().metadata.name} on {after.status.node_name}"


def drain(stage: Stage) -> str:
    """kubectl drains the VM's node: the eviction is answered 429 and becomes a migration."""
    node = stage.vmi().status.node_name
    streams = start_streams(stage.state, stage.addresses)
    try:
        selector = f"--pod-selector={LABEL_LAUNCHER}={LAUNCHER}"
        said = stage.kubectl("drain", node, selector, f"--timeout={DRAIN_S}s")
        reports = [StreamReport(**stream.ask()) for stream in streams.values()]
    finally:
        for stream in streams.values():
            stream.close()
        stage.kubectl("uncordon", node)
    job = next((one for one in control.listing(LabMigration) if _evacuated(one, stage.vm)), None)
    if job is None or stage.vmi().status.node_name == node:
        raise LabError(f"{stage.vm} was not migrated away from {node}: {said.strip()}")
    if EVICTION_WORDS not in said:
        raise LabError(f"the eviction was not answered with the evacuation: {said.strip()}")
    for tcp in reports:
        if not tcp.survived:
            raise LabError(f"TCP connection broke: {tcp.error or 'lines were lost'}")
    lines = " and ".join(str(tcp.echoed) for tcp in reports)
    return f"429, then {job.metadata.name} from {node}; {lines} TCP lines; uncordoned"


def _evacuated(job: LabMigration, vm: str) -> bool:
    ours = job.spec.vmi_name == vm and job.metadata.name.startswith(EVACUATION)
    return ours and job.status.phase == "Succeeded"


def force_delete(stage: Stage) -> str:
    """The pod is deleted without waiting for its end; its late DEL must not free the address."""
    before, pod = stage.vmi(), stage.launcher().metadata.name
    stage.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    control.await_vm(stage.vm, besides=before.metadata.uid)
    stage.reachable()
    return f"{pod} is gone; {stage.launcher().metadata.name} has its place and its address"


def toggle_by_tortiectl(stage: Stage) -> str:
    """Off and on again, in one go."""
    for value in ("Disabled", "Enabled"):
        stage.tortiectl("ipam", "configure", f"--kubevirt-ip-persistence={value}")
        _expect_setting(stage, value)
    return "tortiectl ipam configure; ipam show agrees: Disabled, then Enabled"


def disable_by_kubectl(stage: Stage) -> str:
    """The same setting, by patching the API's object."""
    return _patch(stage, "Disabled")


def enable_by_kubectl(stage: Stage) -> str:
    """And back."""
    return _patch(stage, "Enabled")


def _patch(stage: Stage, value: str) -> str:
    body = f'{{"spec":{{"kubeVirtVMAddressPersistence":"{value}"}}}}'
    said = stage.kubectl("patch", "ipamconfigurations", "default", "--type=merge", "-p", body)
    _expect_setting(stage, value)
    return f"{said.strip()}; tortiectl ipam show agrees: {value}"


def _expect_setting(stage: Stage, value: str) -> None:
    shown = stage.tortiectl("ipam", "show", "--show-configuration")
    if setting(shown) != value:
        raise LabError(f"{CONFIGURATION} is {setting(shown) or 'not shown'}, not {value}")


def setting(shown: str) -> str:
    """The value in `ipam show --show-configuration`'s table; empty when there is none."""
    for line in shown.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == CONFIGURATION and len(cells) == 2:
            return cells[1]
    return ""


def refuse_target(stage: Stage) -> str:
    """While persistence is off, a migration's target pod is refused, in words; the VM stays."""
    here = stage.vmi().status.node_name
    target = next(node for node in stage.nodes if node != here)
    job = control.create_migration(stage.vm, target)
    found: list[str] = []

    def refused() -> bool:
        found[:] = [words for words in _target_words(job) if REFUSAL_WORDS in words]
        return bool(found)

    try:
        until(refused, f"the target pod of {job.metadata.name} is not refused")
    finally:
        control.delete(LabMigration, job.metadata.name)
    until(lambda: not _targets(job), f"the target pod of {job.metadata.name} is still there")
    if stage.vmi().status.node_name != here:
        raise LabError(f"{stage.vm} moved although its target was refused")
    stage.reachable()
    return found[0]


def _targets(job: LabMigration) -> list[LabPod]:
    uid = job.metadata.uid
    return [
        pod
        for pod in control.listing(LabPod)
        if pod.metadata.labels.get(LABEL_JOB) == uid and not pod.finished
    ]


def _target_words(job: LabMigration) -> list[str]:
    return [control.pod_words(pod) for pod in _targets(job)]


def delete_vm(stage: Stage) -> str:
    """The VM is deleted, and only now its address is free."""
    stage.kubectl("delete", "virtualmachines.kubevirt.io", stage.vm, "--timeout=60s")
    control.await_gone(LabVM, stage.vm)
    control.await_gone(LabVMI, stage.vm)
    addresses = stage.addresses.values()

    def freed() -> bool:
        return all(
            f"{one} is not assigned" in stage.tortiectl("ipam", "show", "--ip", one)
            for one in addresses
        )

    until(freed, f"{' or '.join(addresses)} is still assigned in IPAM")
    return f"IPAM: {' and '.join(addresses)} not assigned"


STORY: tuple[tuple[str, Callable[[Stage], str]], ...] = (
    ("reboot", reboot),
    ("kubectl drain", drain),
    ("pod force-deleted", force_delete),
    ("persistence off and on by tortiectl", toggle_by_tortiectl),
    ("persistence off by kubectl patch", disable_by_kubectl),
    ("migration refused while it is off", refuse_target),
    ("persistence on by kubectl patch", enable_by_kubectl),
    ("VM deleted", delete_vm),
)


def play(stage: Stage, title: str, act: Callable[[Stage], str]) -> Act:
    """One act, judged: it did what it should, and the addresses are still the VM's (or freed)."""
    began = time.monotonic()
    try:
        detail, ok = act(stage), True
        found, node = stage.whereabouts()
        expected = {} if act is delete_vm else dict(stage.addresses)
        if found != expected:
            detail, ok = f"address {_told(found)}, not {_told(expected)}; {detail}", False
    except TortieError as error:
        detail, ok = str(error), False
        found, node = _last_seen(stage)
    return Act(title, ok, found.get(4, ""), node, detail, round(time.monotonic() - began, 2))


def _told(addresses: Mapping[int, str]) -> str:
    return " and ".join(addresses.values()) or "none"


def _last_seen(stage: Stage) -> tuple[dict[int, str], str]:
    """Where it is after an act that broke, if that can still be asked."""
    try:
        return stage.whereabouts()
    except TortieError:
        return {}, ""
