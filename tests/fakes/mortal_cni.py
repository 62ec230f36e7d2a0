"""`tortie-cni` in processes that die where a test wants them to.

One process imports everything once and forks a child for each call; the child enters the node's
namespace, has its steps counted, and runs `cni_plugin.wiring.main` as it is. `MortalCni` is the
test's side of it.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

KILLED = -9


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: exit status (-9: killed), the answer if there was one, its steps."""

    status: int
    body: Any
    steps: tuple[str, ...]


class MortalCni:
    """Runs calls in a node's namespace, each in a process of its own."""

    def __init__(self, directory: Path, netns: str) -> None:
        self._directory = directory
        self._netns = netns
        self._log = (directory / "mortal.log").open("ab")
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.mortal_cni"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def call(self, env: Mapping[str, str], conf: Mapping[str, Any], *, die_at: int = 0) -> Ended:
        """One call; with `die_at` it is killed before that step (from 1)."""
        steps, answer = self._directory / "steps", self._directory / "answer"
        request = {
            "env": dict(env),
            "conf": json.dumps(dict(conf)),
            "netns": self._netns,
            "die_at": die_at,
            "steps": str(steps),
            "answer": str(answer),
        }
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(request).encode() + b"\n")
        self._parent.stdin.flush()
        status = json.loads(self._parent.stdout.readline())
        text = answer.read_bytes()
        return Ended(
            status, json.loads(text) if text else None, tuple(steps.read_text().splitlines())
        )

    def __enter__(self) -> MortalCni:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._parent.kill()
        self._parent.communicate()
        self._log.close()


def _serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(request)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(status), flush=True)


def _run(request: Mapping[str, Any]) -> NoReturn:
    from cni_plugin import wiring
    from libtortie.linux.netns import enter
    from tests.fakes.mortal import Steps, die

    code = 99
    try:
        enter(request["netns"])
        os.environ.update(request["env"])
        sys.stdin = io.TextIOWrapper(io.BytesIO(request["conf"].encode()))
        with (
            Path(request["answer"]).open("w") as sys.stdout,
            Path(request["steps"]).open("wb") as s,
        ):
            count = 0

            def tell(what: str) -> None:
                nonlocal count
                count += 1
                os.write(s.fileno(), what.encode() + b"\n")
                if count == request["die_at"]:
                    die()

            Steps(tell)
            wiring.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    for module in (
        "cni_plugin.wiring",
        "libtortie.kube.client",
        "libtortie.linux.netlink",
        "tests.fakes.mortal",
    ):
        importlib.import_module(module)  # once, for all children
    _serve()
