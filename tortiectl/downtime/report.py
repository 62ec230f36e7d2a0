"""A migration's figures and a forecast as text and JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tortiectl.downtime.amounts import duration, rate, size
from tortiectl.downtime.forecast import Forecast, Load
from tortiectl.downtime.job import Job, Outcome

_WIDTH = 18
_NOT_TOLD = "not told"


def lines(job: Job, title: str) -> Iterator[str]:
    """For people; what the source does not say is left out, but for the six chief figures."""
    head = ", ".join(filter(None, (job.operation, str(job.outcome), f"by {job.source}")))
    yield f"{title}: {head}" if title else head
    for name, text in _rows(job):
        yield f"  {name:<{_WIDTH}} {text}"


def _rows(job: Job) -> Iterator[tuple[str, str]]:
    yield "total time", _with(job.total_ms, job.total_net_ms)
    if job.outcome is Outcome.RUNNING and job.downtime_ms is None:
        yield "expected downtime", _told(job.expected_downtime_ms, duration)
    else:
        yield "downtime", _with(job.downtime_ms, job.downtime_net_ms)
    if job.network_downtime_ms is not None:
        yield "network downtime", f"{duration(job.network_downtime_ms)} more, the network's own"
    yield "data processed", _of(job.data_processed, job.data_total)
    if job.file_processed:
        yield "of it disks", _of(job.file_processed, job.file_total)
    yield "bandwidth", _bandwidth(job)
    if job.dirty_rate is not None:
        pages = f"{job.dirty_pages:.0f} pages/s"
        yield "dirty rate", f"{rate(job.dirty_rate)} ({pages})"
    yield "iterations", _told(job.iterations, lambda value: f"{value:.0f}")
    if job.postcopy_requests:
        yield "post-copy requests", f"{job.postcopy_requests:.0f}"
    if job.throttle_percent:
        yield "guest slowed by", f"{job.throttle_percent:.0f} %"
    if job.setup_ms is not None:
        yield "setup", duration(job.setup_ms)
    if job.error:
        yield "error", job.error


def _told(value: float | None, form: Any) -> str:
    return _NOT_TOLD if value is None else str(form(value))


def _with(value: float | None, net: float | None) -> str:
    """A time, and what it is without the network between the hosts."""
    if value is None or net is None or net == value:
        return _told(value, duration)
    return f"{duration(value)} ({duration(net)} without the network's part)"


def _of(part: float | None, whole: float | None) -> str:
    text = _told(part, size)
    return text if whole is None or part is None else f"{text} of {size(whole)}"


def _bandwidth(job: Job) -> str:
    parts = []
    if job.average_bandwidth is not None:
        parts.append(f"{rate(job.average_bandwidth)} on average")
    if job.bandwidth is not None:
        parts.append(f"{rate(job.bandwidth)} at the end")
    return ", ".join(parts) or _NOT_TOLD


def document(job: Job, vm: str) -> dict[str, Any]:
    """For programs; null is what the source does not say."""
    return {
        "vm": vm,
        "source": job.source,
        "outcome": str(job.outcome),
        "operation": job.operation,
        "total_time_ms": job.total_ms,
        "total_time_without_network_ms": job.total_net_ms,
        "downtime_ms": job.downtime_ms,
        "downtime_without_network_ms": job.downtime_net_ms,
        "expected_downtime_ms": job.expected_downtime_ms,
        "network_downtime_ms": job.network_downtime_ms,
        "setup_ms": job.setup_ms,
        "data_processed_bytes": _whole(job.data_processed),
        "data_remaining_bytes": _whole(job.data_remaining),
        "data_total_bytes": _whole(job.data_total),
        "memory_processed_bytes": _whole(job.memory_processed),
        "memory_total_bytes": _whole(job.memory_total),
        "disks_processed_bytes": _whole(job.file_processed),
        "bandwidth_bytes_per_second": _whole(job.bandwidth),
        "average_bandwidth_bytes_per_second": _whole(job.average_bandwidth),
        "dirty_rate_bytes_per_second": _whole(job.dirty_rate),
        "iterations": _whole(job.iterations),
        "postcopy_requests": _whole(job.postcopy_requests),
        "throttle_percent": job.throttle_percent,
        "error": job.error,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def forecast_lines(load: Load, found: Forecast) -> Iterator[str]:
    """A forecast for people."""
    disks = f" and {size(load.disks)} of disks" if load.disks else ""
    yield f"{size(load.memory)} of memory{disks} at {rate(load.bandwidth)}: {found.verdict}"
    if found.seconds is not None and found.downtime_ms is not None:
        yield f"  {'expected time':<{_WIDTH}} {duration(found.seconds * 1000)}"
        yield f"  {'expected downtime':<{_WIDTH}} {duration(round(found.downtime_ms))}"
        yield f"  {'iterations':<{_WIDTH}} {found.rounds}"
        yield f"  {'data':<{_WIDTH}} {size(found.bytes_sent or 0)}"
    if found.disk_seconds and math.isfinite(found.disk_seconds):
        yield f"  {'of it disks':<{_WIDTH}} {duration(found.disk_seconds * 1000)}"
    limit = "none" if found.limit_seconds is None else duration(found.limit_seconds * 1000)
    yield f"  {'time limit':<{_WIDTH}} {limit}"
    yield f"  {'why':<{_WIDTH}} {found.reason}"


def forecast_document(load: Load, found: Forecast) -> dict[str, Any]:
    """A forecast for programs."""
    return {
        "memory_bytes": _whole(load.memory),
        "disks_bytes": _whole(load.disks),
        "bandwidth_bytes_per_second": _whole(load.bandwidth),
        "dirty_rate_bytes_per_second": _whole(load.dirty_rate),
        "verdict": found.verdict.name.lower(),
        "converges": found.seconds is not None,
        "expected_seconds": found.seconds,
        "expected_downtime_ms": found.downtime_ms,
        "expected_bytes": _whole(found.bytes_sent),
        "disk_seconds": found.disk_seconds if math.isfinite(found.disk_seconds) else None,
        "limit_seconds": found.limit_seconds,
        "iterations": found.rounds,
        "reason": found.reason,
    }
