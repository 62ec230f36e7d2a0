"""Our migration proxy and KubeVirt's own, in both directions: bytes, ports, certificates, modes.

KubeVirt's ends a connection with its first direction and leaves its outgoing leg open, so nobody
here waits for an end that it would have to pass on. It dials the program before the handshake.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from migration_proxy.config import ProxyConfig
from migration_proxy.manager import ProxyManager
from migration_proxy.model import SHUTTING_DOWN, source_path
from tests.fakes.kubevirt import KubeVirtProxy, Refused, kubevirt_proxy
from tests.fakes.migration_proxies import (
    KEY,
    LOOPBACK,
    Pki,
    Program,
    config,
    connect,
    digest,
    ended,
    manager,
    sending,
    short_directory,
    until,
)

LOGICAL = (0, 49152, 49153)
OURS_IS_SOURCE, OURS_IS_TARGET = "ours to KubeVirt's", "KubeVirt's to ours"


@dataclass(slots=True)
class Both:
    """A migration between the two proxies."""

    ours: ProxyManager
    theirs: KubeVirtProxy
    base: str
    programs: dict[int, Program]
    ports: dict[str, int]

    def pair(self, logical: int) -> tuple[socket.socket, socket.socket]:
        """A stream: the source's end, the target's end."""
        caller = self.call(logical)
        return caller, self.programs[logical].accept()

    def call(self, logical: int = 49152) -> socket.socket:
        """A connection of the source's program."""
        return connect(source_path(self.base, KEY, logical))

    def failure(self) -> str:
        """Our last failure of the memory's stream, once there is one."""
        found: list[str] = []

        def look() -> bool:
            for one in self.ours.migrations():
                found.extend(str(each) for each in one.failures.values())
            return bool(found)

        until(look)
        return found[0]


@contextmanager
def migration(direction: str, settings: ProxyConfig, theirs: KubeVirtProxy) -> Iterator[Both]:
    """Listeners of both, and the target's programs."""
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory())
        ours = stack.enter_context(manager(settings))
        programs = {}
        for port in LOGICAL:
            name = f"{KEY}-{port}-source.sock" if port else "virtqemud-sock"
            programs[port] = Program(directory / "target" / name)
            stack.callback(programs[port].close)
        files = [str(each.path) for each in programs.values()]
        base = str(directory / "base")
        if direction == OURS_IS_SOURCE:
            ports = theirs.start_target(KEY, files)
            numbers = {int(port): logical for port, logical in ports.items()}
            ours.start_source_listener(KEY, LOOPBACK, numbers, base)
        else:
            ports = ours.start_target_listener(KEY, files).wire()
            theirs.start_source(KEY, str(LOOPBACK), ports, base)
        yield Both(ours, theirs, base, programs, ports)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki.make(tmp_path / "pki")


@pytest.fixture(params=[OURS_IS_SOURCE, OURS_IS_TARGET])
def direction(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(params=["TLS 1.3", "plain"])
def both(request: pytest.FixtureRequest, direction: str, pki: Pki) -> Iterator[Both]:
    plain = request.param == "plain"
    with (
        kubevirt_proxy(pki.authority, disable_tls=plain) as theirs,
        migration(direction, config(None if plain else pki.tls()), theirs) as made,
    ):
        yield made


def whole(sock: socket.socket, size: int) -> bytes:
    """So many bytes."""
    parts = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        assert part
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def test_each_socket_leads_to_its_own_both_ways(both: Both) -> None:
    assert sorted(both.ports.values()) == list(LOGICAL)
    for logical in LOGICAL:
        caller, program = both.pair(logical)
        for one, other in ((caller, program), (program, caller)):
            data = os.urandom(3_000_000)
            thread = sending(one, data, end=False)
            assert digest(whole(other, len(data))) == digest(data)
            thread.join()
        caller.close()
        program.close()


def test_nine_streams_at_once(both: Both) -> None:
    pairs = [both.pair(49152) for _ in range(9)]
    data = [os.urandom(2_000_000) for _ in pairs]
    threads = [
        sending(caller, each, end=False) for (caller, _), each in zip(pairs, data, strict=True)
    ]
    got = [digest(whole(program, len(data[0]))) for _, program in pairs]
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(map(digest, data))


def test_both_ways_at_once(both: Both) -> None:
    caller, program = both.pair(0)
    there, back = os.urandom(5_000_000), os.urandom(4_000_000)
    threads = [sending(caller, there, end=False), sending(program, back, end=False)]
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(whole(program, len(there))))
    reader.start()
    assert digest(whole(caller, len(back))) == digest(back)
    for thread in (*threads, reader):
        thread.join()
    assert digest(found[0]) == digest(there)


def test_a_stranger_gets_to_no_program(direction: str, pki: Pki, tmp_path: Path) -> None:
    """Its CA is not ours; we are trusted by it, or are not."""
    stranger = Pki.make(tmp_path / "other", "other-ca")
    with (
        kubevirt_proxy(stranger.authority, pki.authority) as theirs,
        migration(direction, config(pki.tls()), theirs) as made,
    ):
        assert ended(made.call())
        assert "could not verify peer certificate" in made.failure()
        assert direction == OURS_IS_SOURCE or not made.programs[49152].called


def test_we_are_the_stranger(direction: str, pki: Pki, tmp_path: Path) -> None:
    stranger = Pki.make(tmp_path / "other", "other-ca")
    ours = stranger.tls().model_copy(update={"ca": str(pki.authority.cert)})
    with (
        kubevirt_proxy(pki.authority) as theirs,
        migration(direction, config(ours), theirs) as made,
    ):
        assert ended(made.call())
        assert "refuses our certificate" in made.failure()
        assert direction == OURS_IS_SOURCE or not made.programs[49152].called


@pytest.mark.parametrize("who", ["we", "they"])
def test_only_one_has_tls(direction: str, pki: Pki, who: str) -> None:
    """KubeVirt's cannot be told; what of TLS it passes on to a program does no harm."""
    settings = config(pki.tls() if who == "we" else None, handshake_seconds=1)
    with (
        kubevirt_proxy(pki.authority, disable_tls=who == "we") as theirs,
        migration(direction, settings, theirs) as made,
    ):
        caller = made.call()
        caller.sendall(b"QEVM\0\0\0\3")
        with suppress(ConnectionResetError):
            while caller.recv(100):
                pass
        assert "disable_tls" in made.failure()
        if direction == OURS_IS_TARGET and made.programs[49152].called:
            assert ended(made.programs[49152].accept())


def test_the_refusal_at_shutdown_is_theirs(pki: Pki) -> None:
    with kubevirt_proxy(pki.authority) as theirs:
        theirs.shut_down()
        with pytest.raises(Refused) as caught:
            theirs.start_target(KEY, ["/nowhere"])
        assert str(caught.value) == SHUTTING_DOWN
