"""Shortages, jumps and races: each is one clear error or none, and nothing of it is left."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from libtortie.control_client import Refused, ask
from libtortie.errors import InvalidInput, NotFound, Unavailable
from libtortie.jsonlog import NullLog
from migration_proxy import tcp_sockets, unix_sockets
from migration_proxy.control import Control, ControlServer
from migration_proxy.lanes import Lanes
from migration_proxy.listener import most_burdensome
from migration_proxy.manager import ProxyManager
from migration_proxy.model import source_path, target_request
from migration_proxy.order import Order
from migration_proxy.session import Means, Phase, Session
from migration_proxy.tcp_sockets import Network, Patience
from tests.fakes.migration_proxies import (
    KEY,
    LOOPBACK,
    NETWORK,
    Pki,
    config,
    connect,
    descriptors,
    ended,
    manager,
    nodes,
    sessions,
    short_directory,
    turned_away,
    until,
)


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as made:
        yield made


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path / "pki")


def target_file(place: Path) -> list[str]:
    return [str(place / "target" / "virtqemud")]


def failing_after(calls: int, original: Callable[..., Any], error: Exception) -> Any:
    """`original`, which fails once after so many calls."""
    left = [calls]

    def call(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise error
        return original(*args, **more)

    return call


OUT_OF_DESCRIPTORS = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class TestDescriptors:
    def test_the_second_pipe_of_a_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first one is given back: a pipe outlives who forgets it."""
        with nodes(config(None), config(None)) as both:
            caller, program = both.pair()
            caller.sendall(b"1")
            assert program.recv(1) == b"1"
            before = descriptors()
            for _ in range(8):
                monkeypatch.setattr(os, "pipe2", failing_after(1, os.pipe2, OUT_OF_DESCRIPTORS))
                failing = both.call()
                assert ended(failing)
                failing.close()
                monkeypatch.undo()
                until(lambda: len(sessions(both.source) + sessions(both.target)) == 2)
            while both.programs[49152].called:
                both.programs[49152].accept().close()
            until(lambda: descriptors() <= before)

    def test_the_last_one_of_a_sources_socket(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = str(place / "base")
        with manager(config(None)) as proxy:
            before = descriptors()
            monkeypatch.setattr(os, "dup", failing_after(0, os.dup, OUT_OF_DESCRIPTORS))
            with pytest.raises(Unavailable, match="Too many open files"):
                proxy.start_source_listener(KEY, LOOPBACK, {4000: 0}, base)
            assert list((place / "base" / "migrationproxy").iterdir()) == []
            until(lambda: descriptors() <= before)  # an earlier test's may end meanwhile

    def test_a_question_has_an_answer(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with manager(config(None)) as proxy:
            control = Control(proxy)
            monkeypatch.setattr(os, "pipe2", failing_after(0, os.pipe2, OUT_OF_DESCRIPTORS))
            line = f'{{"do": "start-target", "key": "{KEY}", "files": ["{target_file(place)[0]}"]}}'
            answer = control.answer(line.encode())
            assert answer["kind"] == "Unavailable"
            assert "start-target: Too many open files" in answer["error"]
            monkeypatch.setattr(Path, "iterdir", failing_after(0, Path.iterdir, OUT_OF_DESCRIPTORS))
            assert control.answer(b'{"do": "status"}')["descriptors"] > 0

    def test_a_target_that_cannot_dial_says_whose_limit_it_is(self, place: Path) -> None:
        assert "LimitNOFILE" in unix_sockets.hint(OUT_OF_DESCRIPTORS)

    def test_silent_strangers_make_way(self, place: Path, pki: Pki) -> None:
        """They would hold for `handshake_seconds` what others need."""
        with manager(config(pki.tls())) as proxy:
            (port,) = proxy.start_target_listener(KEY, target_file(place)).ports
            with socket.create_connection(("127.0.0.1", port), 120) as silent:
                until(lambda: len(sessions(proxy)) == 1)
                ((listener,),) = [one.listeners for one in proxy.migrations()]
                assert listener._survives(OUT_OF_DESCRIPTORS)
                assert ended(silent)


class TestThreads:
    @pytest.mark.parametrize("side", ["source", "target"])
    def test_none_for_the_second_listener(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, side: str
    ) -> None:
        """All or nothing: the old listeners serve on, and no half-dead one takes their place."""
        base = str(place / "base")
        with manager(config(None)) as proxy:

            def start(*logical: int) -> object:
                if side == "source":
                    ports = {4000 + n: port for n, port in enumerate(logical)}
                    return proxy.start_source_listener(KEY, LOOPBACK, ports, base)
                names = [f"{KEY}-{port}" if port else "virtqemud" for port in logical]
                return proxy.start_target_listener(KEY, [str(place / "target" / n) for n in names])

            first = start(49152)
            before, running = descriptors(), threading.active_count()
            (old,) = proxy.migrations()
            begin = failing_after(1, threading.Thread.start, RuntimeError("no new thread"))
            monkeypatch.setattr(threading.Thread, "start", begin)
            with pytest.raises(Unavailable, match=f"migration {KEY}: no new thread"):
                start(0, 49152)
            monkeypatch.undo()
            assert proxy.migrations() == (old,)
            assert start(49152) == first
            until(lambda: threading.active_count() == running)
            until(lambda: descriptors() <= before)  # an earlier test's may end meanwhile


class TestClocks:
    def test_a_wall_clock_that_jumps_ends_nothing(self, place: Path) -> None:
        wall, steady = [1000.0], [5.0]
        proxy = ProxyManager(
            config(None, idle_seconds=60),
            NETWORK,
            NullLog(),
            now=lambda: wall[0],
            steady=lambda: steady[0],
        )
        proxy.start_target_listener(KEY, target_file(place))
        wall[0] += 1e6
        assert proxy.reap() == ()
        steady[0] += 61
        assert proxy.reap() == (KEY,)

    def test_who_asks_again_still_wants_it(self, place: Path) -> None:
        steady = [0.0]
        settings = config(None, idle_seconds=60)
        proxy = ProxyManager(settings, NETWORK, NullLog(), steady=lambda: steady[0])
        first = proxy.start_target_listener(KEY, target_file(place))
        steady[0] = 59.0
        assert proxy.start_target_listener(KEY, target_file(place)) == first
        steady[0] = 61.0
        assert proxy.reap() == ()
        proxy.shutdown(0.0)

    def test_strangers_keep_no_migration_alive(self, place: Path) -> None:
        steady = [0.0]
        settings = config(None, idle_seconds=60, allowed_peers=["192.0.2.0/24"])
        proxy = ProxyManager(settings, NETWORK, NullLog(), steady=lambda: steady[0])
        (port,) = proxy.start_target_listener(KEY, target_file(place)).ports
        steady[0] = 59.0
        assert turned_away(port)
        (migration,) = proxy.migrations()
        until(lambda: bool(migration.failures) and not migration.busy)
        steady[0] = 61.0
        assert proxy.reap() == (KEY,)


class TestRaces:
    def test_a_question_while_a_listener_is_closed(self, place: Path) -> None:
        """Whoever still holds a migration that was stopped meanwhile can ask it everything."""
        with manager(config(None)) as proxy:
            (port,) = proxy.start_target_listener(KEY, target_file(place)).ports
            (migration,) = proxy.migrations()
            proxy.stop_target_listener(KEY)
            assert migration.listeners[0].port == port

    def test_start_stop_and_status_at_once(self, place: Path) -> None:
        with manager(config(None)) as proxy:
            control = Control(proxy)
            stop = threading.Event()
            wrong: list[object] = []

            def hammer(ask: str) -> None:
                while not stop.is_set():
                    try:
                        answer = control.answer(ask.encode())
                        if not answer["ok"]:
                            wrong.append(answer)
                    except Exception as error:  # whatever it is
                        wrong.append(error)

            other = str(place / "target" / f"{KEY}-49152")
            first = target_file(place)[0]
            head = f'"key": "{KEY}"'
            asks = [
                f'{{"do": "start-target", {head}, "files": ["{first}"]}}',
                f'{{"do": "start-target", {head}, "files": ["{first}", "{other}"]}}',
                f'{{"do": "stop-target", {head}}}',
                '{"do": "status"}',
            ]
            seen: set[int] = set()

            def turned() -> int:
                seen.add(proxy.target_listener_ports(KEY).generation)
                return len(seen)

            before, running = descriptors(), threading.active_count()
            threads = [threading.Thread(target=hammer, args=(ask,)) for ask in asks]
            for thread in threads:
                thread.start()
            until(lambda: bool(wrong) or turned() > 50)
            stop.set()
            for thread in threads:
                thread.join(120)
            assert wrong == []
            proxy.stop_target_listener(KEY)
            until(lambda: threading.active_count() == running)
            until(lambda: descriptors() <= before)  # an earlier test's may end meanwhile

    def test_a_link_that_goes_while_addresses_are_read(self) -> None:
        """Pods' links come and go; that is no migration's concern."""

        def addresses(name: str) -> list[Any]:
            if name == "cali1":
                raise NotFound("link cali1 not found")
            return [ipaddress.ip_interface("10.1.0.5/24")]

        network = Network(lambda: ["cali1", "eth0"], addresses)
        found = tcp_sockets.bind_addresses("10.1.0.0/24", network)
        assert found == (ipaddress.ip_address("10.1.0.5"),)


class TestLocalPrograms:
    def test_one_that_is_slow_to_accept_is_waited_for(self, place: Path) -> None:
        """A unix socket's connect does not wait by itself when the queue is full."""
        path = str(place / "s")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(0)
            first = connect(path)
            accepted: list[socket.socket] = []

            def pause(_: float) -> bool:
                accepted.append(listener.accept()[0])
                return False

            with unix_sockets.dial(path, 120, lambda _: None, pause):
                assert len(accepted) == 1
            first.close()
            accepted[0].close()

    def test_nobody_waits_longer_than_wanted(self, place: Path) -> None:
        path = str(place / "s")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(0)
            with connect(path):
                with pytest.raises(Unavailable, match="does not take connections"):
                    unix_sockets.dial(path, 120, lambda _: None, lambda _: True)
                with pytest.raises(Unavailable, match="its queue was full for 0 s"):
                    unix_sockets.dial(path, 0.0, lambda _: None, lambda _: False)

    def test_who_gave_up_in_the_queue_is_not_dialled_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A migration that failed leaves no streams that come one by one after it."""
        go, dialled = threading.Event(), []
        dial = Session._dial_peer

        def slow(session: Session) -> socket.socket:
            dialled.append(session)
            assert go.wait(120)
            return dial(session)

        with nodes(config(None), config(None)) as both:
            monkeypatch.setattr(Session, "_dial_peer", slow)
            first = both.call()
            until(lambda: len(dialled) == 1)
            silent, spoke = both.call(), both.call()
            spoke.sendall(b"its last word")
            until(lambda: len(sessions(both.source)) == 3)
            silent.close()
            spoke.close()
            go.set()
            one, other = (both.programs[49152].accept() for _ in range(2))
            assert other.recv(100) == b"its last word"
            until(lambda: len(sessions(both.source)) == 1)
            assert len(dialled) == 2
            (migration,) = both.source.migrations()
            assert "before the peer" not in str(migration.failures.get(49152))
            for sock in (first, one, other):
                sock.close()


class TestLeftovers:
    def test_what_a_kill_left_before_the_file_was_in_its_place(self, place: Path) -> None:
        path = source_path(str(place / "base"), KEY, 0)
        owner = unix_sockets.Owner.named("")
        killed = unix_sockets.UnixListener(path, owner)
        killed.socket.close()
        directory = Path(path).parent
        assert len(list(directory.iterdir())) == 1
        (directory / ".another").write_text("")
        with manager(config(None)) as proxy:
            proxy.start_source_listener(KEY, LOOPBACK, {4000: 0, 4001: 49152}, str(place / "base"))
            found = sorted(one.name for one in directory.iterdir())
            assert found == [".another", f"{KEY}-49152-source.sock", f"{KEY}-source.sock"]

    @pytest.mark.parametrize("kind", ["file", "link", "directory"])
    def test_a_control_socket_is_put_in_nothings_place(self, place: Path, kind: str) -> None:
        path = place / "ctl"
        victim = place / "victim"
        victim.write_text("precious")
        if kind == "link":
            path.symlink_to(victim)
        elif kind == "file":
            path.write_text("precious")
        else:
            path.mkdir()
        with manager(config(None)) as proxy:
            server = ControlServer(path, Control(proxy), NullLog())
            with pytest.raises(InvalidInput, match=r"control_socket .*/ctl is there and no socket"):
                server.open()
        assert victim.read_text() == "precious"
        assert path.is_symlink() or path.is_dir() or path.read_text() == "precious"

    def test_a_control_socket_whose_path_is_too_long_is_named(self, place: Path) -> None:
        path = place / ("x" * 120)
        with (
            manager(config(None)) as proxy,
            pytest.raises(InvalidInput, match=r"control_socket .*x: AF_UNIX path too long"),
        ):
            ControlServer(path, Control(proxy), NullLog()).open()

    def test_only_ones_own_control_socket_goes(self, place: Path) -> None:
        with manager(config(None)) as proxy:
            first, second = (
                ControlServer(place / "ctl", Control(proxy), NullLog()) for _ in range(2)
            )
            first.open()
            second.open()
            first.stop()
            assert (place / "ctl").is_socket()
            second.stop()
            assert not (place / "ctl").exists()


def test_a_fault_of_ours_in_a_request_is_its_answer(place: Path) -> None:
    class Faulty(Control):
        def answer(self, line: bytes) -> dict[str, Any]:
            raise ZeroDivisionError(line)

    with manager(config(None)) as proxy:
        server = ControlServer(place / "ctl", Faulty(proxy), NullLog())
        server.open()
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        with pytest.raises(Refused, match="ZeroDivisionError"):
            ask(str(place / "ctl"), {"do": "status"}, seconds=120)
        server.stop()
        thread.join(120)


def test_the_request_that_lets_the_daemon_end_gets_its_answer(place: Path) -> None:
    """Its migration was the last one of a drain."""
    over = threading.Event()

    class Last(Control):
        def answer(self, line: bytes) -> dict[str, Any]:
            server.stop()
            return {"ok": True, "served_to_the_end": not over.wait(0.5)}

    def body() -> None:
        server.run()
        over.set()

    with manager(config(None)) as proxy:
        server = ControlServer(place / "ctl", Last(proxy), NullLog())
        server.open()
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        assert ask(str(place / "ctl"), {"do": "status"}, seconds=120)["served_to_the_end"]
        thread.join(120)
    assert over.is_set()


def test_a_flood_from_one_address_makes_its_own_streams_go() -> None:
    def shaking(party: str) -> Session:
        sock = socket.socket()
        request = target_request(KEY, ["/none"], tls=True)
        means = Means(None, None, (), Patience(), 10.0, Lanes(1))
        stop = threading.Event()
        made = Session(request, request.streams[0], sock, means, stop, Order(), party)
        made.phase = Phase.SHAKING
        return made

    there = [shaking("slow"), *[shaking("flood") for _ in range(3)], shaking("slow")]
    assert most_burdensome(there) is there[1]
    assert most_burdensome([there[0], there[1]]) is there[0]
    for each in there:
        each.accepted.close()
