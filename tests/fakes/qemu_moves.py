"""Two QEMUs and the process that moves a guest between them; no network and no lab."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.mortal import mortal
from lab.processes import Ledger
from lab.qemu import Guest, Machine
from lab.qemu_control import Control
from lab.qemu_guest import Tick
from lab.qemu_move import Order
from lab.qemu_process import attach, end, launch, running

MACHINE = Machine(memory_mib=96, witness_mib=4)


def seed(directory: Path) -> Path:
    """The state of a guest that has booted: every test goes on from there."""
    with Guest(directory / "guest", MACHINE) as guest:
        guest.wait_ticks(6)
        guest.save(directory / "state")
    return directory / "state"


@dataclass(frozen=True, slots=True)
class Ends:
    """A guest that runs at the source, and a QEMU that waits for it."""

    source: Path
    target: Path
    before: Tick

    @classmethod
    def make(cls, directory: Path, state: Path, stack: ExitStack) -> Ends:
        """Both; what is left of them ends with the stack."""
        source, target = directory / "a", directory / "b"
        ledger = Ledger(directory / "processes")
        for each in (source, target):
            stack.callback(end, each)
            launch(ledger, "qemu", each, MACHINE, mortal(()), incoming=True)
        control = talk(source)
        control.restore(state)
        before = control.wait_ticks(deadline=120)[-1]
        control.close()
        return cls(source, target, before)

    def here(self) -> list[str]:
        """Where there is a QEMU."""
        return [each.name for each in (self.source, self.target) if running(each) is not None]

    def goes_on(self, where: Path) -> None:
        """The guest runs there and nowhere else, counts on, and is the one it was."""
        control = talk(where)
        try:
            assert control.running
            known = control.ticks() or (self.before,)
            now = control.wait_ticks(known[-1].count + 6)[-1]  # the sum is looked at every fifth
        finally:
            control.close()
        assert now.witness == self.before.witness
        assert now.count > self.before.count
        assert now.uptime > self.before.uptime
        assert self.here() == [where.name]


def talk(directory: Path) -> Control:
    """The control of a QEMU that must be there."""
    control = attach(directory, look_s=0.01)
    assert control is not None, directory
    return control


class Mover:
    """`lab.qemu_move`, as the lab's control plane starts it."""

    def __init__(self, ends: Ends, stack: ExitStack, *, hold: str = "") -> None:
        order = Order(str(ends.source), str(ends.target), hold)
        self.report = ends.source.parent / "report"
        command = [sys.executable, "-m", "lab.qemu_move", json.dumps(asdict(order))]
        self.process = subprocess.Popen(
            mortal([*command, "--report", str(self.report)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(self.close)

    def heard(self) -> dict[str, Any]:
        """Its next line; empty when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def say(self, word: str) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, whatever it does."""
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
