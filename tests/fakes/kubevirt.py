"""KubeVirt's own migration proxy, as a process; `make peer` builds it from KubeVirt's modules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from migration_proxy.config import CLIENT_CNS, SERVER_CNS
from tests.fakes.certificates import Authority

PROGRAM = Path(__file__).parents[2] / "build/peer/kubevirtproxy"
MIGRATION_CN, HANDLER_CN = CLIENT_CNS


class Refused(Exception):
    """What KubeVirt's code answered instead."""


class KubeVirtProxy:
    """A virt-handler's proxy manager."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start_target(self, key: str, files: Sequence[str]) -> dict[str, int]:
        """StartTargetListener, GetTargetListenerPorts. Raises `Refused`."""
        found: dict[str, int] = self._ask(op="start-target", key=key, files=files)["ports"]
        return found

    def start_source(
        self, key: str, address: str, ports: Mapping[str, int], base: str
    ) -> list[str]:
        """StartSourceListener, GetSourceListenerFiles. Raises `Refused`."""
        asked = {"key": key, "address": address, "ports": ports, "base": base}
        found: list[str] = self._ask(op="start-source", **asked)["files"]
        return found

    def shut_down(self) -> None:
        """InitiateGracefulShutdown."""
        self._ask(op="shutdown")

    def _ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        return answer


@contextmanager
def kubevirt_proxy(
    authority: Authority, trusted: Authority | None = None, *, disable_tls: bool = False
) -> Iterator[KubeVirtProxy]:
    """A virt-handler with certificates of one authority that trusts another one's, or its own."""
    pairs = {
        "server": authority.server(SERVER_CNS[0]),
        "client": authority.client(HANDLER_CN),
        "migration": authority.client(MIGRATION_CN),
    }
    arguments = [f"--{name}={files.cert}" for name, files in pairs.items()]
    arguments.append(f"--ca={(trusted or authority).cert}")
    if disable_tls:
        arguments.append("--disable-tls")
    with subprocess.Popen(
        [str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield KubeVirtProxy(process)
        finally:
            process.kill()
