"""`lab vm`, `lab vmi`, `lab pod`, `lab kubectl`: what a user does to the cluster, one line each."""

from __future__ import annotations

import os

import click

from lab import control, names
from lab.cli_rim import known_node, replace_process, reported
from lab.cluster import tool
from lab.guest_store import KINDS
from lab.measure import guest_ips
from lab.nodes import in_netns
from lab.objects import LabPod, LabVM, LabVMI
from lab.state import StateDir
from lab.tools import LabError


@click.group()
def vm() -> None:
    """VMs."""


@vm.command("create")
@click.argument("name")
@click.option("--node", default="", help="Where to start it, if possible.")
@click.option("--guest", type=click.Choice(KINDS), help="Its kind; without it the lab's.")
@click.pass_obj
@reported
def vm_create(state: StateDir, name: str, node: str, guest: str | None) -> None:
    """Create a VM and wait until its guest runs."""
    known_node(state, node)
    control.create_vm(name, node, guest or "")
    _say_where(control.await_vm(name))


@vm.command("delete")
@click.argument("name")
@click.pass_obj
@reported
def vm_delete(state: StateDir, name: str) -> None:
    """Delete a VM; its address is free afterwards."""
    state.read()
    control.delete(LabVM, name)
    control.await_gone(LabVM, name)


@vm.command("stop")
@click.argument("name")
@click.pass_obj
@reported
def vm_stop(state: StateDir, name: str) -> None:
    """Stop a VM; it keeps its address."""
    state.read()
    control.stop_vm(name)
    control.await_gone(LabVMI, name)


@vm.command("start")
@click.argument("name")
@click.pass_obj
@reported
def vm_start(state: StateDir, name: str) -> None:
    """Start a stopped VM and wait until its guest runs."""
    state.read()
    control.start_vm(name)
    _say_where(control.await_vm(name))


@vm.command("restart")
@click.argument("name")
@click.pass_obj
@reported
def vm_restart(state: StateDir, name: str) -> None:
    """Replace a VM's instance by a new one and wait until its guest runs."""
    state.read()
    before = control.restart_vm(name)
    _say_where(control.await_vm(name, besides=before.metadata.uid))


@click.group()
def vmi() -> None:
    """Instances of their own, without a VM."""


@vmi.command("create")
@click.argument("name")
@click.option("--node", default="", help="Where to start it, if possible.")
@click.pass_obj
@reported
def vmi_create(state: StateDir, name: str, node: str) -> None:
    """Create an instance and wait until its guest runs."""
    known_node(state, node)
    control.create_vmi(name, node)
    _say_where(control.await_vm(name))


@vmi.command("delete")
@click.argument("name")
@click.pass_obj
@reported
def vmi_delete(state: StateDir, name: str) -> None:
    """Delete an instance; that of a VM comes back."""
    state.read()
    before = control.find(LabVMI, name)
    control.delete(LabVMI, name)
    if before is not None:
        control.await_replaced(LabVMI, name, before.metadata.uid)


@click.group()
def pod() -> None:
    """Pods."""


@pod.command("create")
@click.argument("name")
@click.option("--node", required=True)
@click.pass_obj
@reported
def pod_create(state: StateDir, name: str, node: str) -> None:
    """Create a pod and wait until it runs."""
    known_node(state, node)
    control.create_pod(name, node)
    made = control.await_pod(name, 60)
    addresses = " and ".join(one.ip for one in made.status.pod_ips)
    click.echo(f"{name} runs on {node} with {addresses}")


@pod.command("delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Do not wait for its node to end it.")
@click.pass_obj
@reported
def pod_delete(state: StateDir, name: str, force: bool) -> None:
    """Delete a pod, a VM's launcher as well."""
    state.read()
    before = control.find(LabPod, name)
    control.delete(LabPod, name, force=force)
    if before is not None:
        control.await_replaced(LabPod, name, before.metadata.uid)


@pod.command("kill-sandbox")
@click.argument("name")
@click.pass_obj
@reported
def pod_kill_sandbox(state: StateDir, name: str) -> None:
    """End a pod's sandbox, as when its pause process dies; the kubelet makes another."""
    state.read()
    control.kill_sandbox(name)


@click.command("kubectl", context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
@reported
def kubectl(state: StateDir, arguments: tuple[str, ...]) -> None:
    """Run kubectl against the lab's API: `lab kubectl -- drain node1 --ignore-daemonsets`."""
    state.read()
    program = tool("kubectl")
    if not program.exists():
        raise LabError(f"there is no {program}: run `make setup`")
    os.environ["KUBECONFIG"] = str(state.kubeconfig)
    os.environ["KUBECACHEDIR"] = str(state.root / "kubectl-cache")
    replace_process(in_netns(names.netns(names.API), [str(program), *arguments]))


def _say_where(found: LabVMI) -> None:
    addresses = " and ".join(guest_ips(found).values())
    click.echo(f"{found.metadata.name} runs on {found.status.node_name} with {addresses}")
