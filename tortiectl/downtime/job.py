"""The figures of one migration, whoever measured them. Pure.

Sizes are bytes, times milliseconds, rates per second. None is "the source does not say", never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a migration ended, if it has."""

    COMPLETED = "completed"
    RUNNING = "running"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Job:
    """One migration. `source` names the program whose figures these are.

    `total_ms` of libvirt is wider than QEMU's: it begins before the connection is made. The
    `..._net` times are without what the network between two libvirts took. `bandwidth` is the last
    sample of the memory stream.
    """

    source: str
    outcome: Outcome = Outcome.UNKNOWN
    operation: str = ""
    total_ms: float | None = None
    total_net_ms: float | None = None
    remaining_ms: float | None = None
    downtime_ms: float | None = None
    downtime_net_ms: float | None = None
    expected_downtime_ms: float | None = None
    setup_ms: float | None = None
    data_processed: float | None = None
    data_remaining: float | None = None
    data_total: float | None = None
    memory_processed: float | None = None
    memory_remaining: float | None = None
    memory_total: float | None = None
    file_processed: float | None = None
    file_remaining: float | None = None
    file_total: float | None = None
    bandwidth: float | None = None
    file_bandwidth: float | None = None
    dirty_pages: float | None = None
    page_size: float | None = None
    iterations: float | None = None
    postcopy_requests: float | None = None
    constant_pages: float | None = None
    normal_pages: float | None = None
    normal_data: float | None = None
    throttle_percent: float | None = None
    network_downtime_ms: float | None = None
    error: str = ""

    @property
    def average_bandwidth(self) -> float | None:
        """Bytes a second over the whole migration."""
        if self.data_processed is None or not self.total_ms:
            return None
        return self.data_processed * 1000 / self.total_ms

    @property
    def dirty_rate(self) -> float | None:
        """Bytes a second that the guest dirtied; pages are of 4 KiB where no size is given."""
        if self.dirty_pages is None:
            return None
        return self.dirty_pages * (self.page_size or 4096)
