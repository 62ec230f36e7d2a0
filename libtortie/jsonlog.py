"""A daemon's log: one JSON object per line, one line per decision.

Field names are the product's words (`endpoint`, `episode`, `container_id` ...), values are plain
JSON; anything else is written as text. Never tokens, never what came in on stdin. A log that
cannot be written never stops the daemon.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

from libtortie.errors import InvalidInput
from libtortie.rotating import Limits, RotatingFile

Level = Literal["debug", "info", "warning", "error"]
_TROUBLE = ("_error", "_failed", "_timeout", "_unknown")
_RANK: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Hearer = Callable[[str, Mapping[str, object]], None]
"""What is told of each line, its event and fields, on the caller's thread: it must neither wait nor
raise."""


def level_of(event: str) -> Level:
    """What failed is a warning."""
    return "warning" if event.endswith(_TROUBLE) else "info"


class Log(Protocol):
    """Where decisions are told."""

    def debug(self, event: str, **fields: object) -> None: ...

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...


class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class JsonLog:
    """Lines to a stream; safe from any thread."""

    def __init__(
        self,
        stream: Stream,
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
        self._hearers: tuple[Hearer, ...] = ()

    def listen(self, hear: Hearer) -> None:
        """Have every decision from now on told to `hear` too, whatever the level of its line."""
        self._hearers = (*self._hearers, hear)

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

    def event(self, event: str, /, **fields: object) -> None:
        """A line whose level follows from its name: what failed is a warning."""
        self._write(level_of(event), event, fields)

    def _write(self, level: Level, event: str, fields: dict[str, object]) -> None:
        for hear in self._hearers:
            hear(event, fields)
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
        line.update({name: plain(value) for name, value in fields.items()})
        text = json.dumps(line, ensure_ascii=False, default=str)
        with self._lock:
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # a full disk or a closed stream must not stop the daemon


class LoggingBridge(logging.Handler):
    """Turns records of the standard library's `logging` into lines of a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One record, one line; a traceback becomes a field."""
        fields: dict[str, object] = {"logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        tell = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        tell("library", **fields)


def bridge_logging(log: Log) -> None:
    """What libraries say through `logging` becomes lines of ours, from warnings on."""
    root = logging.getLogger()
    root.handlers[:] = [LoggingBridge(log)]
    root.setLevel(logging.WARNING)


class NullLog:
    """Says nothing."""

    def debug(self, event: str, **fields: object) -> None: ...

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...


def open_log(path: str, level: Level, node: str, limits: Limits | None = None) -> JsonLog:
    """The log at `path` (appended to; its directory is made), or standard error when empty.

    A file that reaches its limits is set aside, and a line whose writer was killed in the middle
    of it spoils none of ours (`RotatingFile`). Raises `InvalidInput`.
    """
    if not path:
        return JsonLog(sys.stderr, level=level, node=node)
    try:
        return JsonLog(RotatingFile(Path(path), limits), level=level, node=node)
    except OSError as error:
        raise InvalidInput(f"log_file {path}: {error}") from error


def plain(value: object) -> object:
    """A field's value as JSON has it: names as text, what has no form of its own as well."""
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)
