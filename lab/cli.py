"""`lab`: a cluster of network namespaces on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from lab import control, names
from lab.apiserver.command import apiserver
from lab.bench import Numbers, run_bench
from lab.cli_kubevirt import kubectl, pod, vm, vmi
from lab.cli_rim import STARTERS, known_node, replace_process, reported
from lab.cluster import bring_up, make_way
from lab.cutover import report_from_json
from lab.datastore import SQLITE, TYPES
from lab.demo import run_demo
from lab.durations import seconds
from lab.fleet import REFLECTORS
from lab.guest_store import KINDS, PACKET
from lab.interrupts import interruptible, uninterrupted
from lab.measure import Wish
from lab.nodes import PLACES, in_netns, in_node
from lab.seed import NEVER, VXLAN_MODES
from lab.state import CHECKOUT, StateDir, active_root, lab_lock
from lab.status import render_status
from lab.teardown import tear_down
from lab.tools import LabError
from lab.upgrade import run_upgrades

GUEST = "What VMs are: a network namespace with this machine's kernel, or QEMU with a small Linux."


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


@click.group()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the lab keeps what it must remember. Default: where the lab that is up does, if"
    f" this checkout started it, else {names.DEFAULT_STATE_DIR}.",
)
@click.pass_context
def main(ctx: click.Context, state_dir: Path | None) -> None:
    """A KubeVirt-style cluster in network namespaces, for demonstration and tests."""
    active = None if ctx.invoked_subcommand in STARTERS else active_root()
    root = state_dir or active or names.DEFAULT_STATE_DIR
    ctx.obj = StateDir(root.resolve())


for command in (apiserver, vm, vmi, pod, kubectl):
    main.add_command(command)


@main.command()
@click.option("--nodes", type=click.IntRange(1, names.MAX_NODES), default=3, show_default=True)
@click.option("--convergence", type=Convergence(), default="8s", show_default=True)
@click.option(
    "--datastore",
    type=click.Choice(TYPES),
    default=SQLITE,
    show_default=True,
    help="Where the nodes keep their data: one file, or the lab's API server.",
)
@click.option("--guest", type=click.Choice(KINDS), default=PACKET, show_default=True, help=GUEST)
@click.option(
    "--vxlan",
    type=click.Choice(VXLAN_MODES),
    default=NEVER,
    show_default=True,
    help="Whether the VMs' pool is in the overlay; nodes speak BGP either way.",
)
@click.option(
    "--reflectors",
    type=click.IntRange(0, names.MAX_NODES),
    default=0,
    show_default=True,
    help="How many nodes, from the first on, are BGP route reflectors; 0: a mesh of all nodes.",
)
@click.pass_obj
@reported
def up(
    state: StateDir, /, *, nodes: int, convergence: str, reflectors: int, **choices: str
) -> None:
    """Start the lab."""
    if reflectors > nodes:
        raise click.BadParameter(f"{nodes} nodes cannot be {reflectors} route reflectors")
    with lab_lock(), interruptible():
        make_way(state)
        try:
            bring_up(state, nodes, convergence, click.echo, reflectors=reflectors, **choices)
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


@main.command()
@click.argument("name", metavar="VM")
@click.option("--to", "target", default="", help="Target node; without it the lab chooses.")
@click.option("--blackout", type=click.FloatRange(0, 60_000), default=50.0, show_default=True)
@click.option("--garp", is_flag=True, help="The guest's kernel announces itself, too.")
@click.pass_obj
@reported
def migrate(state: StateDir, name: str, target: str, blackout: float, garp: bool) -> None:
    """Migrate a VM; BLACKOUT is the guest's own pause in ms."""
    known_node(state, target)
    annotations = Wish(name, target, blackout, garp).annotations()
    job = control.create_migration(name, target, annotations)
    over = control.await_migration(job.metadata.name, lambda phase: click.echo(phase or "created"))
    if over.status.phase != "Succeeded":
        raise LabError(over.status.migration_state.failure_reason or "the migration failed")
    where = over.status.migration_state.target_node
    report = report_from_json(over.metadata.annotations[names.ANNOTATION_CUTOVER])
    click.echo(f"{name} runs on {where}, after a blackout of {report.blackout_ms} ms")


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("where", metavar="NODE|tor|ext|api")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
@reported
def exec_(state: StateDir, where: str, command: tuple[str, ...]) -> None:
    """Run a command as a process of a node: `lab exec node1 -- ip route`.

    ToR, client outside and API server are networks only: their files are the machine's. This
    environment's own commands (`tortiectl`) are found, after those of the machine.
    """
    if where in PLACES:
        state.read()
    else:
        known_node(state, where, PLACES)
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), own])
    inside = in_netns(names.netns(where), command) if where in PLACES else None
    replace_process(inside or in_node(state, where, command))


@main.command()
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), default="report.json")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the page for people goes. Default: report.html beside the report.",
)
@click.option("--convergence", type=Convergence(), default="8s", show_default=True)
@click.option("--blackout", type=click.FloatRange(0, 10_000), default=50.0, show_default=True)
@click.option("--guest", type=click.Choice(KINDS), default=PACKET, show_default=True, help=GUEST)
@click.pass_obj
@reported
def demo(
    state: StateDir,
    report: Path,
    html: Path | None,
    convergence: str,
    blackout: float,
    *,
    guest: str,
) -> None:
    """A VM's whole story, its live migrations measured; exits 1 if a promise was broken."""
    page = html or report.with_name("report.html")
    if not run_demo(state, report, page, convergence, blackout, guest=guest):
        raise SystemExit(1)


@main.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default="bench/cutover.json"
)
@click.option("--runs", type=click.IntRange(0, 10_000), default=100, show_default=True)
@click.option("--silent", type=click.IntRange(0, 1000), default=10, show_default=True)
@click.option("--killed", type=click.IntRange(0, 1000), default=20, show_default=True)
@click.option("--ended", type=click.IntRange(0, 1000), default=10, show_default=True)
@click.option("--qemu", type=click.IntRange(0, 1000), default=5, show_default=True)
@click.option(
    "--fleet", type=click.IntRange(0, names.MAX_NODES), default=names.MAX_NODES, show_default=True
)
@click.option("--moves", type=click.IntRange(1, 10_000), default=30, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what is left to chance.")
@click.pass_obj
@reported
def bench(state: StateDir, /, out: Path, seed: int, **counts: int) -> None:
    """Measure cut-overs: RUNS of a packet guest, others of one that makes no sign, with an agent
    KILLED on the way, or ENDED with its keeper, and of a QEMU guest; then MOVES of a packet guest
    about a cluster of FLEET nodes with two route reflectors. Exits 1 if a target is missed."""
    numbers = Numbers(
        counts["runs"],
        counts["silent"],
        counts["killed"],
        counts["qemu"],
        counts["moves"],
        counts["fleet"],
        counts["ended"],
    )
    if not (numbers.small or numbers.fleet):
        raise click.UsageError("nothing to measure")
    if 0 < numbers.fleet <= REFLECTORS:
        raise click.UsageError(f"a fleet has more than {REFLECTORS} nodes")
    if not run_bench(state, out, numbers, seed, click.echo):
        raise SystemExit(1)


@main.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default="bench/upgrade.json"
)
@click.option("--runs", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of moments and order.")
@click.option(
    "--old",
    type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
    default=CHECKOUT,
    help="A checkout of the other version. Default: this one.",
)
@click.option(
    "--drain", type=float, help="`drain_seconds` of the agents, if both versions know it."
)
@click.pass_obj
@reported
def upgrade(
    state: StateDir, /, out: Path, runs: int, seed: int, *, old: Path, drain: float | None
) -> None:
    """Replace agents and controllers by those of another version and back, RUNS times in all, while
    a VM migrates. Exits 1 if that costs a probe or a connection."""
    if not run_upgrades(state, out, runs, seed, old=old, drain=drain):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
