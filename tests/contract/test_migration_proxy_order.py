"""Streams reach the target's program in the order in which the source's connected.

QEMU before 8.0 knows the first channel of a migration by its being the first.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from migration_proxy import tcp_sockets, unix_sockets
from migration_proxy.config import TlsConfig
from tests.fakes.migration_proxies import (
    KEY,
    PATIENCE,
    Nodes,
    Pki,
    config,
    ended,
    nodes,
    sessions,
    until,
)

HELD_SECONDS = 0.5
"""How long the first stream stands still, unless another one overtakes it before."""


@pytest.fixture(params=["tls", "plain"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    tls: TlsConfig | None = None
    if request.param == "tls":
        tls = Pki.make(tmp_path / "pki").tls()
    with nodes(config(tls), config(tls)) as made:
        yield made


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Nodes]:
    pki = Pki.make(tmp_path / "pki").tls()
    with nodes(config(pki), config(pki)) as made:
        yield made


def slow_first(real: Callable[..., Any]) -> Callable[..., Any]:
    """A step whose first caller is slow: whoever can overtake it does."""
    serial, overtaken = itertools.count(), threading.Event()

    def step(*args: Any) -> Any:
        if next(serial) == 0:
            overtaken.wait(HELD_SECONDS)
            return real(*args)
        made = real(*args)
        overtaken.set()
        return made

    return step


def arrivals(both: Nodes, count: int) -> list[int]:
    """Which of the source's connections the program has, in the order it got them."""
    callers = [both.call() for _ in range(count)]
    for number, caller in enumerate(callers):
        caller.sendall(bytes([number]))
    found: list[int] = []
    for _ in callers:
        with both.programs[49152].accept() as accepted:
            found += accepted.recv(1)
    for caller in callers:
        caller.close()
    return found


@pytest.mark.parametrize(("where", "step"), [(tcp_sockets, "dial"), (unix_sockets, "dial")])
def test_no_stream_overtakes_another(
    both: Nodes, monkeypatch: pytest.MonkeyPatch, where: Any, step: str
) -> None:
    monkeypatch.setattr(where, step, slow_first(getattr(where, step)))
    assert arrivals(both, 9) == list(range(9))


def silent(both: Nodes, address: str) -> socket.socket:
    """Somebody who connects to the target, and says nothing."""
    (port,) = [port for port, logical in both.ports.ports.items() if logical == 49152]
    before = len(sessions(both.target))
    made = socket.create_connection(("127.0.0.1", port), PATIENCE, (address, 0))
    until(lambda: len(sessions(both.target)) > before)
    return made


def test_a_silent_stranger_holds_up_nobody(tls: Nodes) -> None:
    with silent(tls, "127.0.0.2"):
        assert arrivals(tls, 3) == [0, 1, 2]


def test_one_that_ends_makes_way(tls: Nodes) -> None:
    """Of the source's own address; and whoever waits behind it is not overtaken either."""
    stuck = silent(tls, "127.0.0.1")
    callers = [tls.call() for _ in range(2)]
    until(lambda: len(sessions(tls.target)) == 2)
    assert not tls.programs[49152].called
    stuck.close()
    for number, caller in enumerate(callers):
        caller.sendall(bytes([number]))
        with tls.programs[49152].accept() as accepted:
            assert accepted.recv(1) == bytes([number])
        caller.close()


def test_who_waits_is_ended_with_the_listener(tls: Nodes) -> None:
    with silent(tls, "127.0.0.1"):
        callers = [tls.call() for _ in range(3)]
        until(lambda: len(sessions(tls.source)) == 3)
        tls.target.stop_target_listener(KEY)
        tls.source.stop_source_listener(KEY)
        for caller in callers:
            assert ended(caller)
            caller.close()
    assert sessions(tls.source) == sessions(tls.target) == []
    assert not tls.programs[49152].called
