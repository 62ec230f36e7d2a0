"""Policy first: is the node's packet filter programmed, and is it for this sandbox?

The agent writes one status file per endpoint once its policy is in the kernel. The file's name
is the pod's, so a file left by an earlier sandbox of that pod has the right name: it counts only
when its `containerID` is ours. Waiting is done on the directory's inotify events; only where the
kernel has no more watches to give is it looked at every `POLL` seconds.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Protocol

from libtortie.deadline import Deadline, run
from libtortie.files import read_bytes
from libtortie.linux.directory_watch import DirectoryWatch

POLL = 0.004
LOOK = 1.0
"""Seconds after which a watched directory is looked at all the same: another may be mounted."""
_NFT_DEADLINE = 30.0
TABLE = ("inet", "tortie")
DISPATCH = ("from-endpoints", "to-endpoints")
"""The maps of the agent's table that lead packets of an interface to its rules."""


class PolicyGate(Protocol):
    """What ADD, CHECK and STATUS ask about policy."""

    def ready(self) -> bool:
        """Whether an agent has programmed the kernel's table."""
        ...

    def wait(self, status_file: str, container_id: str, timeout: float) -> bool:
        """Wait up to `timeout` seconds for an endpoint's policy; False when time is over."""
        ...

    def policed(self) -> frozenset[str]:
        """The interfaces that the kernel's table has rules for, both ways."""
        ...


class Watch(Protocol):
    """A directory that is watched."""

    def wait(self, seconds: float) -> None:
        """Return when a file appears or `seconds` are over."""
        ...

    def close(self) -> None: ...


class FilePolicyGate:
    """`PolicyGate` over the agent's status files; `table_probe` answers `ready`.

    What waits is inside `at_rest` meanwhile.
    """

    def __init__(
        self,
        status_dir: Path,
        table_probe: Callable[[], bool],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        watch: Callable[[Path], Watch] = DirectoryWatch,
        at_rest: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._status_dir = status_dir
        self._table_probe = table_probe
        self._monotonic = monotonic
        self._sleep = sleep
        self._watch = watch
        self._at_rest = at_rest

    def ready(self) -> bool:
        """Whether an agent has programmed the kernel's table."""
        return self._table_probe()

    def wait(self, status_file: str, container_id: str, timeout: float) -> bool:
        """Look at once, at every change of the directory, and one last time at the deadline."""
        path = self._status_dir / status_file
        if _names(path, container_id):
            return True
        deadline = Deadline(timeout, self._monotonic)
        with ExitStack() as stack:
            stack.enter_context(self._at_rest())
            watch = self._watched(stack)
            while not _names(path, container_id):
                step = deadline.step(POLL if watch is None else LOOK)
                if not step:
                    return False
                if watch is None:
                    self._sleep(step)
                else:
                    watch.wait(step)
        return True

    def _watched(self, stack: ExitStack) -> Watch | None:
        """The directory, watched; None while there is none, or when no watches are left."""
        try:
            watch = self._watch(self._status_dir)
        except OSError:
            return None
        stack.callback(watch.close)
        return watch

    def policed(self) -> frozenset[str]:
        """The interfaces of both dispatch maps; none when nft cannot tell."""
        return nft_interfaces()


def _names(path: Path, container_id: str) -> bool:
    try:
        body = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("containerID") == container_id


def never_ready() -> bool:
    """The probe of a node on which no agent has ever started."""
    return False


def nft_table_present() -> bool:
    """Ask the kernel, by nft, whether the agent's table exists (the agent may be restarting)."""
    return _nft("-t", "list", "table", *TABLE) is not None


def nft_interfaces() -> frozenset[str]:
    """Interfaces that the agent's table dispatches from and to."""
    text = _nft("-j", "list", "table", *TABLE)
    return interfaces_of(json.loads(text)) if text else frozenset()


def interfaces_of(listing: Any) -> frozenset[str]:
    """The interfaces of both dispatch maps in what `nft -j list table` says."""
    found: dict[str, set[str]] = {name: set() for name in DISPATCH}
    for item in listing.get("nftables", ()):
        one = item.get("map") or {}
        for name in DISPATCH:
            if str(one.get("name", "")).startswith(f"{name}-"):
                found[name] |= {str(element[0]) for element in one.get("elem", ())}
    return frozenset.intersection(*map(frozenset, found.values()))


def _nft(*arguments: str) -> str | None:
    """What nft prints; None when it fails."""
    try:
        done = run(["nft", *arguments], Deadline(_NFT_DEADLINE))
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
