"""A policy engine that answers JSON lines: the Go programs of `tests/peer/`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "peer"


class Engine:
    """One process for many questions. A question that it cannot judge is an AssertionError."""

    def __init__(self, name: str, target: str) -> None:
        program = PROGRAMS / name
        assert program.exists(), f"{program} is missing: `make {target}` builds it, or says why not"
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **question: Any) -> list[str]:
        """The denials' messages, none for what is let through."""
        sent, heard = self._process.stdin, self._process.stdout
        assert sent is not None and heard is not None
        sent.write(json.dumps(question) + "\n")
        sent.flush()
        line = heard.readline()
        assert line, f"the engine has ended: {self._process.wait()}"
        said = json.loads(line)
        assert "error" not in said, said["error"]
        return [str(one) for one in said["denied"]]

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
