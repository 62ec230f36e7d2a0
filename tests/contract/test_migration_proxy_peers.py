"""Who may open a stream: certificates, names, addresses, modes, silence and garbage."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from libtortie.errors import InvalidInput
from libtortie.jsonlog import JsonLog
from migration_proxy.config import CLIENT_CNS, SERVER_CNS, PairConfig, TlsConfig
from migration_proxy.listener import MOST_SHAKING
from migration_proxy.manager import ProxyManager
from migration_proxy.session import Phase
from migration_proxy.tls_files import load
from tests.fakes.migration_proxies import (
    KEY,
    LOOPBACK,
    Nodes,
    Pki,
    config,
    connect,
    ended,
    manager,
    nodes,
    pair,
    sessions,
    short_directory,
    until,
)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path / "pki")


class Lines:
    """A log that is kept."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


def failure(proxy: ProxyManager, logical: int = 49152) -> str:
    """The last failure of a stream, once there is one."""
    found: list[str] = []

    def look() -> bool:
        for one in proxy.migrations():
            if logical in one.failures:
                found.append(str(one.failures[logical]))
        return bool(found)

    until(look)
    return found[0]


def refused(nodes: Nodes) -> None:
    """A caller gets nothing, and the target's program hears of nobody."""
    caller = nodes.call()
    assert ended(caller)
    caller.close()
    until(lambda: not sessions(nodes.target) and not sessions(nodes.source))
    assert not nodes.programs[49152].called


class TestCertificates:
    def test_a_foreign_targets(self, pki: Pki, tmp_path: Path) -> None:
        other = Pki.make(tmp_path / "other", "other-ca").tls()
        with nodes(config(pki.tls()), config(other)) as made:
            refused(made)
            assert "could not verify peer certificate" in failure(made.source)

    def test_a_foreign_sources(self, pki: Pki, tmp_path: Path) -> None:
        """It trusts us, we don't trust it: it never gets to the local socket."""
        stranger = Pki.make(tmp_path / "other", "other-ca").authority.client(CLIENT_CNS[0])
        ours = pki.tls()
        theirs = ours.model_copy(update={"migration": pair(stranger)})
        with nodes(config(theirs), config(ours)) as made:
            refused(made)
            assert "not of the CA in tls.ca" in failure(made.target)
            assert "refuses our certificate" in failure(made.source)

    @pytest.mark.parametrize("common_name", ["kubevirt.io:system:client:other", "admin"])
    def test_a_clients_name_that_is_not_listed(self, pki: Pki, common_name: str) -> None:
        ours = pki.tls()
        theirs = ours.model_copy(update={"migration": pair(pki.authority.client(common_name))})
        with nodes(config(theirs), config(ours)) as made:
            refused(made)
            said = failure(made.target)
            assert "could not verify peer certificate: common name is invalid, got" in said
            assert common_name in said

    def test_a_servers_name_that_is_not_listed(self, pki: Pki) -> None:
        ours = pki.tls()
        theirs = ours.model_copy(update={"server": pair(pki.authority.server("admin"))})
        with nodes(config(ours), config(theirs)) as made:
            refused(made)
            assert "common name is invalid, got admin" in failure(made.source)

    def test_any_name_where_certificates_are_managed_elsewhere(self, pki: Pki) -> None:
        theirs = pki.tls(externally_managed=True).model_copy(
            update={
                "server": pair(pki.authority.server("a")),
                "migration": pair(pki.authority.client("b")),
            }
        )
        with nodes(config(theirs), config(theirs)) as made:
            caller, program = made.pair()
            caller.sendall(b"in")
            assert program.recv(2) == b"in"

    def test_a_servers_certificate_is_no_clients(self, pki: Pki) -> None:
        ours = pki.tls()
        theirs = ours.model_copy(update={"migration": ours.server})
        with nodes(config(theirs), config(ours)) as made:
            refused(made)
            assert "extended key usage" in failure(made.target)

    @pytest.mark.parametrize("whose", ["source", "target"])
    def test_an_expired_one(self, pki: Pki, whose: str) -> None:
        """Who refuses says so, and what to do; who is refused learns it from the alert."""
        ours = pki.tls()
        old = {
            "source": {"migration": pair(pki.authority.client(CLIENT_CNS[0] + "x", days=-1))},
            "target": {"server": pair(pki.authority.server(SERVER_CNS[0] + "x", days=-1))},
        }[whose]
        theirs = ours.model_copy(update=old)
        sides = (theirs, ours) if whose == "source" else (ours, theirs)
        with nodes(*map(config, sides)) as made:
            refused(made)
            judge, other = (made.target, made.source)[:: 1 if whose == "source" else -1]
            said = failure(judge)
            assert "could not verify peer certificate: certificate has expired" in said
            assert "renew it, or mend this node's clock" in said
            assert "refuses our certificate" in failure(other)
            side = "target" if whose == "source" else "source"
            assert judge.telemetry.handshakes.value(side, "certificate") == 1

    def test_another_node_than_this_migrations(self, pki: Pki) -> None:
        tls = pki.tls(hosts=("node2", "127.0.0.1"))
        with nodes(config(tls), config(tls)) as made:
            made.start_source(peer_name="node3")
            refused(made)
            assert failure(made.source).endswith("this migration's peer is node3")
            made.start_source(peer_name="node2")
            caller, program = made.pair()
            caller.sendall(b"in")
            assert program.recv(2) == b"in"

    def test_no_certificate(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(pki.tls())) as made:
            context = ssl.create_default_context(cafile=str(pki.authority.cert))
            context.check_hostname = False
            with (
                raw(made) as sock,
                pytest.raises((ssl.SSLError, ConnectionError)),
                context.wrap_socket(sock) as wrapped,
            ):
                wrapped.recv(1)
                raise ConnectionResetError  # an end of file will do
            assert "could not verify peer certificate" in failure(made.target)
            assert not made.programs[49152].called

    def test_the_source_speaks_no_old_tls(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(pki.tls())) as made:
            context = ssl.create_default_context(cafile=str(pki.authority.cert))
            context.check_hostname = False
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with raw(made) as sock, pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(sock)
            assert not made.programs[49152].called


def raw(nodes: Nodes, logical: int = 49152) -> socket.socket:
    """A stranger's TCP connection to the target."""
    (port,) = [port for port, name in nodes.ports.ports.items() if name == logical]
    return socket.create_connection(("127.0.0.1", port), 120)


class TestModes:
    @pytest.mark.parametrize("talks", ["source", "target"])
    def test_a_plain_source_and_a_tls_target(self, pki: Pki, talks: str) -> None:
        """Whoever speaks first: in NBD it is the target, which then nobody would hear."""
        patience = 120 if talks == "source" else 0.5
        target = config(pki.tls(), handshake_seconds=patience)
        with nodes(config(None), target) as made:
            caller = made.call()
            if talks == "source":
                caller.sendall(b"QEVM")
            assert ended(caller)
            assert "set disable_tls alike on both nodes" in failure(made.source)
            assert "disable_tls" in failure(made.target)
            assert not made.programs[49152].called

    def test_a_tls_source_and_a_plain_target(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(None)) as made:
            caller = made.call()
            assert ended(caller)
            assert "the peer speaks TLS here" in failure(made.target)
            assert "disable_tls" in failure(made.source)

    def test_a_tls_source_and_a_plain_target_that_speaks_first(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(None)) as made:
            (port,) = [port for port, name in made.ports.ports.items() if name == 49152]
            made.target.stop_target_listener(KEY)
            with socket.create_server(("127.0.0.1", port)) as nbd:
                caller = made.call()
                accepted, _ = nbd.accept()
                accepted.sendall(b"NBDMAGIC")
                assert ended(caller)
                accepted.close()
            assert "the peer speaks plain here" in failure(made.source)

    def test_a_plain_source_and_a_target_that_goes_without_a_word(self) -> None:
        """As KubeVirt's does that has TLS: it reads what is none, and closes."""
        with nodes(config(None), config(None)) as made:
            (port,) = [port for port, name in made.ports.ports.items() if name == 49152]
            made.target.stop_target_listener(KEY)
            with socket.create_server(("127.0.0.1", port)) as theirs:
                caller = made.call()
                caller.sendall(b"QEVM")
                accepted, _ = theirs.accept()
                accepted.recv(1)
                accepted.close()
                assert ended(caller)
            assert "disable_tls is on here and must be alike" in failure(made.source)

    def test_plain_is_for_allowed_addresses_only(self) -> None:
        with nodes(config(None), config(None, allowed_peers=["192.0.2.0/24"])) as made:
            refused(made)
            assert "127.0.0.1 may not connect" in failure(made.target)

    def test_a_migrations_peer_is_the_only_one(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(pki.tls())) as made:
            made.ports = made.target.start_target_listener(
                KEY,
                [str(each.path) for each in made.programs.values()],
                peer=ipaddress.ip_address("127.0.0.9"),
            )
            made.start_source()
            refused(made)
            assert failure(made.target) == (
                "127.0.0.1 may not connect: this migration's is 127.0.0.9"
            )


class TestHostile:
    @pytest.mark.parametrize(
        "garbage",
        [
            b"\x16\x03\x01\xff\xff" + b"\0" * 70000,
            b"\x16\x03\x01\x00\x05hello",
            b"\x15\x03\x01\x00\x02\x02\x28",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0" * 4096,
        ],
    )
    def test_garbage_ends_with_one_reason(self, pki: Pki, garbage: bytes) -> None:
        with nodes(config(pki.tls()), config(pki.tls())) as made:
            going, program = made.pair()
            with raw(made) as sock:
                sock.sendall(garbage)
                until(lambda: bool(failure(made.target)))
                assert ended(sock) or sock.recv(100) is not None
            assert not made.programs[49152].called
            going.sendall(b"untouched")
            assert program.recv(100) == b"untouched"

    def test_a_silent_peer_is_given_up_and_nothing_was_dialled(self, pki: Pki) -> None:
        target = config(pki.tls(), handshake_seconds=0.3)
        with nodes(config(pki.tls()), target) as made, raw(made) as sock:
            while sock.recv(100):
                pass
            assert "no TLS handshake within 0.3 s" in failure(made.target)
            assert not made.programs[49152].called

    def test_silent_peers_do_not_keep_others_out(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(pki.tls())) as made:
            silent = [raw(made) for _ in range(MOST_SHAKING + 20)]
            caller, program = made.pair()
            caller.sendall(b"in")
            assert program.recv(2) == b"in"
            until(lambda: len(sessions(made.target)) <= MOST_SHAKING + 1)
            for sock in silent:
                sock.close()

    def test_more_streams_than_there_may_be(self, pki: Pki) -> None:
        with nodes(config(pki.tls()), config(pki.tls(), most_streams=64)) as made:
            going = [made.pair() for _ in range(64)]
            until(lambda: all(each.phase is Phase.MOVING for each in sessions(made.target)))
            late = made.call()
            assert ended(late)
            for caller, program in going:
                caller.sendall(b"x")
                assert program.recv(1) == b"x"

    def test_a_peer_that_takes_nothing_is_given_up(self) -> None:
        """By the kernel's user timeout; its reason is told."""
        source = config(None, stall_seconds=1)
        with (
            short_directory() as place,
            manager(source) as proxy,
            socket.create_server(("127.0.0.1", 0)) as deaf,
        ):
            base = str(place / "base")
            (path,) = proxy.start_source_listener(KEY, LOOPBACK, {deaf.getsockname()[1]: 0}, base)
            caller = connect(path)
            accepted, _ = deaf.accept()
            with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
                while True:
                    caller.sendall(b"x" * 100_000)
            assert "for too long" in failure(proxy, 0)
            accepted.close()


class TestFiles:
    def test_a_key_of_another_certificate(self, pki: Pki) -> None:
        tls = pki.tls()
        mixed = PairConfig(cert=tls.server.cert, key=tls.migration.key)
        with pytest.raises(InvalidInput, match=r"certificate .* and key .* do not belong together"):
            load(tls, mixed, server=True)

    @pytest.mark.parametrize("which", ["ca", "cert", "key"])
    @pytest.mark.parametrize("what", ["missing", "empty", "garbage"])
    def test_files_that_are_none_are_named(self, pki: Pki, which: str, what: str) -> None:
        tls = pki.tls()
        path = Path({"ca": tls.ca, "cert": tls.server.cert, "key": tls.server.key}[which])
        path.unlink() if what == "missing" else path.write_bytes(
            b"" if what == "empty" else os.urandom(500)
        )
        with pytest.raises(InvalidInput) as caught:
            load(tls, tls.server, server=True)
        assert str(path) in str(caught.value)

    def test_ciphers_that_there_are_not(self, pki: Pki) -> None:
        with pytest.raises(InvalidInput, match=r"tls\.ciphers 'NONE-SUCH'"):
            tls = pki.tls(ciphers="NONE-SUCH")
            load(tls, tls.server, server=True)

    def test_rotation(self, tmp_path: Path) -> None:
        """Old CA, both, new CA: streams that run go on, new ones use what is there then."""
        old, new = Pki.make(tmp_path / "old", "old-ca"), Pki.make(tmp_path / "new", "new-ca")
        ours, theirs = old.tls(), rehomed(old.tls(), tmp_path / "target")
        with nodes(config(ours), config(theirs)) as made:
            running, program = made.pair()
            both = Path(ours.ca).read_bytes() + new.authority.cert.read_bytes()
            for tls in (ours, theirs):
                Path(tls.ca).write_bytes(both)
            works(made)
            replace_pairs(theirs, new)
            works(made)
            replace_pairs(ours, new)
            works(made)
            for tls in (ours, theirs):
                Path(tls.ca).write_bytes(new.authority.cert.read_bytes())
            works(made)
            caller, accepted = made.pair()
            running.sendall(b"still")
            assert program.recv(5) == b"still"
            Path(ours.migration.cert).write_bytes(b"")  # half a rotation: the old pair serves on
            works(made)
            for sock in (running, program, caller, accepted):
                sock.close()
            replace_pairs(ours, old)
            refused(made)

    def test_a_bad_rotation_is_told_once(self, pki: Pki) -> None:
        tls, lines = pki.tls(), Lines()
        log = JsonLog(lines)
        with nodes(config(tls), config(tls), logs=(log, log)) as made:
            works(made)
            shutil.copy(tls.server.key, tls.migration.key)
            for _ in range(3):
                works(made)
        assert lines.text.count("tls_files_not_taken") == 1
        assert "do not belong together" in lines.text


def rehomed(tls: TlsConfig, directory: Path) -> TlsConfig:
    """The same files, in a directory of their own."""
    directory.mkdir()

    def moved(path: str) -> str:
        return str(shutil.copy(path, directory / Path(path).name))

    def both(files: PairConfig) -> PairConfig:
        return PairConfig(cert=moved(files.cert), key=moved(files.key))

    return tls.model_copy(
        update={
            "ca": moved(tls.ca),
            "server": both(tls.server),
            "migration": both(tls.migration),
        }
    )


def replace_pairs(tls: TlsConfig, pki: Pki) -> None:
    """New pairs in the old ones' files."""
    for files, fresh in (
        (tls.server, pki.authority.server(SERVER_CNS[0])),
        (tls.migration, pki.authority.client(CLIENT_CNS[0])),
    ):
        Path(files.cert).write_bytes(fresh.cert.read_bytes())
        Path(files.key).write_bytes(fresh.key.read_bytes())


def works(made: Nodes, word: Any = b"works") -> None:
    """A new stream carries something."""
    caller, program = made.pair()
    caller.sendall(word)
    assert program.recv(100) == word
    caller.close()
    assert program.recv(1) == b""
    program.close()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_peer_that_vanishes_is_noticed(pki: Pki, side: str) -> None:
    """By keepalives when nothing flows, by the kernel's user timeout when something does."""
    tls = pki.tls()
    settings = config(tls, stall_seconds=7, keepalive_seconds=3)
    with nodes(settings, settings) as made:
        caller, program = made.pair()
        (session,) = sessions(made.source if side == "source" else made.target)
        (remote,) = [each for each in session._sockets if each.family == socket.AF_INET]
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        found = [remote.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        assert found == [3, 3, 4, 7000]
        assert remote.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        caller.close()
        program.close()


def test_a_limit_of_bytes_a_second_is_kept(pki: Pki) -> None:
    """Of all streams of a migration together; how long it took is at least what it must take."""
    tls = pki.tls()
    with nodes(config(tls), config(tls)) as made:
        made.start_source(rate=2_000_000)
        began = time.monotonic()
        threads = []
        for _ in range(2):
            caller, program = made.pair()
            thread = threading.Thread(target=caller.sendall, args=(b"x" * 1_000_000,), daemon=True)
            thread.start()
            threads.append((thread, program))
        for thread, program in threads:
            left = 1_000_000
            while left:
                left -= len(program.recv(left))
            thread.join(120)
        assert time.monotonic() - began >= 0.8  # 2 MB, a burst of 0.2 MB
