"""A lab that is up, for end-to-end tests: started, asked, taken down without a trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

from lab import control, names
from lab.cluster import CONTROL_PLANE, until
from lab.datastore import with_store
from lab.objects import LabMigration, LabPod, LabVMI
from lab.processes import is_same, lab_namespaces, parse_record
from lab.remains import remains
from lab.state import StateDir, active_state, lab_lock
from lab.teardown import leftovers
from lab.tools import LabError
from lab.topology import Topology, plan_topology
from libtortie.datastore.port import Datastore
from libtortie.model.ipam import Attribute, Block
from libtortie.model.keys import Blocks

BUSY = ("a lab is up already", "another lab command is running", "the lab that is up is in")
BUSY_DEADLINE_S = 900.0
"""How long another lab of the same machine is waited for."""


class Patience:
    """Waiting for another lab's end, once: when one test has waited in vain, no other one waits."""

    spent = False

    def __init__(self) -> None:
        self._end = time.monotonic() + (0 if Patience.spent else BUSY_DEADLINE_S)

    def wait(self, why: str) -> None:
        """Wait a moment more; an `AssertionError` with the reason when it was too long."""
        if time.monotonic() > self._end:
            Patience.spent = True
            raise AssertionError(f"another lab was in the way for {BUSY_DEADLINE_S:g} s: {why}")
        time.sleep(2)


@dataclass(frozen=True, slots=True)
class Lab:
    """A running lab."""

    state: StateDir
    topology: Topology

    def cli(self, *arguments: str, ok: bool = True) -> str:
        """Run `lab …`; both outputs as one text."""
        return run_cli(self.state, *arguments, ok=ok)

    def kubectl(self, *arguments: str, ok: bool = True) -> str:
        """Run the real kubectl."""
        return self.cli("kubectl", "--", *arguments, ok=ok)


def run_cli(state: StateDir, *arguments: str, ok: bool = True) -> str:
    """Run `lab …` and insist on how it ends."""
    done = call(state, *arguments)
    as_wanted = (done.returncode == 0) is ok
    why = "" if as_wanted else f"; ended: {ended(state)}\n{logs_of(state)}"
    assert as_wanted, f"{arguments}: {done.stdout}{done.stderr}{why}"
    return done.stdout + done.stderr


def ended(state: StateDir) -> list[str]:
    """Processes that outlive every command of a lab, and have ended all the same."""
    try:
        lines = state.ledger_file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ["the ledger itself is gone"]
    lasting = ("API server", "bird of", "agent of", CONTROL_PLANE)
    records = [one for one in map(parse_record, lines) if one is not None]
    return [
        f"{one.name} ({one.pid})"
        for one in records
        if one.name.startswith(lasting) and not is_same(one)
    ]


def call(state: StateDir, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `lab …`."""
    command = command_of(state, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def command_of(state: StateDir, *arguments: str) -> list[str]:
    """The command line of `lab …` on a state directory."""
    return [sys.executable, "-m", "lab.cli", "--state-dir", str(state.root), *arguments]


@contextmanager
def lab_up(root: Path, convergence_s: float, *options: str) -> Iterator[Lab]:
    """A lab, by default of three nodes; at the end nothing of it is left. Waits for another one's
    end."""
    state = StateDir(root)
    when_free(state, "up", "--convergence", f"{convergence_s:g}s", *options)
    try:
        yield Lab(state, plan_topology(state.read().nodes))
    finally:
        print(logs_of(state))
        when_free(state, "down")
        assert_gone(state)


def when_free(state: StateDir, *arguments: str) -> str:
    """Run `lab …` as soon as no other lab is in its way; both outputs as one text."""
    patience = Patience()
    while True:
        done = call(state, *arguments)
        words = done.stdout + done.stderr
        if not done.returncode:
            return words
        assert any(busy in words for busy in BUSY), words
        patience.wait(words)


def start(
    state: StateDir, *arguments: str, output: Path = Path(os.devnull)
) -> subprocess.Popen[str]:
    """Start `lab …` in the background, as the leader of a process group of its own.

    It obeys Ctrl-C even where the tests themselves were told to ignore it, as `nohup` and a
    script's `&` do: that is inherited.
    """
    heeding = ["env", "--default-signal=INT", "--default-signal=TERM"]
    with output.open("w") as file:
        return subprocess.Popen(
            [*heeding, *command_of(state, *arguments)],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def start_when_free(
    state: StateDir, *arguments: str, output: Path = Path(os.devnull)
) -> subprocess.Popen[str]:
    """`start`, again and again until its lab is the machine's."""
    patience = Patience()
    while True:
        child = start(state, *arguments, output=output)
        while child.poll() is None and not state.record_file.exists():
            time.sleep(0.001)
        if state.record_file.exists():
            return child
        assert child.stderr is not None
        words = child.stderr.read()
        assert any(busy in words for busy in BUSY), words
        patience.wait(words)


def assert_gone(state: StateDir) -> None:
    """Nothing of a lab is left. Where another lab is up by now, what is that one's is left out."""
    with lab_lock(patience_s=BUSY_DEADLINE_S):
        other = active_state()
        assert other is None or other.root != state.root
        theirs = () if other is None else leftovers_of_machine()
        assert set(leftovers(state)) <= set(theirs)


def leftovers_of_machine() -> tuple[str, ...]:
    """What a lab in any place shows of itself."""
    return tuple(f"namespace {name}" for name in lab_namespaces())


def logs_of(state: StateDir) -> str:
    """The end of every log, for the one who reads a failure."""
    files = sorted([*state.logs.glob("*.log"), *state.root.glob("nodes/*/log/*.log")])
    ends = (f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:] for path in files)
    return "\n".join(ends)


def traces(lab: Lab, word: str) -> list[str]:
    """What is left of a workload on nodes, ToR and in the datastore."""
    return [trace for trace in remains(lab.state, lab.topology) if word in trace]


def metrics(node: str, address: str) -> list[int]:
    """Metrics of a node's own routes to a guest by one of its addresses, best first."""
    host = ip_network(address)
    family = f"-{host.version}"
    command = ["ip", "-n", names.netns(node), "-j", family, "route", "show", str(host)]
    routes = json.loads(subprocess.run(command, capture_output=True, check=True).stdout or b"[]")
    return sorted(route.get("metric", 0) for route in routes if "gateway" not in route)


def everywhere(address: str) -> dict[str, list[int]]:
    """Own routes to a guest, by node; nodes without one are left out."""
    state = active_state()
    assert state is not None
    nodes = names.lab_nodes(state.read().nodes)
    found = {node.name: metrics(node.name, address) for node in nodes}
    return {name: values for name, values in found.items() if values}


def allocation(lab: Lab, address: str) -> Attribute | None:
    """Who holds an address in IPAM; None when it is free."""
    wanted = ip_address(address)

    def work(store: Datastore) -> Attribute | None:
        for record in store.list(Blocks(wanted.version)).records:
            if isinstance(record.value, Block) and wanted in record.value.cidr:
                return record.value.attribute(record.value.ordinal(wanted))
        return None

    return with_store(lab.state, lab.state.read().datastore, work)


def launchers(vmi: LabVMI) -> list[LabPod]:
    """Launcher pods of an instance, those that have finished too."""
    found = []
    for pod in control.listing(LabPod):
        owner = pod.metadata.controller()
        if owner is not None and owner.uid == vmi.metadata.uid:
            found.append(pod)
    return found


def active_launcher(vm: str) -> LabPod:
    """The one launcher of a VM that has not finished."""
    (pod,) = [one for one in launchers(control.get(LabVMI, vm)) if not one.finished]
    return pod


def target_of(job: LabMigration) -> LabPod | None:
    """A migration's target pod."""
    for pod in control.listing(LabPod):
        labels = pod.metadata.labels
        if (labels.get("kubevirt.io"), labels.get("kubevirt.io/migrationJobUID")) == (
            "virt-launcher",
            job.metadata.uid,
        ):
            return pod
    return None


def assert_settled(lab: Lab, vm: str, address: str) -> None:
    """A VM at rest: one owner, which is the pod it runs in; one route, on its node, not raised."""

    def settled() -> bool:
        vmi = control.get(LabVMI, vm)
        here = vmi.status.node_name
        found = allocation(lab, address)
        alive = [one for one in launchers(vmi) if not one.finished]
        return (
            found is not None
            and len(alive) == 1
            and everywhere(address) == {here: [names.METRIC_NORMAL]}
            and found.active.get("pod") == alive[0].metadata.name
            and found.active.get("node") == here
            and not found.alternate
        )

    try:
        until(settled, "")
    except LabError:
        found = allocation(lab, address)
        vmi = control.get(LabVMI, vm)
        pods = [(one.metadata.name, one.status.phase) for one in launchers(vmi)]
        raise AssertionError(
            f"{vm} on {vmi.status.node_name} is not settled: routes {everywhere(address)},"
            f" allocation {found}, pods {pods}"
        ) from None
