"""How many frames the anti-spoofing rules dropped, by what was forged; read from the kernel.

Counts begin anew when all rules are replaced, as a counter of Prometheus may. Reading runs `nft`,
so an answer is kept for `KEPT_SECONDS`.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from felix_shim.drivers.nftables_rules import TABLE
from libtortie.deadline import Deadline, run
from libtortie.errors import KernelError

KEPT_SECONDS = 10.0
RUN_SECONDS = 5.0
CHAINS = {
    "source": ("inet", "anti-spoofing"),
    "arp": ("arp", "from-workload"),
}
"""By reason the chain that ends in a drop of what is not the workload's own."""


def dropped(listing: str) -> int:
    """Packets that the dropping rules of a chain counted. Raises `KernelError` for no listing."""
    try:
        found = json.loads(listing)["nftables"]
        rules = [one["rule"]["expr"] for one in found if "rule" in one]
        return sum(_counted(rule) for rule in rules if any("drop" in each for each in rule))
    except (ValueError, TypeError, KeyError) as error:
        raise KernelError(f"nft's listing of a chain is none: {error!r}") from error


def _counted(rule: list[dict[str, Any]]) -> int:
    return sum(int(one["counter"]["packets"]) for one in rule if "counter" in one)


@dataclass(slots=True)
class ForgedFrames:
    """Asks `nft`; any thread. Raises `KernelError` when it cannot be asked."""

    binary: str = "nft"
    monotonic: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _read_at: float | None = None
    _kept: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    def read(self) -> Mapping[tuple[str, ...], float]:
        """By reason how many frames were dropped."""
        with self._lock:
            now = self.monotonic()
            if self._read_at is None or now - self._read_at >= KEPT_SECONDS:
                self._kept = {(reason,): float(count) for reason, count in self._ask()}
                self._read_at = now
            return self._kept

    def _ask(self) -> Iterator[tuple[str, int]]:
        for reason, (family, chain) in CHAINS.items():
            yield reason, dropped(self._run("-j", "list", "chain", family, TABLE, chain))

    def _run(self, *words: str) -> str:
        try:
            done = run([self.binary, *words], Deadline(RUN_SECONDS))
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelError(f"cannot run {self.binary}: {error}") from error
        if done.returncode:
            raise KernelError(done.stderr)
        return done.stdout
