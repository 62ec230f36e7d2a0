"""Asks a daemon over its control socket: one JSON object there, one back, a line each.

Imports nothing of weight: command lines use it.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from libtortie.errors import Malformed, TortieError, Unavailable

DEFAULT_SOCKET = "/run/tortie/migration-proxy.sock"
ANSWER_SECONDS = 5.0
MOST_BYTES = 16 << 20


class Refused(TortieError):
    """The daemon refused a request; the text is its own."""


def ask(path: str, request: dict[str, Any], *, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """The daemon's answer. Raises `Refused`, `Unavailable` that names the cause, `Malformed`.

    `seconds` is for all of it.
    """
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.settimeout(seconds)
            sock.connect(path)
            sock.sendall(json.dumps(request).encode() + b"\n")
            answer = _line(sock, end)
        except OSError as error:
            raise Unavailable(f"{path}: {_cause(path, error, seconds)}") from error
    return _checked(path, answer)


def _line(sock: socket.socket, end: float) -> bytes:
    parts, size = [], 0
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        part = sock.recv(65536)
        parts.append(part)
        size += len(part)
        if not part or part.endswith(b"\n") or size > MOST_BYTES:
            return b"".join(parts)


def _checked(path: str, answer: bytes) -> dict[str, Any]:
    if not answer.endswith(b"\n"):
        raise Unavailable(f"{path}: the daemon ended in the middle of its answer")
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path}: its answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Malformed(f"{path}: its answer is no object")
    if not found.get("ok"):
        raise Refused(str(found.get("error", "refused without a reason")))
    return found


def _cause(path: str, error: OSError, seconds: float) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such socket: is the daemon running here?"
    if isinstance(error, ConnectionRefusedError):
        return "the daemon that made it has ended: start it"
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"no answer within {seconds:g} s: the daemon hangs"
    if isinstance(error, PermissionError):
        return "permission denied: ask as root"
    if not Path(path).name or "too long" in str(error):
        return "not a usable path of a socket"
    return error.strerror or str(error)
