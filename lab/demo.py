"""`lab demo`: the whole promise in one run, and a report that says whether it was kept.

Up; pods and a VM; one TCP connection from outside through two live migrations, there and back;
the rest of the VM's story (`lab.story`); everything deleted; down. Whatever happens on the way, the
lab is gone at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab import control, html_report, names
from lab.cluster import bring_up, make_way, until
from lab.durations import seconds
from lab.guest_store import PACKET
from lab.interrupts import interruptible, uninterrupted
from lab.machine import machine, versions
from lab.measure import Wish, await_echo, guest_ips, measure, start_streams
from lab.nodes import in_netns
from lab.objects import LabPod, LabVM
from lab.promises import checks_of
from lab.remains import remains
from lab.report import Act, Check, Observed, Row, row_of
from lab.state import StateDir, lab_lock
from lab.story import STORY, Stage, play
from lab.teardown import leftovers, tear_down
from lab.timeline import render
from lab.tools import LabError, run
from lab.topology import Topology
from libtortie.errors import TortieError

VM = "demo-vm"
EXT_NETNS = names.netns(names.EXT)
CLIENT = "client"
NODES = 3
OPENING = 3
"""Acts before the story's own: the VM is created and moves twice."""


@dataclass(slots=True)
class Demo:
    """What the demo has found out so far."""

    convergence: str
    guest: str = PACKET
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    observed: list[Observed] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    durations: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the story was told to its end and every promise was checked and held, in both
        families."""
        told = len(self.rows) == 2 and len(self.acts) == OPENING + len(STORY)
        told &= all(row.ipv6 is not None for row in self.rows)
        return told and all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """report.json."""
        return {
            "migrations": [asdict(row) for row in self.rows],
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "story": [asdict(act) for act in self.acts],
            "machine": machine(),
            "versions": versions(),
            "started": self.started,
            "convergence": self.convergence,
            "guest": self.guest,
            "durations_s": self.durations,
        }

    def page(self) -> html_report.Page:
        """report.html's values."""
        return html_report.Page(
            ok=self.ok,
            started=self.started,
            convergence=self.convergence,
            checks=self.checks,
            migrations=tuple(zip(self.observed, self.rows, strict=False)),
            acts=self.acts,
            nodes=tuple(node.name for node in names.lab_nodes(NODES)),
            machine=machine(),
            versions=versions(),
            durations=self.durations,
        )

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Say what is being done, and remember how long it took in seconds."""
        say(f"== {what}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.durations[what] = round(time.monotonic() - began, 2)


def say(text: str) -> None:
    """A line for the person who watches."""
    print(text, flush=True)


def run_demo(
    state: StateDir,
    report: Path,
    html: Path,
    convergence: str,
    blackout_ms: float,
    *,
    guest: str = PACKET,
) -> bool:
    """The demo; True when every promise was kept. The lab is gone afterwards, in any case."""
    demo = Demo(convergence, guest)
    with lab_lock(), interruptible():
        make_way(state)
        try:
            _acts(demo, state, blackout_ms)
        except KeyboardInterrupt:
            demo.checks.append(Check("ran to its end", False, "interrupted"))
        except TortieError as error:
            demo.checks.append(Check("ran to its end", False, str(error)))
        finally:
            _clean_up(demo, state)
    report.write_text(json.dumps(demo.to_json(), indent=2, ensure_ascii=False) + "\n")
    html.write_text(html_report.render(demo.page()))
    _conclude(demo, report, html)
    return demo.ok


def _acts(demo: Demo, state: StateDir, blackout_ms: float) -> None:
    with demo.timed("lab up"):
        topology = bring_up(
            state, NODES, demo.convergence, lambda text: say(f"   {text}"), guest=demo.guest
        )
    first, second, third = (node.name for node in topology.nodes)
    with demo.timed("pods and a VM"):
        client_netns, addresses = _populate(first, second, third)
        told = " and ".join(addresses.values())
        say(f"   VM {VM} has {told} on {first}; a client pod on {third}")
    took = demo.durations["pods and a VM"]
    words = f"{VM} runs on {first} with {told}"
    demo.acts.append(Act("VM created", True, addresses[4], first, words, took))
    streams = start_streams(state, addresses)
    try:
        for target in (second, first):
            what = f"live migration to {target}"
            with demo.timed(what):
                wish = Wish(VM, target, blackout_ms, garp=target == first)
                observed = measure(
                    state,
                    topology,
                    wish,
                    client_netns=client_netns,
                    streams=streams,
                    convergence_s=seconds(demo.convergence),
                    tell=lambda text: say(f"   {text}"),
                )
            row = row_of(observed)
            demo.observed.append(observed)
            demo.rows.append(row)
            demo.acts.append(migrated(observed, row, demo.durations[what]))
            demo.checks += checks_of(row, seconds(demo.convergence))
            say(render(observed))
            demo.checks.append(_pods_talk(client_netns, f"after the migration to {target}"))
    finally:
        for stream in streams.values():
            stream.close()
    _tell(demo, Stage(state, VM, addresses, (first, second, third), (EXT_NETNS, client_netns)))
    with demo.timed("everything deleted"):
        demo.checks.append(_delete_all(state, topology))


def _tell(demo: Demo, stage: Stage) -> None:
    """The rest of the VM's story, until an act breaks: the next would only build on ruins."""
    for title, work in STORY:
        with demo.timed(title):
            act = play(stage, title, work)
        say(f"   {act.detail}")
        demo.acts.append(act)
        kept = f"{act.address} on {act.node}" if act.ok and act.address else act.detail
        demo.checks.append(Check(f"The VM's story: {title}", act.ok, kept))
        if not act.ok:
            return


def migrated(observed: Observed, row: Row, took: float) -> Act:
    """A measured migration as an act of the story."""
    families = [row, *([row.ipv6] if row.ipv6 is not None else [])]
    kept = row.phase == "Succeeded" and all(
        one.ip_after == one.ip_before and one.tcp_survived for one in families
    )
    where = observed.target if row.phase == "Succeeded" else observed.source
    downtimes = " and ".join(f"{one.network_downtime_ms} ms" for one in families)
    lines = " and ".join(one.tcp_error or f"{one.tcp_lines} TCP lines" for one in families)
    detail = f"{downtimes} of the network's beside {row.guest_blackout_ms} ms of the guest's; "
    detail += lines
    return Act(f"live migration to {observed.target}", kept, row.ip_after, where, detail, took)


def _populate(first: str, second: str, third: str) -> tuple[str, dict[int, str]]:
    """Make the VM and the pods; returns the client pod's namespace and the VM's addresses."""
    for name, node in ((CLIENT, third), ("web-a", first), ("web-b", second)):
        control.create_pod(name, node)
    control.create_vm(VM, first)
    client = control.await_pod(CLIENT)
    for name in ("web-a", "web-b"):
        control.await_pod(name)
    vmi = control.await_vm(VM)
    client_netns = names.pod_netns(CLIENT, client.metadata.uid)
    addresses = guest_ips(vmi)
    for netns in (EXT_NETNS, client_netns):
        for address in addresses.values():
            await_echo(address, netns)
    return client_netns, addresses


def _pods_talk(client_netns: str, when: str) -> Check:
    """Ordinary pods reach each other across nodes."""
    name = f"ordinary pods talk {when}"
    try:
        for pod in ("web-a", "web-b"):
            for one in control.get(LabPod, pod).status.pod_ips:
                run(in_netns(client_netns, ["ping", "-c", "3", "-i", "0.1", "-W", "1", one.ip]))
    except TortieError as error:
        return Check(name, False, str(error))
    return Check(name, True, "client → web-a, web-b")


def _delete_all(state: StateDir, topology: Topology) -> Check:
    """Delete VM and pods; then nodes, ToR and datastore hold nothing of them."""
    name = "nothing left of pods and VM"
    control.delete(LabVM, VM)
    for pod in (CLIENT, "web-a", "web-b"):
        control.delete(LabPod, pod)
    try:
        control.await_gone(LabVM, VM)
        until(lambda: not control.listing(LabPod), "pods are still there")
        until(lambda: not remains(state, topology), "something is left")
    except LabError as error:
        left = ", ".join(remains(state, topology))
        return Check(name, False, f"{error}: {left}" if left else str(error))
    return Check(name, True, "no links, routes, endpoints or addresses")


def _clean_up(demo: Demo, state: StateDir) -> None:
    with uninterrupted(), demo.timed("lab down"):
        keep_logs(state, demo)
        try:
            tear_down(state)
            left = leftovers(state)
        except LabError as error:
            left = (str(error),)
    demo.checks.append(Check("lab down leaves nothing", not left, ", ".join(left) or "nothing"))


def keep_logs(state: StateDir, demo: Demo) -> None:
    """After a failure, show the end of every log that is about to be removed."""
    if len(demo.rows) == 2 and all(check.ok for check in demo.checks):
        return
    logs = sorted(state.logs.glob("*.log")) + sorted(state.root.glob("nodes/*/log/*.log"))
    for log in logs:
        lines = log.read_text(errors="replace").splitlines()[-12:]
        if lines:
            say(f"--- {log}")
            say("\n".join(line[:400] for line in lines))


def _conclude(demo: Demo, report: Path, html: Path) -> None:
    for check in demo.checks:
        say(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}")
    verdict = "Every promise was kept." if demo.ok else "A promise was broken."
    say(f"{verdict} See {html} and {report}.")
