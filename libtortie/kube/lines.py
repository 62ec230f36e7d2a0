"""Watch streams: bytes in, whole events out. Pure; chunk borders mean nothing.

The API server writes one JSON object a line: `{"type": ..., "object": {...}}`. An ERROR event
carries a Status in an answer that began with 200, and is an error, never an object. What remains
when the stream ends in mid-line is a broken connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libtortie import errors
from libtortie.kube.replies import error_of, parse

MAX_LINE = 16 << 20  # etcd's largest value is 1.5 MiB by default; JSON and slack
_OBJECTS = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event: its type and the object's JSON."""

    type: str
    object: dict[str, Any]

    @property
    def resource_version(self) -> str:
        """Where a watch that has seen this event resumes."""
        metadata = self.object.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        return version if isinstance(version, str) else ""


class LineSplitter:
    """Collects bytes into lines of at most `limit` bytes."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def pending(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._held > 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Whole, non-blank lines. Raises `Malformed` when one is too long."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._hold(line)
            joined = b"".join(self._parts).strip()
            self._parts, self._held = [], 0
            if joined:
                yield joined
        self._hold(rest)

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._limit:
            raise errors.Malformed(f"a watch line is longer than {self._limit} bytes")
        if part:
            self._parts.append(part)


def decode_line(line: bytes, context: str) -> RawEvent:
    """One event. Raises `Compacted` (410), other typed errors of an ERROR event, `Malformed`."""
    event = parse(line, context)
    kind, found = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(found, dict):
        raise errors.Malformed(f"{context}: a watch line is not an event")
    if kind == "ERROR":
        raise _failure(found, context)
    if kind not in _OBJECTS:
        raise errors.Malformed(f"{context}: unknown watch event type")
    return RawEvent(kind, found)


def _failure(status: dict[str, Any], context: str) -> errors.TortieError:
    code, reason = status.get("code"), status.get("reason")
    if not isinstance(code, int) or isinstance(code, bool):
        code = 410 if reason in ("Expired", "Gone") else 500
    message = status.get("message")
    text = " ".join(message.split())[:400] if isinstance(message, str) else ""
    text = f"{context}: the server ended the watch: {text or f'status {code}'}"
    # A code that is no failure (or a redirect) inside an ERROR event: retry, do not trust it.
    return error_of(code if code >= 400 else 500, reason if isinstance(reason, str) else "", text)
