"""An agent that answers every request at once with the same result: what is left is the shim."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cni_plugin.frame import encode_response, read_request

ANSWER = encode_response(0, b'{"cniVersion":"1.0.0","interfaces":[],"ips":[],"dns":{}}\n')


@contextmanager
def echo_agent(path: Path) -> Iterator[None]:
    """A process that listens at `path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        pid = os.fork()
        if pid == 0:
            _serve(listener)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(listener: socket.socket) -> None:
    try:
        while True:
            client, _ = listener.accept()
            with client:
                read_request(client)
                client.sendall(ANSWER)
    finally:
        os._exit(1)
