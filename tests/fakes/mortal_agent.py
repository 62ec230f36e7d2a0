"""`tortie-node` that dies where a test wants it to: armed by a file, while it runs.

The file beside the configuration, `die.json`, names a thread and a step, both by how they begin,
and the how manieth such step from now on is the last: `{"thread": "cni", "step": "", "nth": 3}`.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from felix_shim.agent import main
from tests.fakes.mortal import Steps, die

ARMED = "die.json"


class Fuse:
    """Counts the steps that the file names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts: dict[str, int] = {}

    def step(self, what: str) -> None:
        """A thread is about to do something."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return
        order = json.loads(text)
        thread = threading.current_thread().name
        if not (thread.startswith(order["thread"]) and what.startswith(order["step"])):
            return
        self._counts[text] = self._counts.get(text, 0) + 1
        if self._counts[text] == order["nth"]:
            die()


def arm(path: Path, thread: str, step: str, nth: int = 1) -> None:
    """Have the agent whose configuration is in this directory die there."""
    draft = path / f".{ARMED}"
    draft.write_text(json.dumps({"thread": thread, "step": step, "nth": nth}))
    draft.replace(path / ARMED)


def disarm(path: Path) -> None:
    """Let the next agent live."""
    (path / ARMED).unlink(missing_ok=True)


if __name__ == "__main__":
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    Steps(Fuse(config.with_name(ARMED)).step)
    main()
