"""An agent that can be struck: as long as a file is there, one of its parts does not do its work.

Run as `python -m tests.fakes.stricken_agent`, as the agent is; `STRICKEN` names the directory. The
file `stall` stops the reconciler's thread; `watch` makes each watch of the API fail. `fault` is for
one time: the reconciler's thread fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from felix_shim import agent
from felix_shim.reconciler import Reconciler
from libtortie.errors import Unavailable
from libtortie.kube.client import HttpKubeClient

DIRECTORY = Path(os.environ["STRICKEN"])


def strike() -> None:
    """Put the faults between the parts and their work."""
    turn, watch = Reconciler.turn, HttpKubeClient.watch

    def stalled(self: Reconciler, *, wait: bool) -> bool:
        while (DIRECTORY / "stall").exists():
            time.sleep(0.01)
        if (DIRECTORY / "fault").exists():
            (DIRECTORY / "fault").unlink()
            raise RuntimeError("a fault of its own")
        return turn(self, wait=wait)

    def broken(self: HttpKubeClient, *args: Any, **options: Any) -> Iterator[Any]:
        if (DIRECTORY / "watch").exists():
            raise Unavailable("watches are broken here")
        return watch(self, *args, **options)

    Reconciler.turn = stalled  # type: ignore[method-assign]  # what this module is for
    HttpKubeClient.watch = broken  # type: ignore[method-assign]  # the same


if __name__ == "__main__":
    strike()
    agent.main()
