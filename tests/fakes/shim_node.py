"""A directory with one of the two installed CNI executables, and agents that treat it badly."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from cni_plugin import frame
from cni_plugin.durable import replace_file
from cni_plugin.program import DEADLINE, Front, executable, native_executable
from libtortie.errors import Unavailable

PYTHON = "/usr/bin/python3"
SECONDS = 120.0
"""How long any call may take before it counts as hanging."""

ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "K8S_POD_NAME=ünïcode;K8S_POD_NAMESPACE=default",
    "CNI_PATH": "/opt/cni/bin",
}
CONF = b'{"cniVersion":"0.4.0","name":"net","type":"tortie"}'

Handler = Callable[[socket.socket], None]


class Agent:
    """A listener that treats every connection in one way."""

    def __init__(self, path: Path, handler: Handler, backlog: int = 16) -> None:
        self.path = path
        self._handler = handler
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(backlog)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError, Unavailable):  # whoever called has gone
                self._handler(connection)

    def close(self) -> None:
        """Listen no more; the socket's file stays."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)


class ShimNode:
    """A directory with the installed executable."""

    def __init__(self, directory: Path, front: Front) -> None:
        self.front = front
        self.directory = directory
        self.socket = directory / "cni.sock"
        self.fallback = directory / "fallback"
        self.program = directory / "tortie"
        self.agents: list[Agent] = []
        self.install()

    def install(self, *, deadline: float = SECONDS) -> None:
        """Install, with another deadline than a node's; it is a constant of both executables."""
        places = str(self.socket), str(self.fallback)
        if self.front is Front.NATIVE:
            made = DEADLINE.filled(native_executable(*places), f"{deadline:g}")
        else:
            text = executable(*places, PYTHON).decode()
            assert "DEADLINE = 170.0" in text
            made = text.replace("DEADLINE = 170.0", f"DEADLINE = {deadline}").encode()
        replace_file(self.program, made, 0o755)

    def make_fallback(self) -> None:
        """A fallback that says what it was given and exits with 3."""
        script = (
            f"#!{sys.executable}\n"
            "import os, sys\n"
            "print('fallback', os.environ['CNI_COMMAND'], sys.argv[1:], sys.stdin.read())\n"
            "sys.exit(3)\n"
        )
        replace_file(self.fallback, script.encode(), 0o755)

    def agent(self, handler: Handler) -> Agent:
        """An agent, until the node is closed."""
        agent = Agent(self.socket, handler)
        self.agents.append(agent)
        return agent

    def begin(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the executable as a runtime does: its own environment, pipes for the rest."""
        env = {"PATH": "/usr/bin:/bin", "SECRET": "no", **ENV}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([str(self.program), *arguments], **{"env": env, **pipes, **options})

    def run(self, text: bytes = CONF, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end, with a text on its standard input unless `stdin` is given."""
        process = self.begin(**options)
        try:
            given = None if "stdin" in options else text
            stdout, stderr = process.communicate(given, timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess([], process.returncode, stdout, stderr)

    def close(self) -> None:
        """Close the agents."""
        with ExitStack() as stack:
            for agent in self.agents:
                stack.callback(agent.close)


def called_by(*command: str) -> subprocess.CompletedProcess[bytes]:
    """A command that runs an executable, in its own way, with what a runtime gives."""
    return subprocess.run(
        command, env=ENV, input=CONF, capture_output=True, timeout=SECONDS, check=False
    )


def error_of(done: subprocess.CompletedProcess[bytes]) -> tuple[int, str, str]:
    """Code, message and version of a CNI error, printed as one should be."""
    body = json.loads(done.stdout)
    assert done.returncode == 1
    assert done.stderr == b""
    return body["code"], body["msg"], body["cniVersion"]


def serving(seen: list[frame.Request], code: int, stdout: bytes) -> Handler:
    """Read one request, give one answer."""

    def handle(connection: socket.socket) -> None:
        seen.append(frame.read_request(connection))
        connection.sendall(frame.encode_response(code, stdout))

    return handle
