"""What our own programs recorded of migrations. Pure.

Two kinds: `report.json` of the lab's demo, whose rows have the guest's pause and what the network
added to it, and an agent's log (JSON lines), of which only what a migration's target did is read:
from the VM's first frame to its route in the kernel is what the agent itself added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libtortie.errors import InvalidInput, NotFound
from libtortie.kube.objects import LAUNCHER_PREFIX
from tortiectl.downtime.amounts import number
from tortiectl.downtime.job import Job, Outcome
from tortiectl.downtime.qmp import documents

SOURCE = "tortie"
_ROUTE = "route_raised"


def is_report(value: Any) -> bool:
    """Whether a JSON value is a demo's report."""
    return isinstance(value, Mapping) and isinstance(value.get("migrations"), list)


def parse_records(text: str, vm: str = "") -> Job:
    """The last migration of a VM (empty: of any). Raises `InvalidInput`, `NotFound`."""
    values = list(documents(text))
    if len(values) == 1 and is_report(values[0]):
        return _of_report(values[0]["migrations"], vm)
    lines = [value for value in values if isinstance(value, Mapping) and "event" in value]
    if not lines:
        raise InvalidInput("neither a demo's report.json nor an agent's log is in it")
    return _of_log(lines, vm)


def _of_report(rows: Sequence[Any], vm: str) -> Job:
    name = vm.rpartition("/")[2]
    for row in reversed(rows):
        if isinstance(row, Mapping) and (not name or row.get("vm") == name):
            return _job(row)
    known = sorted({str(row.get("vm")) for row in rows if isinstance(row, Mapping)})
    raise NotFound(f"no migration of {vm or 'any VM'} is recorded; recorded are {', '.join(known)}")


def _of_log(lines: Sequence[Mapping[str, Any]], vm: str) -> Job:
    """What a target's agent did: every address of the VM's last raise, the slowest counts."""
    raises = [line for line in lines if line["event"] == _ROUTE and _runs(line, vm)]
    latencies = [
        latency
        for line in raises
        if _raise_of(line) == _raise_of(raises[-1])
        and (latency := number(line.get("latency_ms"))) is not None
    ]
    if not latencies:
        raise NotFound(f"this agent's log tells of no cut-over of {vm or 'any VM'} to its node")
    return Job(
        SOURCE,
        Outcome.UNKNOWN,
        operation=f"cut-over to {raises[-1].get('node', '?')}",
        network_downtime_ms=max(latencies),
    )


def _runs(line: Mapping[str, Any], vm: str) -> bool:
    """Whether a line is about a launcher of the VM (`namespace/name`, or its name alone)."""
    namespace, _, name = vm.rpartition("/")
    place, _, pod = str(line.get("endpoint", "")).partition("/")
    pod = pod.partition("/")[0]
    if not pod.startswith(LAUNCHER_PREFIX):
        return False
    runs = pod.removeprefix(LAUNCHER_PREFIX).rpartition("-")[0]
    return not vm or (runs == name and namespace in ("", place))


def _raise_of(line: Mapping[str, Any]) -> tuple[str, Any]:
    return str(line.get("endpoint")), line.get("episode")


def _job(row: Mapping[str, Any]) -> Job:
    phase = row.get("phase")
    return Job(
        SOURCE,
        {"Succeeded": Outcome.COMPLETED, "Failed": Outcome.FAILED}.get(str(phase), Outcome.UNKNOWN),
        operation=f"{row.get('source_node', '?')} to {row.get('target_node', '?')}",
        downtime_ms=number(row.get("guest_blackout_ms")),
        network_downtime_ms=number(row.get("network_downtime_ms")),
    )
