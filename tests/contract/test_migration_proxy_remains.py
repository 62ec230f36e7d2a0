"""What is left of streams: nothing, however they end, and however many there were."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libtortie.errors import InvalidInput, TortieError
from migration_proxy.config import TlsConfig
from migration_proxy.lanes import Lanes
from migration_proxy.listener import Listener
from migration_proxy.model import target_request
from migration_proxy.session import Means, Phase, Session
from migration_proxy.tcp_sockets import Patience
from tests.fakes.migration_proxies import (
    KEY,
    LOOPBACK,
    Nodes,
    Pki,
    config,
    connect,
    descriptors,
    ended,
    listens,
    manager,
    nodes,
    receive,
    sessions,
    short_directory,
    turned_away,
    until,
)


@pytest.fixture(params=["tls", "plain"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> TlsConfig | None:
    return Pki.make(tmp_path / "pki").tls() if request.param == "tls" else None


@pytest.fixture
def both(tls: TlsConfig | None) -> Iterator[Nodes]:
    with nodes(config(tls), config(tls)) as made:
        yield made


def _settled(made: Nodes, threads: int) -> Callable[[], bool]:
    return lambda: (
        not sessions(made.source)
        and not sessions(made.target)
        and threading.active_count() <= threads
    )


def test_ten_thousand_short_streams_leave_nothing(both: Nodes) -> None:
    """Ended by the caller, by the program, by both, in the middle, and stillborn."""
    before, threads = descriptors(), threading.active_count()
    for number in range(10_000):
        caller, program = both.pair()
        kind = number % 5
        if kind == 0:
            caller.sendall(b"x")
            caller.shutdown(socket.SHUT_WR)
            assert receive(program) == b"x"
        elif kind == 1:
            program.sendall(b"y")
        elif kind == 2:
            caller.close()
        elif kind == 3:
            program.close()
        caller.close()
        program.close()
    until(_settled(both, threads))
    assert descriptors() == before


def test_streams_that_came_to_nothing_leave_nothing(both: Nodes) -> None:
    """No program at the target; no target at all."""
    before, threads = descriptors(), threading.active_count()
    path = both.programs[49152].path.rename(both.programs[49152].path.with_name("away"))
    for _ in range(200):
        caller = both.call()
        assert ended(caller)
        caller.close()
    path.rename(both.programs[49152].path)
    until(_settled(both, threads))
    assert descriptors() == before


def test_stopping_in_the_middle_of_many_streams_leaves_nothing(both: Nodes) -> None:
    before = descriptors()
    ends = [both.pair() for _ in range(50)]
    flooding = [threading.Thread(target=_flood, args=(caller,), daemon=True) for caller, _ in ends]
    for thread in flooding:
        thread.start()
    both.target.stop_target_listener(KEY)
    both.source.stop_source_listener(KEY)
    for thread in flooding:
        thread.join(120)
    for caller, program in ends:
        caller.close()
        program.close()
    listening = 2 * (3 + 1) - 2  # per stream of both sides a socket and a pipe; two directories
    until(lambda: descriptors() <= before - listening + 2)
    assert not [each for each in threading.enumerate() if each.name.startswith("stream-")]


def _flood(sock: socket.socket) -> None:
    try:
        while True:
            sock.sendall(b"x" * 65536)
    except OSError:
        return


class _Tired(socket.socket):
    """A listening socket whose accept fails some times."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            raise OSError(self.errors.pop(0), "injected")
        return super().accept()


def _listener(sock: socket.socket, path: Path, said: list[str]) -> Listener:
    request = target_request(KEY, [str(path)], tls=False)
    means = Means(None, None, (), Patience(), 10.0, Lanes(1))
    return Listener(
        sock,
        request,
        request.streams[0],
        means,
        most=64,
        rate=None,
        hear=lambda _listener, _session, what: said.append(what),
    )


@pytest.mark.parametrize(("phase", "aborted"), [(Phase.MOVING, False), (Phase.DIALLING, True)])
def test_a_stream_that_moves_is_left_to_its_lane(phase: Phase, aborted: bool) -> None:
    """That ends it by a reset; a socket shut down from here would tell the peer an orderly end."""
    over, (ours, peer) = threading.Event(), socket.socketpair()
    peer.setblocking(False)
    with short_directory() as place, socket.create_server(("127.0.0.1", 0)) as sock, ours, peer:
        listener = _listener(sock, place / "none", [])
        session = Session(
            listener.request,
            listener.stream,
            ours,
            listener._means,
            listener._stopped,
            listener._order,
            phase=phase,
        )
        thread = threading.Thread(target=over.wait, daemon=True)
        thread.start()
        listener._sessions[session] = thread
        assert not listener.close(0.2)
        if aborted:
            assert peer.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                peer.recv(1)
        over.set()
        assert listener.close(120)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED])
def test_an_accept_that_fails_for_the_moment_is_tried_again(code: int) -> None:
    said: list[str] = []
    with short_directory() as place:
        sock = _Tired(socket.AF_INET, socket.SOCK_STREAM)
        sock.errors = [code] * 3
        sock.bind(("127.0.0.1", 0))
        sock.listen(8)
        listener = _listener(sock, place / "none", said)
        listener.start()
        assert turned_away(sock.getsockname()[1])  # no program is there
        until(lambda: listener.streams == 1)
        assert listener.alive
        assert listener.close(120)


def test_an_accept_that_fails_for_good_closes_the_listener() -> None:
    """Nobody connects to it and waits for ever; the next Start makes it anew."""
    said: list[str] = []
    with short_directory() as place:
        sock = _Tired(socket.AF_INET, socket.SOCK_STREAM)
        sock.errors = [errno.EINVAL]
        sock.bind(("127.0.0.1", 0))
        sock.listen(8)
        port = sock.getsockname()[1]
        listener = _listener(sock, place / "none", said)
        listener.start()
        assert turned_away(port)
        until(lambda: not listener.alive)
        until(lambda: bool(said))
        assert "the listener is closed" in said[0]
        assert not listens(port)
        listener.close(120)


def test_a_listener_whose_thread_ends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fault of ours, whatever it is: nobody may connect and wait for ever."""

    def fault(*_: object) -> None:
        raise ZeroDivisionError

    said: list[str] = []
    with short_directory() as place:
        sock = socket.create_server(("127.0.0.1", 0))
        listener = _listener(sock, place / "none", said)
        monkeypatch.setattr(listener, "_admit", fault)
        listener.start()
        assert turned_away(sock.getsockname()[1])
        until(lambda: not listener.alive and bool(said))
        assert "ZeroDivisionError" in said[0]
        listener.close(120)


def test_a_fault_of_ours_in_a_stream_ends_that_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told as its failure, not as an orderly end."""

    def fault(*_: object) -> None:
        raise ZeroDivisionError

    with nodes(config(None), config(None)) as made:
        monkeypatch.setattr(Session, "_let_in", fault)
        caller = made.call()
        assert ended(caller)
        (migration,) = made.target.migrations()
        until(lambda: bool(migration.failures))
        assert "ZeroDivisionError" in str(migration.failures[49152])
        monkeypatch.undo()
        going, program = made.pair()
        going.sendall(b"on")
        assert program.recv(2) == b"on"


def test_a_dead_listener_is_replaced_by_the_same_request() -> None:
    with short_directory() as place, manager(config(None)) as proxy:
        wanted = [str(place / "target" / "virtqemud")]
        first = proxy.start_target_listener(KEY, wanted)
        (migration,) = proxy.migrations()
        migration.listeners[0].alive = False
        assert proxy.target_listener_ports(KEY).ports == {}
        second = proxy.start_target_listener(KEY, wanted)
        assert second.generation > first.generation
        (port,) = second.ports
        assert listens(port)


def test_an_owner_that_cannot_be_given_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", refuse)
    settings = config(None, socket_user="12345:12345")
    with short_directory() as place, manager(settings) as proxy:
        before = descriptors()
        with pytest.raises(InvalidInput, match="Operation not permitted"):
            proxy.start_source_listener(KEY, LOOPBACK, {4000: 0}, str(place / "base"))
        assert list((place / "base" / "migrationproxy").iterdir()) == []
        assert descriptors() == before
        assert proxy.open_listener_count() == 0


def test_the_same_from_many_threads_at_once_is_one() -> None:
    with short_directory() as place, manager(config(None)) as proxy:
        wanted = [str(place / "target" / "virtqemud")]
        found: list[object] = []
        troubles: list[TortieError] = []

        def ask() -> None:
            try:
                found.append(proxy.start_target_listener(KEY, wanted))
            except TortieError as error:
                troubles.append(error)

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert troubles == []
        assert found == [found[0]] * 16


def test_a_peer_that_is_a_firewall_is_given_up() -> None:
    """A listener whose queue is full answers nothing more, as a firewall does."""
    settings = config(None, connect_seconds=0.5)
    with (
        short_directory() as place,
        manager(settings) as proxy,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as full,
    ):
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(8):
            filler = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        base = str(place / "base")
        (path,) = proxy.start_source_listener(KEY, LOOPBACK, {full.getsockname()[1]: 0}, base)
        caller = connect(path)
        assert ended(caller)
        until(lambda: bool(proxy.migrations()[0].failures))
        said = str(proxy.migrations()[0].failures[0])
        assert "no answer within 0.5 s: a firewall or policy between the nodes" in said
        for sock in (*fillers, caller):
            sock.close()
