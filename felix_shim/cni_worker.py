"""A worker of the agent: serves the CNI requests that it is handed (`cni_workers` says why).

Few are at work at once, in the order in which they came: more would only hand the interpreter's
lock to each other. What they say goes to the agent.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cni_plugin.calls import Call
from cni_plugin.frame import Request, Response
from felix_shim.cni_server import Serve, serve_one
from felix_shim.cni_workers import ASK, BEGIN, MESSAGE
from libtortie.jsonlog import Level, bridge_logging, level_of, plain

ABREAST = 2
"""Requests that are at work at once; while one waits for the kernel another has the lock."""
PATIENCE = 0.25
"""Seconds after which a request begins although those before it have not ended: they may be waiting
for an API that is silent."""
_LONGEST = 32_000
"""Characters of a report's longest text, to begin with."""


class Reports:
    """What a worker tells its agent; to its own code it is a log. Any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def debug(self, event: str, **fields: object) -> None:
        """A line of the agent's log; so are the next ones."""
        self._line("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._line("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._line("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._line("error", event, fields)

    def event(self, event: str, /, **fields: object) -> None:
        """A line whose level follows from its name."""
        self._line(level_of(event), event, fields)

    def observe(self, call: Call, code: int) -> None:
        """A call has ended."""
        seconds = call.ended - call.began
        self.tell(command=call.command, code=code, seconds=seconds, phases=call.phases)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """A call that is at work only waits for others."""
        self.tell(weight=-1)
        try:
            yield
        finally:
            self.tell(weight=1)

    def tell(self, **report: object) -> None:
        """Send a report."""
        self._channel.send(_encode(report))

    def _line(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        """What is too long for a message is told in part: the agent could not read a cut one."""
        longest = _LONGEST
        told = {name: _text(plain(value)) for name, value in fields.items()}
        while True:
            told = {k: v[:longest] if isinstance(v, str) else v for k, v in told.items()}
            report = _encode({"level": level, "event": event, "fields": told})
            if len(report) <= MESSAGE or not longest:
                break
            longest //= 2
        self._channel.send(report)


def _encode(report: Mapping[str, object]) -> bytes:
    return json.dumps(report, default=str).encode(errors="replace")


def _text(value: object) -> object:
    """A field's value, as text where it is a long structure."""
    is_plain = value is None or isinstance(value, str | int | float)
    return value if is_plain or len(_encode({"": value})) < _LONGEST else str(value)


class Turns:
    """Lets a few be at work at once, and anybody who has waited long enough."""

    def __init__(self, abreast: int = ABREAST, patience: float = PATIENCE) -> None:
        self._places = threading.Semaphore(abreast)
        self._patience = patience

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for one's turn, and have it."""
        has_place = self._places.acquire(timeout=self._patience)
        try:
            yield
        finally:
            if has_place:
                self._places.release()


def work(channel: socket.socket, build: Callable[[Reports], Serve]) -> None:
    """Wait for `begin`, build what serves, then serve what comes, until the channel closes."""
    reports = Reports(channel)
    if channel.recv(MESSAGE) != BEGIN:
        return
    with _told_to(reports):
        bridge_logging(reports)
        _work(channel, reports, build(reports))


@contextmanager
def _told_to(reports: Reports) -> Iterator[None]:
    """A fault of any kind is told, and ends the process: half of it would keep its callers."""
    try:
        yield
    except BaseException as error:
        try:
            trace = traceback.format_exc()
            reports.error("cni_worker_failed", reason=repr(error), traceback=trace)
        finally:
            os._exit(1)


def _work(channel: socket.socket, reports: Reports, serve: Serve) -> None:
    turns = Turns()

    def in_turn(request: Request) -> Response:
        with turns.turn():
            return serve(request)

    def handle(number: int, descriptors: list[int]) -> None:
        with _told_to(reports):
            for descriptor in descriptors:  # none where this process has too many
                with socket.socket(fileno=descriptor) as client:
                    serve_one(client, in_turn, reports)
            reports.tell(answered=number)

    reports.tell(serves=True)
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE, 1)
        if not message:
            return
        if message == ASK:
            reports.tell(here=True)
            continue
        arguments = (int(message), descriptors)
        threading.Thread(target=handle, args=arguments, name="cni-request", daemon=True).start()
