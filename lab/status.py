"""`lab status`: nodes, VMs, pods and migrations, and why something is not what it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from lab import control, names
from lab.cluster import CONTROL_PLANE, established
from lab.objects import LabMigration, LabPod, LabVM, LabVMI
from lab.state import StateDir
from lab.topology import plan_topology
from lab.tor import session


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the last one runs on."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def render_status(state: StateDir) -> str:
    """The lab as text. Raises `LabError` when none is up."""
    record = state.read()
    up = established(state)
    nodes = plan_topology(record.nodes).nodes
    reflecting = names.reflectors(nodes, record.reflectors)
    alive = {one.name for one in state.ledger.alive()}
    parts = [
        f"lab in {state.root}, convergence time {record.convergence},"
        f" {CONTROL_PLANE}: {'running' if CONTROL_PLANE in alive else 'not running'}",
        table(
            ("NODE", "ADDRESS", "AGENT", "BGP TO TOR"),
            (
                (
                    node.name,
                    ", ".join(str(node.ip(version)) for version in names.FAMILIES),
                    "running" if f"agent of {node.name}" in alive else "not running",
                    _bgp(node, reflecting, up),
                )
                for node in nodes
            ),
        ),
        _vms(),
        _pods(control.listing(LabPod)),
        _migrations(control.listing(LabMigration)),
    ]
    return "\n\n".join(part for part in parts if part)


def _bgp(node: names.LabNode, reflecting: Sequence[names.LabNode], up: AbstractSet[str]) -> str:
    """Its sessions with the ToR; of one family alone it says which, in brackets."""
    if reflecting and node not in reflecting:
        return "by a reflector"
    versions = names.FAMILIES.items()
    found = [family for version, family in versions if session(node.name, version) in up]
    if len(found) == len(versions):
        return "established"
    return f"down ({found[0]} established)" if found else "down"


def _vms() -> str:
    instances = {vmi.metadata.name: vmi for vmi in control.listing(LabVMI)}
    machines = [vm.metadata.name for vm in control.listing(LabVM)]
    alone = [name for name in instances if name not in machines]
    rows = [(name, *_instance(instances.get(name))) for name in (*machines, *alone)]
    return table(("VM", "PHASE", "NODE", "IP", "MAC"), rows) if rows else ""


def _instance(vmi: LabVMI | None) -> tuple[str, str, str, str]:
    if vmi is None:
        return "Stopped", "-", "-", "-"
    interface = next(iter(vmi.status.interfaces), None)
    return (
        vmi.status.phase or "Pending",
        vmi.status.node_name or "-",
        ", ".join(interface.ip_addresses) if interface else "-",
        interface.mac if interface else "-",
    )


def _pods(pods: Iterable[LabPod]) -> str:
    rows = [
        (
            f"{pod.metadata.namespace}/{pod.metadata.name}",
            pod.spec.node_name or "-",
            pod.status.phase,
            ", ".join(one.ip for one in pod.status.pod_ips) or "-",
            pod.status.message,
        )
        for pod in pods
    ]
    return table(("POD", "NODE", "PHASE", "IP", "WHY"), rows) if rows else ""


def _migrations(jobs: Iterable[LabMigration]) -> str:
    rows = [
        (
            job.metadata.name,
            job.spec.vmi_name,
            job.status.phase or "-",
            job.status.migration_state.source_node or "-",
            job.status.migration_state.target_node or "-",
            job.status.migration_state.failure_reason,
        )
        for job in jobs
    ]
    head = ("MIGRATION", "VM", "PHASE", "FROM", "TO", "WHY")
    return table(head, rows) if rows else ""
