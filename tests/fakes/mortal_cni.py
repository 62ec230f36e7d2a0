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
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.fakes.mortal_parent import MortalParent, serve


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended: exit status (-9: killed), the answer if there was one, its steps."""

    status: int
    body: Any
    steps: tuple[str, ...]


class MortalCni(MortalParent):
    """Runs calls in a node's namespace, each in a process of its own."""

    def __init__(self, directory: Path, netns: str) -> None:
        self._netns = netns
        super().__init__(directory, "tests.fakes.mortal_cni")

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
        status = self.ask(request)
        text = answer.read_bytes()
        return Ended(
            status, json.loads(text) if text else None, tuple(steps.read_text().splitlines())
        )


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
    serve(_run)
