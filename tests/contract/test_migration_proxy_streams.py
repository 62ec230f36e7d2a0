"""Streams through a source's and a target's proxy, with TLS and without: what a caller sees."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from migration_proxy import unix_sockets
from migration_proxy.config import TlsConfig
from tests.fakes.migration_proxies import (
    KEY,
    Nodes,
    Pki,
    config,
    digest,
    ended,
    nodes,
    receive,
    sending,
    sessions,
    until,
)


@pytest.fixture(params=["tls", "plain"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> TlsConfig | None:
    return Pki.make(tmp_path / "pki").tls() if request.param == "tls" else None


@pytest.fixture
def both(tls: TlsConfig | None) -> Iterator[Nodes]:
    with nodes(config(tls), config(tls), logical=(0, 49152, 49153)) as made:
        yield made


def test_the_map_names_each_stream_once_and_each_socket_leads_to_its_own(both: Nodes) -> None:
    assert sorted(both.ports.ports.values()) == [0, 49152, 49153]
    assert both.ports.wire() == {str(port): name for port, name in both.ports.ports.items()}
    for logical in (0, 49152, 49153):
        caller, program = both.pair(logical)
        caller.sendall(b"to %d" % logical)
        assert program.recv(100) == b"to %d" % logical
        program.sendall(b"from %d" % logical)
        assert caller.recv(100) == b"from %d" % logical
        caller.close()
        program.close()


def test_nine_streams_at_once_both_ways(both: Nodes) -> None:
    """As many as a migration has: its own and eight of multifd."""
    wrong: list[str] = []

    def one(number: int) -> None:
        there, back = os.urandom(3_000_000 + number), os.urandom(2_000_000 + number)
        caller, program = both.call(), None
        caller.sendall(bytes([number]))
        with lock:
            program = both.programs[49152].accept()
        (name,) = program.recv(1)
        pairs[name] = program
        until(lambda: number in pairs)
        program = pairs[number]
        threads = [sending(caller, there), sending(program, back)]
        got: dict[str, bytes] = {}
        reader = threading.Thread(target=lambda: got.update(there=receive(program)), daemon=True)
        reader.start()
        got["back"] = receive(caller)
        for thread in (*threads, reader):
            thread.join(120)
        if (digest(got["there"]), digest(got["back"])) != (digest(there), digest(back)):
            wrong.append(f"stream {number}: {len(got['there'])} there, {len(got['back'])} back")
        caller.close()
        program.close()

    lock = threading.Lock()
    pairs: dict[int, socket.socket] = {}
    threads = [threading.Thread(target=one, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


@pytest.mark.parametrize("first", ["source", "target"])
def test_whoever_ends_first_still_hears_the_rest(both: Nodes, first: str) -> None:
    caller, program = both.pair()
    ender, other = (caller, program) if first == "source" else (program, caller)
    early, late = os.urandom(300_000), os.urandom(5_000_000)
    ending = sending(ender, early)
    assert digest(receive(other)) == digest(early)
    ending.join(120)
    talking = sending(other, late)
    assert digest(receive(ender)) == digest(late)
    talking.join(120)


def test_an_end_in_the_middle_of_the_other_ones_flood_loses_nothing(both: Nodes) -> None:
    """The end is said while the other direction's bytes are on all parts of the way."""
    caller, program = both.pair()
    flood, word = os.urandom(8_000_000), os.urandom(200_000)
    flooding = sending(program, flood)
    first = caller.recv(1)
    ending = sending(caller, word)
    assert digest(receive(program)) == digest(word)
    assert digest(first + receive(caller)) == digest(flood)
    for thread in (flooding, ending):
        thread.join(120)


@pytest.mark.parametrize("closer", ["source", "target"])
def test_what_a_program_sent_before_it_closed_arrives(both: Nodes, closer: str) -> None:
    """A socket that is closed altogether, with bytes unread on it, is no lost stream."""
    caller, program = both.pair()
    goer, stayer = (caller, program) if closer == "source" else (program, caller)
    stayer.sendall(b"never read")
    data = os.urandom(6_000_000)
    receiving: list[bytes] = []
    thread = threading.Thread(target=lambda: receiving.append(receive(stayer)), daemon=True)
    thread.start()
    goer.sendall(data)
    goer.close()
    thread.join(120)
    assert [digest(each) for each in receiving] == [digest(data)]


@pytest.mark.parametrize("dead", ["source", "target"])
def test_a_program_that_died_is_told_to_the_other_side(both: Nodes, dead: str) -> None:
    """Though the other side says nothing and goes on sending: it may not believe in progress."""
    caller, program = both.pair()
    goer, stayer = (caller, program) if dead == "source" else (program, caller)
    goer.close()
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        while True:
            stayer.sendall(b"x" * 100_000)
    until(lambda: not sessions(both.source) and not sessions(both.target))


def test_a_reader_that_is_slow_holds_the_writer_back(both: Nodes) -> None:
    caller, program = both.pair()
    caller.setblocking(False)
    sent = 0
    quiet = 0
    while quiet < 20:  # for 2 s nobody took anything
        try:
            sent += caller.send(b"x" * 1_000_000)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            threading.Event().wait(0.1)
    assert sent < 64 << 20
    caller.setblocking(True)
    caller.shutdown(socket.SHUT_WR)
    assert len(receive(program)) == sent


def test_more_may_wait_for_a_program_than_the_kernel_lets_a_program_have(tmp_path: Path) -> None:
    """Bounded all the same."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        with unix_sockets.dial(path, 120, lambda _: None, lambda _: False) as sock:
            size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert size == 2 * unix_sockets.SEND_BUFFER_BYTES


def test_sixty_four_streams_of_one_listener(both: Nodes) -> None:
    opened = [both.pair() for _ in range(64)]
    for number, (caller, _) in enumerate(opened):
        caller.sendall(b"%03d" % number)
    assert sorted(program.recv(3) for _, program in opened) == [b"%03d" % n for n in range(64)]
    for caller, program in opened:
        caller.close()
        program.close()


def test_stopping_a_side_ends_its_streams_and_its_files(both: Nodes) -> None:
    caller, program = both.pair()
    both.source.stop_source_listener(KEY)
    both.source.stop_source_listener(KEY)
    assert both.source.source_listener_files(KEY) == ()
    assert list((both.directory / "base" / "migrationproxy").iterdir()) == []
    for sock in (caller, program):
        assert ended(sock)
    both.target.stop_target_listener(KEY)
    assert both.target.target_listener_ports(KEY).ports == {}
