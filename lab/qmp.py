"""QEMU's machine protocol: one command there, one answer back, over its unix socket.

The socket is connected once QEMU listens; every wait has a deadline. Events are kept in the order
they came, each with QEMU's own wall-clock time.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from lab.tools import LabError

DEADLINE_S = 120.0
LOOK_S = 0.05


class QmpError(LabError):
    """QEMU refused a command; the text names the command and QEMU's reason."""


class QmpGone(LabError):
    """QEMU has let go of the connection: it has ended, or dies and is in /proc still."""


class Qmp:
    """A connection that is in command mode."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        """Take the greeting and leave the negotiation. Raises `LabError`."""
        self.events: list[dict[str, Any]] = []
        self._socket, self._name = sock, name
        self._left = b""
        self._read(time.monotonic() + DEADLINE_S)
        self.do("qmp_capabilities")

    @classmethod
    def connect(cls, path: Path, alive: Callable[[], bool], deadline: float = DEADLINE_S) -> Self:
        """Connect when there is somebody. Raises `LabError` when QEMU ends before, or never does.

        `deadline` is in seconds.
        """
        end = time.monotonic() + deadline
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(str(path))
                return cls(sock, path.name)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                sock.close()
                if not alive() or time.monotonic() > end:
                    raise LabError(f"{path}: QEMU does not answer: {error.strerror}") from error
            except BaseException:
                sock.close()
                raise
            time.sleep(LOOK_S)

    def do(self, command: str, /, *, deadline: float = DEADLINE_S, **arguments: Any) -> Any:
        """A command's answer; `_` in an argument's name is QEMU's `-`.

        Raises `QmpError` for a refusal, `QmpGone`, or `LabError` when QEMU is silent.
        """
        said: dict[str, Any] = {"execute": command}
        if arguments:
            said["arguments"] = {key.replace("_", "-"): each for key, each in arguments.items()}
        end = time.monotonic() + deadline
        try:
            self._socket.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise QmpGone(f"{self._name}: QEMU is gone: {error.strerror}") from error
        while True:
            answer = self._read(end)
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise QmpError(f"{self._name}: {command}: {answer['error']['desc']}")
            else:
                return answer["return"]

    def close(self) -> None:
        """Let go of the connection; QEMU goes on."""
        self._socket.close()

    def _read(self, end: float) -> dict[str, Any]:
        """The next message."""
        while b"\n" not in self._left:
            left = end - time.monotonic()
            if left <= 0:
                raise LabError(f"{self._name}: QEMU does not answer")
            self._socket.settimeout(left)
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise QmpGone(f"{self._name}: QEMU is gone: {error.strerror}") from error
            if not part:
                raise QmpGone(f"{self._name}: QEMU has ended")
            self._left += part
        line, _, self._left = self._left.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
