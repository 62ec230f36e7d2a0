"""`make bench-cni`: ADD and DEL beside Debian's `ptp` + `host-local`, in turns, in one run.

Every figure is a whole process from outside, on a quiet node: the next call begins when the
agent has done with the last one's endpoint. The policy wait is off. Exit status 1 when a row is
not met.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from cni_plugin.durable import replace_file
from cni_plugin.program import NATIVE, executable
from lab.results import BenchRow, at_most, conclude
from tests.bench.cni_calls import Caller, Program, Sandbox, timed
from tests.bench.cni_echo import echo_agent
from tests.bench.cni_node import PYTHON, BenchNode, etcd_node, sqlite_node
from tests.bench.cni_policy import waits

COUNT = 60
CROWD, CROWDS = 30, 5
ADD_SQLITE, ADD_ETCD, DEL, CROWD_P99, ADD_NATIVE = 2.0, 2.5, 1.2, 1.0, 1.0
SHIM = 1.8
POLICY_MS = 5.0
ALONE_MS = {"SQLite": 500.0, "etcd": 700.0}

Tell = Callable[[str], None]
Times = dict[str, dict[str, list[float]]]


def in_turns(node: BenchNode, callers: Sequence[Caller]) -> Times:
    """ADD and DEL of each caller for a sandbox of its own, in turns; ms by caller and verb."""
    times: Times = {caller.name: {"ADD": [], "DEL": []} for caller in callers}
    for number in range(COUNT + 3):
        for caller in callers:
            (sandbox,) = sandboxes = node.sandboxes(caller.name[:2], 1)
            for verb in ("ADD", "DEL"):
                (took,) = caller.call(verb, [sandbox])
                _settle(node, caller, sandboxes, verb)
                if number >= 3:  # the first ones warm the caches of all
                    times[caller.name][verb].append(took * 1000)
            node.drop(sandboxes)
    return times


def crowds(node: BenchNode, callers: Sequence[Caller]) -> Times:
    """Many ADDs at once, then many DELs, of each caller in turns; ms of every call."""
    times: Times = {caller.name: {"ADD": [], "DEL": []} for caller in callers}
    for _ in range(CROWDS):
        for caller in callers:
            sandboxes = node.sandboxes(caller.name[:2], CROWD)
            for verb in ("ADD", "DEL"):
                took = caller.call(verb, sandboxes)
                _settle(node, caller, sandboxes, verb)
                times[caller.name][verb] += [seconds * 1000 for seconds in took]
            node.drop(sandboxes)
    return times


def _settle(node: BenchNode, caller: Caller, sandboxes: list[Sandbox], verb: str) -> None:
    if caller is not node.peer:
        node.settle(sandboxes, present=verb == "ADD")


def shims(directory: Path) -> dict[str, list[float]]:
    """The shim alone, before an agent that answers at once, and bare Python, in turns; ms."""
    found: dict[str, list[float]] = {}
    socket = directory / "echo.sock"
    with echo_agent(socket):
        shim = directory / "shim"
        replace_file(shim, executable(str(socket), "/nonexistent", PYTHON), 0o755)
        conf = directory / "conf.json"
        conf.write_text('{"cniVersion":"1.0.0","name":"n","type":"tortie"}')
        env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0"}
        programs = {
            "bare": Program([PYTHON, "-IS", "-c", "pass"]),
            "shim": Program([str(shim)], env, str(conf)),
        }
        for number in range(COUNT + 3):
            for name, program in programs.items():
                ((took, _),) = timed([program])
                if number >= 3:
                    found.setdefault(name, []).append(took * 1000)
    return found


def without_agent(node: BenchNode) -> list[float]:
    """ADD by the fallback while no agent runs; its packet filter is in the kernel. ms."""
    node.node.stop()
    node.enter()
    times: list[float] = []
    for number in range(COUNT + 1):
        sandboxes = node.sandboxes("fa", 1)
        (took,) = node.ours.call("ADD", sandboxes)
        node.ours.call("DEL", sandboxes)
        node.drop(sandboxes)
        if number:
            times.append(took * 1000)
    return times


def p99(times: Sequence[float]) -> float:
    """The 99th percentile: of n sorted times the one at 0.99 n, rounded up."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)]


def rows_of(
    sqlite: Times, etcd: Times, crowd: Times, shim: dict[str, list[float]]
) -> list[BenchRow]:
    """The rows that are multiples of a peer's figure of the same run."""
    middle = statistics.median

    def row(what: str, run: Times, verb: str, times: float, who: str = "tortie") -> BenchRow:
        peer = middle(run["ptp"][verb])
        text = f"{what}; ptp + host-local"
        return at_most(text, middle(run[who][verb]), peer, "ms", times * peer)

    def crowded(what: str, who: str) -> BenchRow:
        peer = p99(crowd["ptp"]["ADD"])
        text = f"{CROWD} ADDs at once{what}: p99; {CROWD} of ptp + host-local"
        return at_most(text, p99(crowd[who]["ADD"]), peer, "ms", CROWD_P99 * peer)

    rows = [
        row("ADD, warm agent, SQLite", sqlite, "ADD", ADD_SQLITE),
        row("ADD, warm agent, etcd", etcd, "ADD", ADD_ETCD),
        row("DEL, warm agent, SQLite", sqlite, "DEL", DEL),
        row("DEL, warm agent, etcd", etcd, "DEL", DEL),
        crowded(", SQLite", "tortie"),
    ]
    if "native" in sqlite:
        rows.append(crowded(" with the native shim", "native"))
        what = "ADD with the native shim, warm agent, SQLite"
        rows.append(row(what, sqlite, "ADD", ADD_NATIVE, "native"))
    what = "shim alone (Python), an agent that answers at once; bare python3 -IS -c pass"
    bare = middle(shim["bare"])
    rows.append(at_most(what, middle(shim["shim"]), bare, "ms", SHIM * bare))
    return rows


def measure(directory: Path, tell: Tell) -> tuple[list[BenchRow], dict[str, Any]]:
    """Everything; rows and each run's figures."""
    found: dict[str, Any] = {"shim": shims(directory)}
    tell(_brief({"shim": found["shim"]}))
    policy = waits(directory / "status", COUNT)
    alone: dict[str, list[float]] = {}
    with sqlite_node(directory / "sqlite") as node:
        node.enter()
        callers = [node.peer, node.ours, *node.native()]
        found["SQLite"] = in_turns(node, callers)
        tell(_brief(found["SQLite"]))
        found["at once"] = crowds(node, callers)
        tell(_brief(found["at once"]))
        alone["SQLite"] = without_agent(node)
    with etcd_node(directory / "etcd") as node:
        node.enter()
        found["etcd"] = in_turns(node, [node.peer, node.ours])
        tell(_brief(found["etcd"]))
        alone["etcd"] = without_agent(node)
    found |= {"fallback": alone, "policy wait": policy}
    rows = rows_of(found["SQLite"], found["etcd"], found["at once"], found["shim"])
    what = "policy wait: return after the status file, p99"
    rows.append(at_most(what, p99(policy), None, "ms", POLICY_MS))
    for store, times in alone.items():
        what = f"ADD by the fallback, no agent, {store}"
        rows.append(at_most(what, statistics.median(times), None, "ms", ALONE_MS[store]))
    return rows, found


def _brief(times: dict[str, dict[str, list[float]]]) -> str:
    return "; ".join(
        f"{name} {verb}: median {statistics.median(each):.1f} p99 {p99(each):.1f} ms"
        for name, verbs in times.items()
        for verb, each in verbs.items()
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench/cni.json"))
def main(out: Path) -> None:
    """Measure, write the result, and say what was not met."""
    tell = click.echo
    out = out.absolute()
    if os.geteuid() != 0:
        raise click.ClickException("the benchmark makes network namespaces: run it as root")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-cni-")))
        rows, found = measure(directory, tell)
    if not NATIVE.exists():
        tell(f"no row for the native shim: {NATIVE} is not built, see `make shim`")
    sys.exit(0 if conclude(out, rows, found, tell) else 1)


if __name__ == "__main__":
    main()
