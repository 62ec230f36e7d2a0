"""`lab`: a cluster of network namespaces on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import NoReturn, ParamSpec

import click

from lab import control, names
from lab.apiserver.command import apiserver
from lab.bench import run_bench
from lab.cluster import bring_up, refuse_second
from lab.cutover import report_from_json
from lab.demo import interruptible, run_demo, uninterrupted
from lab.durations import seconds
from lab.measure import Wish, guest_ip
from lab.nodes import in_node
from lab.objects import LabPod, LabVM
from lab.state import StateDir, active_root, lab_lock
from lab.status import render_status
from lab.teardown import tear_down
from lab.tools import LabError
from libtortie.errors import TortieError

P = ParamSpec("P")


class Convergence(click.ParamType[str]):
    """A Go duration."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Refuse what the agents could not read."""
        try:
            seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def reported(work: Callable[P, None]) -> Callable[P, None]:
    """One line on standard error and exit code 1 for every error of ours."""

    @wraps(work)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        if os.geteuid() != 0:
            raise click.ClickException("the lab makes network namespaces: run it as root")
        try:
            work(*args, **kwargs)
        except (TortieError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return wrapper


@click.group()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the lab keeps what it must remember. Default: where the lab that is up does,"
    f" else {names.DEFAULT_STATE_DIR}.",
)
@click.pass_context
def main(ctx: click.Context, state_dir: Path | None) -> None:
    """A KubeVirt-style cluster in network namespaces, for demonstration and tests."""
    root = state_dir or active_root() or names.DEFAULT_STATE_DIR
    ctx.obj = StateDir(root.absolute())


main.add_command(apiserver)


@main.command()
@click.option("--nodes", type=click.IntRange(1, names.MAX_NODES), default=3, show_default=True)
@click.option("--convergence", type=Convergence(), default="8s", show_default=True)
@click.pass_obj
@reported
def up(state: StateDir, nodes: int, convergence: str) -> None:
    """Start the lab."""
    with lab_lock(), interruptible():
        refuse_second(state)
        try:
            bring_up(state, nodes, convergence, click.echo)
        except BaseException:
            with uninterrupted():
                _last_words(state)
                tear_down(state)
            raise
    click.echo(f"up: {nodes} nodes; `lab vm create NAME`, `lab status`, `lab down`")


def _last_words(state: StateDir) -> None:
    """The end of each log, before it goes with the lab that failed to start."""
    for log in sorted([*state.logs.glob("*.log"), *state.root.glob("nodes/*/log/*.log")]):
        lines = log.read_text(errors="replace").splitlines()[-5:]
        for line in lines:
            click.echo(f"{log.name}: {line[:400]}", err=True)


@main.command()
@click.pass_obj
@reported
def down(state: StateDir) -> None:
    """Remove the lab and everything of it, also after a crash."""
    with lab_lock(), uninterrupted():
        removed = tear_down(state)
    click.echo(f"down: {removed.processes} processes, {removed.namespaces} namespaces removed")


@main.command()
@click.pass_obj
@reported
def status(state: StateDir) -> None:
    """Show nodes, VMs, pods and migrations."""
    click.echo(render_status(state))


@main.group()
def vm() -> None:
    """VMs."""


@vm.command("create")
@click.argument("name")
@click.option("--node", default="", help="Where to start it, if possible.")
@click.pass_obj
@reported
def vm_create(state: StateDir, name: str, node: str) -> None:
    """Create a VM and wait until its guest runs."""
    _known_node(state, node)
    control.create_vm(name, node)
    vmi = control.await_vm(name)
    click.echo(f"{name} runs on {vmi.status.node_name} with {guest_ip(vmi)}")


@vm.command("delete")
@click.argument("name")
@click.pass_obj
@reported
def vm_delete(state: StateDir, name: str) -> None:
    """Delete a VM; its address is free afterwards."""
    state.read()
    control.delete(LabVM, name)
    control.await_gone(LabVM, name)


@main.group()
def pod() -> None:
    """Ordinary pods."""


@pod.command("create")
@click.argument("name")
@click.option("--node", required=True)
@click.pass_obj
@reported
def pod_create(state: StateDir, name: str, node: str) -> None:
    """Create a pod and wait until it runs."""
    _known_node(state, node)
    control.create_pod(name, node)
    made = control.await_pod(name, 20)
    click.echo(f"{name} runs on {node} with {made.status.pod_ip}")


@pod.command("delete")
@click.argument("name")
@click.pass_obj
@reported
def pod_delete(state: StateDir, name: str) -> None:
    """Delete a pod."""
    state.read()
    control.delete(LabPod, name)
    control.await_gone(LabPod, name)


@main.command()
@click.argument("name", metavar="VM")
@click.option("--to", "target", default="", help="Target node; without it the lab chooses.")
@click.option("--blackout", type=click.FloatRange(0, 60_000), default=50.0, show_default=True)
@click.option("--garp", is_flag=True, help="The guest's kernel announces itself, too.")
@click.pass_obj
@reported
def migrate(state: StateDir, name: str, target: str, blackout: float, garp: bool) -> None:
    """Migrate a VM; BLACKOUT is the guest's own pause in ms."""
    _known_node(state, target)
    annotations = Wish(name, target, blackout, garp).annotations()
    job = control.create_migration(name, target, annotations)
    over = control.await_migration(job.metadata.name, lambda phase: click.echo(phase or "created"))
    if over.status.phase != "Succeeded":
        raise LabError(over.status.migration_state.failure_reason or "the migration failed")
    where = over.status.migration_state.target_node
    report = report_from_json(over.metadata.annotations[names.ANNOTATION_CUTOVER])
    click.echo(f"{name} runs on {where}, after a blackout of {report.blackout_ms} ms")


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
@reported
def exec_(state: StateDir, node: str, command: tuple[str, ...]) -> None:
    """Run a command as a process of a node: `lab exec node1 -- ip route`.

    This environment's own commands (`tortiectl`) are found, after those of the machine.
    """
    _known_node(state, node)
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), own])
    replace_process(in_node(state, node, command))


def replace_process(argv: list[str]) -> NoReturn:
    """Become another program."""
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@main.command()
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), default="report.json")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the page for people goes. Default: report.html beside the report.",
)
@click.option("--convergence", type=Convergence(), default="8s", show_default=True)
@click.option("--blackout", type=click.FloatRange(0, 10_000), default=50.0, show_default=True)
@click.pass_obj
@reported
def demo(
    state: StateDir, report: Path, html: Path | None, convergence: str, blackout: float
) -> None:
    """Two live migrations with everything measured; exits 1 if a promise was broken."""
    page = html or report.with_name("report.html")
    if not run_demo(state, report, page, convergence, blackout):
        raise SystemExit(1)


@main.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default="bench/cutover.json"
)
@click.option("--runs", type=click.IntRange(1, 100), default=10, show_default=True)
@click.pass_obj
@reported
def bench(state: StateDir, out: Path, runs: int) -> None:
    """Measure cut-overs with and without the guest's sign; exits 1 if a target is missed."""
    if not run_bench(state, out, runs, click.echo):
        raise SystemExit(1)


def _known_node(state: StateDir, node: str) -> None:
    """Raise `LabError` when no lab is up or it has no such node."""
    nodes = [known.name for known in names.lab_nodes(state.read().nodes)]
    if node and node not in nodes:
        raise LabError(f"no node {node!r}; there are {', '.join(nodes)}")


if __name__ == "__main__":
    main()
