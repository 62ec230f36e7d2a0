"""One direction of a TLS stream, turned by hand: records that do not fit what is held at once."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from migration_proxy.certificate import Peer
from migration_proxy.flows import CHUNK_BYTES, OpenFlow, SealFlow
from migration_proxy.handshake import Tls
from tests.fakes.migration_proxies import Pki

RECORD_BYTES, FIRST_BYTES = 16384, 8000
NOBODY = Peer("", (), datetime.datetime.now(datetime.UTC))


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Tls, Tls]:
    """A client's and a server's end of a TLS connection over memory."""
    tls = Pki.make(tmp_path / "pki").tls()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tls.server.cert, tls.server.key)
    calling = ssl.create_default_context(cafile=tls.ca)
    calling.check_hostname = False
    made = []
    for context, server in ((calling, False), (serving, True)):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        wrapped = context.wrap_bio(incoming, outgoing, server_side=server)
        made.append(Tls(wrapped, incoming, outgoing, NOBODY))
    client, server_end = made
    for _ in range(4):
        for one, other in ((client, server_end), (server_end, client)):
            with suppress(ssl.SSLWantReadError):
                one.object.do_handshake()
            other.incoming.write(one.outgoing.read())
    with suppress(ssl.SSLWantReadError):
        client.object.read(1)  # the server's tickets
    return client, server_end


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, ...]]:
    pairs = [socket.socketpair() for _ in range(2)]
    opened = tuple(each for pair in pairs for each in pair)
    for sock in opened:
        sock.setblocking(False)
    yield opened
    for sock in opened:
        sock.close()


def sealed(tls: Tls, data: bytes) -> bytes:
    """Data as records, of which the first one is short."""
    view = memoryview(data)
    at = tls.object.write(view[:FIRST_BYTES])
    while at < len(data):
        at += tls.object.write(view[at : at + RECORD_BYTES])
    return tls.outgoing.read()


def taken(sock: socket.socket) -> bytes:
    """What is there now."""
    parts = []
    with suppress(BlockingIOError):
        while part := sock.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def test_a_record_that_was_read_in_part_is_read_to_its_end(
    ends: tuple[Tls, Tls], sockets: tuple[socket.socket, ...]
) -> None:
    """Its rest is in OpenSSL, not in what came, and nothing more comes that would wake anybody."""
    client, server = ends
    remote, ours, local, program = sockets
    data = os.urandom(CHUNK_BYTES + 500)
    records = sealed(client, data)
    flow = OpenFlow(ours, local, server)
    remote.sendall(records[: FIRST_BYTES // 2])
    assert flow.fill(CHUNK_BYTES) == 0
    remote.sendall(records[FIRST_BYTES // 2 :])  # all of it is taken at once
    found = bytearray()
    for _ in range(20):
        flow.readable = flow.writable = True
        flow.fill(CHUNK_BYTES)
        flow.drain()
        found += taken(program)
    assert bytes(found) == data
    assert flow.moved == len(data)


def test_the_end_is_not_said_while_a_record_is_read_in_part(
    ends: tuple[Tls, Tls], sockets: tuple[socket.socket, ...]
) -> None:
    """OpenSSL forgets at the close_notify what it has opened and not given."""
    client, server = ends
    remote, ours, local, _ = sockets
    server.incoming.write(sealed(client, b"x" * 1000))
    assert server.object.read(100) == b"x" * 100
    assert len(server.object.read(1)) == 1
    assert server.incoming.pending == 0
    flow = SealFlow(local, ours, server)
    assert not flow.finish()
    assert server.object.read(2000) == b"x" * 899
    assert flow.finish()
    assert taken(remote) != b""


def test_our_end_does_not_wait_for_a_program_that_does_not_read(
    ends: tuple[Tls, Tls], sockets: tuple[socket.socket, ...]
) -> None:
    """All that came is opened, the rest of a record that had come in part among it."""
    client, server = ends
    remote, ours, local, program = sockets
    for sock in (remote, ours):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4 * CHUNK_BYTES)
    data = os.urandom(2 * CHUNK_BYTES)
    records = sealed(client, data)
    in_part = FIRST_BYTES + RECORD_BYTES  # the second record but for its last bytes
    inward, outward = OpenFlow(ours, local, server), SealFlow(local, ours, server)
    remote.sendall(records[:in_part])
    assert inward.fill(CHUNK_BYTES) == FIRST_BYTES
    inward.drain()
    remote.sendall(records[in_part:])
    assert inward.fill(CHUNK_BYTES) >= CHUNK_BYTES
    assert outward.finish()
    found = bytearray(taken(program))
    while len(found) < len(data):
        inward.readable = inward.writable = True
        inward.fill(CHUNK_BYTES)
        assert inward.drain()
        found += taken(program)
    assert bytes(found) == data


def test_what_comes_behind_the_peers_end_holds_up_nothing(
    ends: tuple[Tls, Tls], sockets: tuple[socket.socket, ...]
) -> None:
    client, server = ends
    remote, ours, local, _ = sockets
    with suppress(ssl.SSLError):
        client.object.unwrap()
    remote.sendall(client.outgoing.read() + os.urandom(1000))
    inward, outward = OpenFlow(ours, local, server), SealFlow(local, ours, server)
    assert inward.fill(CHUNK_BYTES) == 0
    assert inward.ended
    assert outward.finish()
