"""Policy first: is the node's packet filter programmed, and is it for this sandbox?

The agent writes one status file per endpoint once its policy is in the kernel. The file's name
is the pod's, so a file left by an earlier sandbox of that pod has the right name: it counts only
when its `containerID` is ours.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_POLL = 0.01
_NFT_DEADLINE = 30.0


class PolicyGate(Protocol):
    """What ADD and STATUS ask about policy."""

    def ready(self) -> bool:
        """Whether an agent has programmed the kernel's table."""
        ...

    def wait(self, status_file: str, container_id: str, timeout: float) -> bool:
        """Wait up to `timeout` seconds for an endpoint's policy; False when time is over."""
        ...


class FilePolicyGate:
    """`PolicyGate` over the agent's status files; `table_probe` answers `ready`."""

    def __init__(
        self,
        status_dir: Path,
        table_probe: Callable[[], bool],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._status_dir = status_dir
        self._table_probe = table_probe
        self._monotonic = monotonic
        self._sleep = sleep

    def ready(self) -> bool:
        """Whether an agent has programmed the kernel's table."""
        return self._table_probe()

    def wait(self, status_file: str, container_id: str, timeout: float) -> bool:
        """Look at once, then every 10 ms, and one last time at the deadline."""
        end = self._monotonic() + timeout
        path = self._status_dir / status_file
        while not _names(path, container_id):
            if self._monotonic() >= end:
                return False
            self._sleep(_POLL)
        return True


def _names(path: Path, container_id: str) -> bool:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and body.get("containerID") == container_id


def never_ready() -> bool:
    """The probe of a node on which no agent has ever started."""
    return False


def nft_table_present() -> bool:
    """Ask the kernel, by nft, whether the agent's table exists (the agent may be restarting)."""
    try:
        done = subprocess.run(
            ["nft", "list", "table", "inet", "tortie"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_NFT_DEADLINE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
