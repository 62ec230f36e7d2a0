"""The process that moves a QEMU guest from one pod's QEMU to another's, over a unix socket.

It keeps the protocol of `guest_kind`: ready, go, perhaps cancel, arrived, report. Where it fails,
is called off or finds a QEMU dead it settles where the guest goes on (`qemu_settle`) before it says
so; where it is itself killed, whoever started it does.

The guest is paused while its memory moves (see `Control.pause`); the blackout is from QEMU's STOP
to the other's RESUME, the shorter reading: STOP is told when the guest stands, RESUME before it
runs. Beside it stands what `query-migrate` calls downtime: the last phase only.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lab import clock
from lab.cutover import SETTLE_MS, Report, keep, say, sleep_until
from lab.guest_store import Outcome
from lab.qemu_control import Control, Progress, Status, Transfer
from lab.qemu_process import attach, end
from lab.qemu_settle import HELD, LOOK_S, begin, go_on, hold, settle
from lab.tools import LabError

Tell = Callable[[dict[str, object]], None]
PRIORITY = 18
"""Beneath the guest's own and the measuring processes': it only asks and waits."""
STREAM = "memory"
"""The socket in the target's directory at which it takes the guest's memory."""
FIGURES_S = 30.0
"""How long `query-migrate` is asked for its figures, which are 0 for a moment at the end."""
SLOW = 256 << 10
"""Bytes a second of a move that is held while it sends: it would take minutes."""


@dataclass(frozen=True, slots=True)
class Order:
    """From which QEMU's directory to which; `hold` is the status to stay in until called off."""

    source: str
    target: str
    hold: str = ""


class CalledOff(LabError):
    """Somebody said `cancel`."""


class Line:
    """What whoever started the move says on stdin.

    A move that is `held` would stay so for ever if its starter died: the end of stdin ends it.
    """

    def __init__(self, *, held: bool) -> None:
        self.called_off = threading.Event()
        self._held = held

    def go(self) -> bool:
        """Wait for the first line; whether it is `go`. From then on `cancel` is heard."""
        if sys.stdin.readline().strip() != "go":
            return False
        threading.Thread(target=self._hear, daemon=True).start()
        return True

    def _hear(self) -> None:
        said = sys.stdin.readline()
        if said.strip() == "cancel" or (self._held and not said):
            self.called_off.set()

    def check(self) -> None:
        """Raises `CalledOff`."""
        if self.called_off.is_set():
            raise CalledOff("the migration was cancelled")


class Mover:
    """One move, and when QEMU says it happened."""

    def __init__(self, source: Control, target: Control, line: Line, tell: Tell, hold: str) -> None:
        self._source, self._target = source, target
        self._line, self._tell, self._hold = line, tell, hold

    def send(self) -> None:
        """Everything until the guest runs at the target. Raises `LabError`."""
        slow = self._hold == Status.ACTIVE
        transfer = Transfer(0, SLOW if slow else 0)
        begin(self._target.directory)
        self._target.listen(self._target.directory / STREAM, transfer)
        if not slow:
            hold(self._source)
        self._source.migrate(str(self._target.directory / STREAM), transfer)
        if slow:
            self._source.wait_migration("not active", self._is(Status.ACTIVE))
            self._tell({"held": self._hold})
        self._until(Status.PRE_SWITCHOVER)
        self._source.qmp.do("migrate-continue", state=Status.PRE_SWITCHOVER)
        self._until(Status.COMPLETED)
        self._target.wait_migration("not all has come", self._is(Status.COMPLETED))
        go_on(self._target, self._source.directory)

    def _until(self, status: Status) -> None:
        self._source.wait_migration(f"not {status}", self._is(status))
        if self._hold == status:
            self._tell({"held": self._hold})
            self._line.called_off.wait()
            self._line.check()

    def _is(self, status: Status) -> Callable[[Progress], bool]:
        def look(seen: Progress) -> bool:
            self._line.check()
            return seen.status is status

        return look

    def report(self) -> Report:
        """What happened, as far as both can still tell."""
        offset = clock.realtime_offset()
        resumed = _moment(self._target, "RESUME", offset) or clock.monotonic()
        stopped = _moment(self._source, "STOP", offset) or resumed
        report = Report(min(stopped, resumed), resumed)
        with suppress(LabError):
            until = time.monotonic() + FIGURES_S
            while time.monotonic() < until:
                said = self._source.qmp.do("query-migrate")
                if said.get("total-time"):
                    figures = said["downtime"], said["total-time"]
                    return replace(report, qemu_downtime_ms=figures[0], qemu_total_ms=figures[1])
                time.sleep(LOOK_S)
        return report


def _moment(control: Control, event: str, offset: int) -> int | None:
    """When QEMU last told an event, on CLOCK_MONOTONIC in ns; None when it did not."""
    with suppress(LabError):
        control.running  # noqa: B018  # asking also reads the events that were told until then
    for told in reversed(control.qmp.events):
        if told["event"] == event:
            at: dict[str, Any] = told["timestamp"]
            wall = int(at["seconds"]) * clock.NS_PER_S + int(at["microseconds"]) * 1000
            return wall - offset
    return None


def _held_since(source: Path) -> int | None:
    """When a guest was paused to be moved, by the file that says so."""
    with suppress(FileNotFoundError):
        return (source / HELD).stat().st_mtime_ns - clock.realtime_offset()
    return None


def move(order: Order, line: Line, tell: Tell) -> Report:
    """Do it, once somebody says so. Raises `LabError`, when the guest is where it was, or dead."""
    source, target = Path(order.source), Path(order.target)
    with ExitStack() as stack:
        ends = [attach(each, look_s=LOOK_S) for each in (source, target)]
        for one in ends:
            if one is not None:
                stack.callback(one.close)
        here, there = ends
        if here is None or there is None:
            raise LabError(f"QEMU of the {'source' if here is None else 'target'} has ended")
        tell({"ready": True})
        if not line.go():
            raise CalledOff("the migration was cancelled before it began")
        mover = Mover(here, there, line, tell, order.hold)
        failure: LabError | None = None
        try:
            mover.send()
        except LabError as error:
            failure = error
        else:
            report = mover.report()
    if failure is not None:
        outcome = settle(source, target)
        if outcome is not Outcome.MOVED:
            fate = "; the guest is dead" if outcome is Outcome.DEAD else ""
            raise LabError(f"{failure}{fate}") from failure
        now = clock.monotonic()
        report = Report(min(_held_since(source) or now, now), now)
    end(source)
    return report


def main() -> None:
    """`python -m lab.qemu_move '{"source": …}' --report FILE`."""
    parser = argparse.ArgumentParser(description="move a QEMU guest from one pod to another")
    parser.add_argument("order", help="a JSON object with the fields of Order")
    parser.add_argument("--report", type=Path, required=True, help="where the report is kept")
    options = parser.parse_args()
    clock.be_punctual(PRIORITY)
    order = Order(**json.loads(options.order))
    try:
        report = move(order, Line(held=bool(order.hold)), say)
    except LabError as error:
        say({"failed": str(error)})
        return
    say({"unplugged_ns": report.unplugged_ns, "plugged_ns": report.plugged_ns})
    keep(report, options.report)
    sleep_until(report.plugged_ns + SETTLE_MS * clock.NS_PER_MS)
    say(asdict(report))


if __name__ == "__main__":
    main()
