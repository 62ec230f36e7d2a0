"""The real kubectl against an API server: commands that end, and commands that go on."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lab.apiserver import kubeconfig
from lab.apiserver.server import ApiServer

BINARY = Path(sys.executable).parent / "kubectl"
DEADLINE = 180.0  # seconds


class Running:
    """A kubectl that goes on; its lines come as it prints them."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, word: str) -> str:
        """The next line with this word in it."""
        ends = time.monotonic() + DEADLINE
        while True:
            line = self._lines.get(timeout=max(0.0, ends - time.monotonic()))
            assert line is not None, f"ended without {word!r}: {self.seen}"
            self.seen.append(line)
            if word in line:
                return line

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(DEADLINE)
        self._reader.join()
        while (line := self._lines.get()) is not None:
            self.seen.append(line)
        return code

    def stop(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Kubectl:
    """kubectl with a configuration and a home of its own."""

    def __init__(self, directory: Path, config: Path) -> None:
        self._directory = directory
        self._env = {"HOME": str(directory), "KUBECONFIG": str(config), "PATH": "/usr/bin:/bin"}
        self._running: list[Running] = []

    def _try(self, argv: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BINARY), *argv],
            env=self._env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def __call__(self, *argv: str, stdin: str = "") -> str:
        """What it prints; it must succeed."""
        done = self._try(argv, stdin)
        assert done.returncode == 0, f"kubectl {' '.join(argv)}: {done.stderr}{done.stdout}"
        return done.stdout

    def warned(self, *argv: str, stdin: str = "") -> str:
        """What it prints on standard error; it must succeed."""
        done = self._try(argv, stdin)
        assert done.returncode == 0, f"kubectl {' '.join(argv)}: {done.stderr}{done.stdout}"
        return done.stderr

    def refused(self, *argv: str, stdin: str = "") -> str:
        """What it says; it must fail."""
        done = self._try(argv, stdin)
        assert done.returncode != 0, f"kubectl {' '.join(argv)} succeeded: {done.stdout}"
        return done.stderr + done.stdout

    def read(self, *argv: str) -> Any:
        """`get … -o json`."""
        return json.loads(self("get", *argv, "-o", "json"))

    def rows(self, *argv: str) -> list[list[str]]:
        """`get …` as words, the header first."""
        return [line.split() for line in self("get", *argv).splitlines()]

    def create(self, *bodies: dict[str, Any]) -> None:
        """Create objects."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(bodies)}
        self("create", "-f", "-", stdin=json.dumps(listed))

    def start(self, *argv: str) -> Running:
        """Start one that goes on."""
        made = Running([str(BINARY), *argv], self._env)
        self._running.append(made)
        return made

    def close(self) -> None:
        """End those still running."""
        for one in self._running:
            one.stop()


def kubectl_for(server: ApiServer, directory: Path, authority: Path | None = None) -> Kubectl:
    """kubectl as every user of a server's tokens (`--context`), the first one by default."""
    config = directory / "kubeconfig"
    document = kubeconfig.render(server.url, server.tokens.users(), authority)
    kubeconfig.write(config, document)
    return Kubectl(directory, config)
