"""The agent's log: one JSON object per line, one line per decision.

Field names are the product's words (`endpoint`, `episode`, `container_id` ...), values are plain
JSON; anything else is written as text. Never tokens, never what came in on stdin. A log that
cannot be written never stops the agent.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal, Protocol

from libtortie.errors import InvalidInput

Level = Literal["debug", "info", "warning", "error"]
_RANK: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log(Protocol):
    """Where decisions are told."""

    def debug(self, event: str, **fields: object) -> None: ...

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...


class JsonLog:
    """Lines to a stream; safe from any thread."""

    def __init__(
        self,
        stream: IO[str],
        *,
        level: Level = "info",
        now: Callable[[], float] = time.time,
        node: str = "",
    ) -> None:
        self._stream = stream
        self._threshold = _RANK[level]
        self._now = now
        self._node = node
        self._lock = threading.Lock()

    def debug(self, event: str, **fields: object) -> None:
        """Something only a developer wants to know."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """A decision."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something failed and will be tried again."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something needs a person."""
        self._write("error", event, fields)

    def _write(self, level: Level, event: str, fields: dict[str, object]) -> None:
        if _RANK[level] < self._threshold:
            return
        now = self._now()
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f"{now % 1:.6f}Z"[1:],
            "level": level,
            "event": event,
        }
        if self._node:
            line["node"] = self._node
        line.update({name: _plain(value) for name, value in fields.items()})
        text = json.dumps(line, ensure_ascii=False, default=str)
        with self._lock:
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # a full disk or a closed stream must not stop the agent


class NullLog:
    """Says nothing."""

    def debug(self, event: str, **fields: object) -> None: ...

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...


def open_log(path: str, level: Level, node: str) -> JsonLog:
    """The log at `path` (appended to; its directory is made), or standard error when empty."""
    if not path:
        return JsonLog(sys.stderr, level=level, node=node)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return JsonLog(Path(path).open("a", encoding="utf-8"), level=level, node=node)
    except OSError as error:
        raise InvalidInput(f"log_file {path}: {error}") from error


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)
