"""Start and Stop calls: repeated, changed, failed, late; sockets' places; a node's descriptors."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from libtortie.errors import InvalidInput, Unavailable
from libtortie.jsonlog import NullLog
from migration_proxy.config import TlsConfig
from migration_proxy.manager import ProxyManager
from migration_proxy.model import MOST_PATH_BYTES, ShuttingDown
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
    until,
)

LATE = "unable to process new migration connections during virt-handler shutdown"


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    return Pki.make(tmp_path / "pki").tls()


@pytest.fixture
def proxy(tls: TlsConfig) -> Iterator[ProxyManager]:
    with manager(config(tls)) as made:
        yield made


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as made:
        yield made


def files(place: Path, *logical: int) -> list[str]:
    """Target sockets that nobody made."""
    return [str(place / "target" / (f"{KEY}-{port}" if port else "virtqemud")) for port in logical]


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def start_source(proxy: ProxyManager, place: Path, ports: dict[int, int]) -> tuple[str, ...]:
    return proxy.start_source_listener(KEY, LOOPBACK, ports, str(place / "base"))


class TestTarget:
    def test_the_same_again_keeps_its_ports(self, proxy: ProxyManager, place: Path) -> None:
        first = proxy.start_target_listener(KEY, files(place, 0, 49152))
        assert proxy.start_target_listener(KEY, files(place, 49152, 0)) == first

    def test_a_change_moves_all_and_has_another_generation(
        self, proxy: ProxyManager, place: Path
    ) -> None:
        first = proxy.start_target_listener(KEY, files(place, 0, 49152))
        second = proxy.start_target_listener(KEY, files(place, 0, 49152, 49153))
        assert not set(first.ports) & set(second.ports)
        assert second.generation > first.generation
        assert sorted(second.ports.values()) == [0, 49152, 49153]
        assert proxy.open_listener_count() == 1
        for port in first.ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 60)

    def test_a_new_proxy_has_another_generation(self, tls: TlsConfig, place: Path) -> None:
        """The ports of one that was started anew are published again."""
        generations = []
        for _ in range(2):
            with manager(config(tls)) as one:
                generations.append(one.start_target_listener(KEY, files(place, 0)).generation)
            until(lambda: one.open_listener_count() == 0)
        assert generations[1] > generations[0]

    def test_a_failed_change_keeps_the_old_ones(self, tls: TlsConfig, place: Path) -> None:
        """And what failed can be asked for again; nothing is closed twice."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with manager(config(tls, port_range=f"{port - 1}-{port}")) as proxy:
                try:
                    first = proxy.start_target_listener(KEY, files(place, 0))
                except Unavailable:
                    return  # somebody else has the port before it
                before = descriptors()
                for _ in range(3):
                    with pytest.raises(Unavailable, match=r"no free port in .*; widen port_range"):
                        proxy.start_target_listener(KEY, files(place, 0, 49152))
                assert descriptors() == before
                assert proxy.target_listener_ports(KEY) == first
                socket.create_connection(("127.0.0.1", port - 1), 60).close()
                proxy.stop_target_listener(KEY)
                proxy.stop_target_listener(KEY)

    def test_fifty_cancelled_migrations_give_their_ports_back(
        self, tls: TlsConfig, place: Path
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with manager(config(tls, port_range=f"{port}-{port}")) as proxy:
            for number in range(50):
                key = f"{KEY}-{number}"
                made = proxy.start_target_listener(key, files(place, 0))
                caller = socket.create_connection(("127.0.0.1", port), 60)
                assert made.ports == {port: 0}
                proxy.stop_target_listener(key)
                assert ended(caller)
                caller.close()

    def test_more_at_once_than_the_range_has_ports_for(self, tls: TlsConfig, place: Path) -> None:
        """Each has all of its ports or none; who fails keeps none from the others."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            first = min(probe.getsockname()[1], 65000)
        made: dict[str, dict[int, int]] = {}
        refused: dict[str, str] = {}
        with manager(config(tls, port_range=f"{first}-{first + 19}")) as proxy:
            together = threading.Barrier(16)

            def start(key: str) -> None:
                paths = [str(place / "target" / f"{key}-{port}") for port in (49152, 49153)]
                together.wait(60)
                try:
                    made[key] = dict(proxy.start_target_listener(key, paths).ports)
                except Unavailable as error:
                    refused[key] = str(error)

            threads = [threading.Thread(target=start, args=(f"vm-{n}",)) for n in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            ports = [port for each in made.values() for port in each]
            assert len(made) + len(refused) == 16
            assert len(refused) >= 6
            assert len(ports) == len(set(ports)) == 2 * len(made)
            assert all("widen port_range" in text for text in refused.values())
            assert proxy.open_listener_count() == len(made)
            assert sum(map(_free, range(first, first + 20))) <= 1
            for key in made:
                proxy.stop_target_listener(key)
            assert all(map(_free, ports))

    def test_what_nobody_stops_is_ended_some_time(self, tls: TlsConfig, place: Path) -> None:
        clock = [1000.0]
        settings = config(tls, idle_seconds=60)
        proxy = ProxyManager(settings, NETWORK, _silent(), steady=lambda: clock[0])
        proxy.start_target_listener(KEY, files(place, 0))
        clock[0] += 59
        assert proxy.reap() == ()
        clock[0] += 2
        assert proxy.reap() == (KEY,)
        assert proxy.open_listener_count() == 0

    def test_an_unknown_key_has_no_ports_and_can_be_stopped(self, proxy: ProxyManager) -> None:
        assert proxy.target_listener_ports("unknown").ports == {}
        proxy.stop_target_listener("unknown")
        proxy.stop_source_listener("unknown")
        assert proxy.source_listener_files("unknown") == ()

    def test_a_configured_network_is_the_only_one_listened_on(
        self, tls: TlsConfig, place: Path
    ) -> None:
        with manager(config(tls, listen="127.0.0.0/8")) as proxy:
            (port,) = proxy.start_target_listener(KEY, files(place, 0)).ports
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), 60)


class TestSource:
    def test_the_same_again_keeps_its_sockets(self, proxy: ProxyManager, place: Path) -> None:
        made = start_source(proxy, place, {4000: 0, 4001: 49152})
        inodes = [Path(each).stat().st_ino for each in made]
        assert start_source(proxy, place, {4001: 49152, 4000: 0}) == made
        assert [Path(each).stat().st_ino for each in made] == inodes

    def test_new_ports_are_dialled_after_the_target_restarted(self, tls: TlsConfig) -> None:
        with nodes(config(tls), config(tls)) as made:
            made.target.stop_target_listener(KEY)
            fresh = made.target.start_target_listener(
                KEY, [str(each.path) for each in made.programs.values()]
            )
            made.ports = fresh
            made.start_source()
            caller, program = made.pair()
            caller.sendall(b"there")
            assert program.recv(5) == b"there"

    def test_a_socket_that_somebody_removed_is_made_again(
        self, proxy: ProxyManager, place: Path
    ) -> None:
        (path,) = start_source(proxy, place, {4000: 0})
        Path(path).unlink()
        assert start_source(proxy, place, {4000: 0}) == (path,)
        assert Path(path).is_socket()

    def test_there_is_no_moment_without_a_socket(self, proxy: ProxyManager, place: Path) -> None:
        (path,) = start_source(proxy, place, {4000: 0})
        over = threading.Event()
        missed: list[OSError] = []

        def knock() -> None:
            while not over.is_set():
                try:
                    connect(path).close()
                except OSError as error:
                    if error.errno != errno.EAGAIN:
                        missed.append(error)

        thread = threading.Thread(target=knock, daemon=True)
        thread.start()
        for port in range(4001, 4051):
            start_source(proxy, place, {port: 0})
        over.set()
        thread.join(120)
        assert [each for each in missed if each.errno == errno.ENOENT] == []

    def test_a_failed_change_keeps_the_old_ones(self, proxy: ProxyManager, place: Path) -> None:
        (path,) = start_source(proxy, place, {4000: 0})
        obstacle = place / "base" / "migrationproxy" / f"{KEY}-49152-source.sock"
        obstacle.mkdir()
        before = descriptors()
        for _ in range(3):
            with pytest.raises(InvalidInput, match="is a directory, not a socket: remove it"):
                start_source(proxy, place, {4000: 0, 4001: 49152})
        assert descriptors() == before
        assert sorted(each.name for each in obstacle.parent.iterdir()) == sorted(
            [Path(path).name, obstacle.name]
        )
        connect(path).close()
        obstacle.rmdir()
        assert len(start_source(proxy, place, {4000: 0, 4001: 49152})) == 2

    def test_sockets_belong_to_who_shall_connect(self, tls: TlsConfig, place: Path) -> None:
        uid = 12345 if os.geteuid() == 0 else os.geteuid()
        with manager(config(tls, socket_user=f"{uid}:{uid}")) as proxy:
            (path,) = start_source(proxy, place, {4000: 0})
            state = Path(path).stat()
            assert (state.st_uid, state.st_mode & 0o777) == (uid, 0o600)

    def test_a_longer_path_than_a_socket_has(self, proxy: ProxyManager, place: Path) -> None:
        base = place / ("x" * (MOST_PATH_BYTES - 20 - len(str(place))))
        base.mkdir()
        with pytest.raises(InvalidInput, match="a unix socket's path has at most 107"):
            proxy.start_source_listener(KEY, LOOPBACK, {4000: 0}, str(base))

    def test_no_base_directory(self, proxy: ProxyManager, place: Path) -> None:
        with pytest.raises(InvalidInput, match="the base directory must be there"):
            proxy.start_source_listener(KEY, LOOPBACK, {4000: 0}, str(place / "none"))

    def test_an_unknown_user(self, tls: TlsConfig) -> None:
        with pytest.raises(InvalidInput, match="socket_user 'nobody-at-all': no such user"):
            ProxyManager(config(tls, socket_user="nobody-at-all"), NETWORK, _silent())


class TestPlaces:
    """What stands where a socket has to be."""

    @pytest.fixture
    def socket_path(self, place: Path) -> Path:
        directory = place / "base" / "migrationproxy"
        directory.mkdir()
        return directory / f"{KEY}-source.sock"

    def test_a_dead_socket_is_replaced(
        self, proxy: ProxyManager, place: Path, socket_path: Path
    ) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(socket_path))
        start_source(proxy, place, {4000: 0})
        connect(str(socket_path)).close()

    def test_a_live_one_is_not(self, proxy: ProxyManager, place: Path, socket_path: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as live:
            live.bind(str(socket_path))
            live.listen(1)
            with pytest.raises(InvalidInput, match="another program listens there"):
                start_source(proxy, place, {4000: 0})
            connect(str(socket_path)).close()

    @pytest.mark.root
    def test_another_users_is_not(
        self, proxy: ProxyManager, place: Path, socket_path: Path
    ) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(socket_path))
        os.chown(socket_path, 12345, 12345)
        with pytest.raises(InvalidInput, match="is a socket of uid 12345, not of 0: remove it"):
            start_source(proxy, place, {4000: 0})
        assert socket_path.is_socket()

    def test_a_link_at_the_socket_is_not_followed(
        self, proxy: ProxyManager, place: Path, socket_path: Path
    ) -> None:
        elsewhere = place / "elsewhere"
        socket_path.symlink_to(elsewhere)
        with pytest.raises(InvalidInput, match="is a link, not a socket"):
            start_source(proxy, place, {4000: 0})
        assert not elsewhere.exists()

    def test_a_link_at_its_directory_is_not_followed(
        self, proxy: ProxyManager, place: Path
    ) -> None:
        outside = place / "outside"
        outside.mkdir()
        (place / "base" / "migrationproxy").symlink_to(outside)
        with pytest.raises(InvalidInput, match="is a link"):
            start_source(proxy, place, {4000: 0})
        assert list(outside.iterdir()) == []

    @pytest.mark.root
    def test_a_guests_link_above_it_is_not_followed(self, proxy: ProxyManager, place: Path) -> None:
        outside, guests = place / "outside", place / "guests"
        outside.mkdir()
        guests.mkdir()
        (guests / "base").symlink_to(outside)
        os.chown(guests, 12345, 12345)
        os.chown(guests / "base", 12345, 12345, follow_symlinks=False)
        with pytest.raises(InvalidInput, match="a link that others than root can change"):
            proxy.start_source_listener(KEY, LOOPBACK, {4000: 0}, str(guests / "base"))
        assert list(outside.iterdir()) == []

    @pytest.mark.root
    def test_an_administrators_link_is_followed(self, proxy: ProxyManager, place: Path) -> None:
        """`/var/run` is one to `/run`."""
        place.chmod(0o755)
        (place / "var").symlink_to("base")
        (path,) = proxy.start_source_listener(KEY, LOOPBACK, {4000: 0}, str(place / "var"))
        assert Path(path).is_socket()

    def test_a_link_at_a_targets_socket_is_not_dialled(self, tls: TlsConfig) -> None:
        with nodes(config(tls), config(tls)) as made:
            program = made.programs[49152]
            real = program.path.rename(program.path.with_name("elsewhere"))
            program.path.symlink_to(real)
            caller = made.call()
            assert ended(caller)
            assert not program.called

    def test_only_our_own_socket_is_removed(
        self, proxy: ProxyManager, place: Path, socket_path: Path
    ) -> None:
        start_source(proxy, place, {4000: 0})
        socket_path.unlink()
        socket_path.write_text("another's")
        proxy.stop_source_listener(KEY)
        assert socket_path.read_text() == "another's"

    def test_a_directory_swapped_for_a_link_meanwhile(
        self, proxy: ProxyManager, place: Path
    ) -> None:
        """Stopping removes in the directory it was made in, and nothing by that name elsewhere."""
        (path,) = start_source(proxy, place, {4000: 0})
        directory, outside = Path(path).parent, place / "outside"
        outside.mkdir()
        (outside / Path(path).name).write_text("another's")
        moved = directory.rename(place / "moved")
        directory.symlink_to(outside)
        proxy.stop_source_listener(KEY)
        assert (outside / Path(path).name).read_text() == "another's"
        assert list(moved.iterdir()) == []


class TestShutdown:
    def test_new_migrations_are_refused_even_known_ones(
        self, proxy: ProxyManager, place: Path
    ) -> None:
        proxy.start_target_listener(KEY, files(place, 0))
        start_source(proxy, place, {4000: 0})
        ending: list[bool] = []
        thread = threading.Thread(target=lambda: ending.append(proxy.shutdown(600)), daemon=True)
        thread.start()
        until(lambda: proxy.shutting_down)
        with pytest.raises(ShuttingDown) as caught:
            proxy.start_target_listener(KEY, files(place, 0))
        assert str(caught.value) == LATE
        with pytest.raises(ShuttingDown) as caught:
            start_source(proxy, place, {4000: 0})
        assert str(caught.value) == LATE
        assert proxy.open_listener_count() == 2
        assert not ending
        proxy.stop_source_listener(KEY)
        assert not ending
        proxy.stop_target_listener(KEY)
        thread.join(120)
        assert ending == [True]

    def test_a_stream_goes_on_while_it_drains(self, tls: TlsConfig) -> None:
        with nodes(config(tls), config(tls)) as made:
            caller, program = made.pair()
            thread = threading.Thread(target=made.target.shutdown, args=(600,), daemon=True)
            thread.start()
            until(lambda: made.target.shutting_down)
            caller.sendall(b"still here")
            assert program.recv(100) == b"still here"
            made.target.stop_target_listener(KEY)
            thread.join(120)

    def test_what_does_not_end_is_ended(self, tls: TlsConfig) -> None:
        with nodes(config(tls), config(tls)) as made:
            caller, program = made.pair()
            assert made.source.shutdown(0.0) is False
            assert ended(caller)
            assert ended(program)
            assert sessions(made.source) == []


def _silent() -> NullLog:
    return NullLog()
