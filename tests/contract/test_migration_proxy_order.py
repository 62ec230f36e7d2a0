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

from migration_proxy import certificate, session, tcp_sockets, unix_sockets
from migration_proxy.config import CLIENT_CNS, TlsConfig
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


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_a_silent_stranger_holds_up_nobody(tls: Nodes, address: str) -> None:
    """Not even one from the source's own address."""
    with silent(tls, address):
        assert arrivals(tls, 3) == [0, 1, 2]


def test_who_was_let_in_first_goes_first(tls: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is done with TLS 1.3 before the target is: it waits for the target's word."""
    monkeypatch.setattr(session, "VERDICT_SECONDS", PATIENCE)
    checked = slow_first_of_the_targets(certificate.refusal)
    monkeypatch.setattr("migration_proxy.handshake.refusal", checked)
    assert arrivals(tls, 3) == [0, 1, 2]


def slow_first_of_the_targets(real: Callable[..., Any]) -> Callable[..., Any]:
    """The check of a peer's names: slow for the first one at the target."""
    slow = slow_first(real)

    def check(peer: Any, names: Any, expected: str) -> Any:
        return (slow if names == CLIENT_CNS else real)(peer, names, expected)

    return check


def test_who_waits_is_ended_with_the_listener(both: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    held, real = threading.Event(), tcp_sockets.dial

    def dial(*args: Any) -> Any:
        held.wait(PATIENCE)
        return real(*args)

    monkeypatch.setattr(tcp_sockets, "dial", dial)
    callers = [both.call() for _ in range(3)]
    (listener,) = (
        each
        for one in both.source.migrations()
        for each in one.listeners
        if each.stream.logical == 49152
    )
    until(lambda: len(listener.sessions()) == 3)
    stopping = threading.Thread(target=both.source.stop_source_listener, args=(KEY,), daemon=True)
    stopping.start()
    until(lambda: len(listener.sessions()) == 1)  # the two that wait; the first one is held
    held.set()
    for caller in callers:
        assert ended(caller)
        caller.close()
    stopping.join(PATIENCE)
    assert listener.sessions() == ()
    assert not both.programs[49152].called
