"""Looks regularly whether something a daemon depends on answers, and says what is wrong with it.

Each `Prober` has a thread of its own, so that one that hangs hides no other: what has not answered
for `LATE_SECONDS` is away, whether it said so or not. A probe never changes what it looks at.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from libtortie.errors import NotFound, TortieError, Unauthorized, first_line
from libtortie.kube.client import HttpKubeClient

PERIOD_SECONDS = 4.0
LATE_SECONDS = 12.0
FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Looked:
    """How the last looks went: when one last began that ended well (None: none did), and what the
    last one failed of; empty if it did not. Monotonic seconds."""

    good: float | None
    error: str = ""


def complaint(looked: Looked, began: float, now: float) -> str:
    """What is wrong; empty if nothing is. `began` is when the looking did. Pure."""
    if looked.error:
        return looked.error
    silent = now - (began if looked.good is None else looked.good)
    return f"no answer for {silent:.0f} s" if silent >= LATE_SECONDS else ""


@dataclass(slots=True)
class Prober:
    """`look` raises `TortieError` or OSError for what is wrong. `run` is a thread's body."""

    name: str
    look: Callable[[], object]
    monotonic: Callable[[], float] = time.monotonic
    period: float = PERIOD_SECONDS
    _looked: Looked = Looked(None)
    _began: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._began = self.monotonic()

    def run(self) -> None:
        """Look again and again, until `stop`."""
        while True:
            self.once()
            if self._stop.wait(self.period):
                return

    def stop(self) -> None:
        """Make `run` return after the look it is at."""
        self._stop.set()

    def once(self) -> None:
        """One look."""
        began = self.monotonic()
        try:
            self.look()
        except (TortieError, OSError) as error:
            self._looked = Looked(self._looked.good, first_line(error) or type(error).__name__)
        else:
            self._looked = Looked(began)

    def wrong(self) -> str:
        """What is wrong now; from any thread."""
        return complaint(self._looked, self._began, self.monotonic())


def answers(ask: Callable[[], object]) -> None:
    """Whatever is answered will do, be it that there is no such thing, or that we may not."""
    try:
        ask()
    except (NotFound, Unauthorized):
        return


def api_answers(kube: HttpKubeClient) -> None:
    """Whether the Kubernetes API takes requests. Raises as the client."""
    answers(lambda: kube.raw("GET", "/readyz"))


def can_write(directory: Path) -> None:
    """Whether a directory keeps a file of a page; a kill leaves nothing. Raises OSError."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, f"{directory}: {error.strerror}") from error
