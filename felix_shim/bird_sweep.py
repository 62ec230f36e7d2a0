"""What BIRD leaves behind in the kernel when its metric changes: found, replaced, deleted.

BIRD's routes outlive its kernel protocol (`persist`, so that a restart makes no hole), and the
metric is part of the kernel's key: after a change of the priorities it installs every route anew
and leaves the old one behind, for ever; with the lower metric of the two the old one wins.

Which metrics BIRD has had since the machine started is written down before it gets another one, and
crossed out when nothing of it is left: killed in between, the agent finishes the next time. Routes
of another metric are another BIRD's, perhaps, and never touched.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cni_plugin.durable import read_file, replace_file
from libtortie.deadline import Deadline
from libtortie.linux.port import Kernel, Route, RouteProto

PATIENCE_SECONDS = 3.0
"""How long BIRD has for its new routes before the old ones go all the same."""
PAUSE_SECONDS = 0.05
Metrics = Mapping[int, int]
"""BIRD's metric by family."""


@dataclass(slots=True)
class Sweeper:
    """One node's. `file` is where the metrics are written down."""

    kernel: Kernel
    file: Path
    pause: Callable[[float], None] = time.sleep

    def note(self, metrics: Metrics) -> None:
        """Before BIRD has them. Raises OSError when that cannot be written down."""
        known = self._read()
        wanted = {version: known.get(version, set()) | {one} for version, one in metrics.items()}
        if wanted != {version: known.get(version, set()) for version in metrics}:
            self._write(known | wanted)

    def sweep(self, metrics: Metrics) -> int:
        """After BIRD has them: delete the routes of earlier ones; how many there were.

        A route that BIRD installs again is deleted when it has. Raises `KernelError`, OSError.
        """
        known = self._read()
        if all(known.get(version) == {metric} for version, metric in metrics.items()):
            return 0
        count = 0
        for version, metric in metrics.items():
            if old := known.get(version, set()) - {metric}:
                count += self._sweep(version, metric, old)
        self._write(known | {version: {metric} for version, metric in metrics.items()})
        return count

    def _sweep(self, version: int, metric: int, old: set[int]) -> int:
        deadline, count = Deadline(PATIENCE_SECONDS), 0
        while stale := self._of(version, old):
            anew = {route.dst for route in self._of(version, {metric})}
            over = not deadline.step(PAUSE_SECONDS)
            for route in stale:
                if over or route.dst in anew:
                    count += self.kernel.delete_route(route)
            if over:
                break
            self.pause(PAUSE_SECONDS)
        return count

    def _of(self, version: int, metrics: set[int]) -> list[Route]:
        found = self.kernel.routes(version=version)
        return [one for one in found if one.proto == RouteProto.BIRD and one.priority in metrics]

    def _read(self) -> dict[int, set[int]]:
        """Metrics by family; a file that is none says nothing."""
        try:
            found = json.loads(read_file(self.file) or b"{}")
            return {int(version): set(map(int, metrics)) for version, metrics in found.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self, known: Mapping[int, set[int]]) -> None:
        body = {str(version): sorted(metrics) for version, metrics in sorted(known.items())}
        replace_file(self.file, json.dumps(body).encode(), 0o644)
