"""Certificates that are replaced while a peer is in the middle of its handshake."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from migration_proxy.config import SERVER_CNS, TlsConfig
from tests.fakes.migration_proxies import PATIENCE, Nodes, Pki, config, nodes


def test_a_handshake_ends_with_the_pair_it_began_with(tmp_path: Path) -> None:
    """The target's pair is replaced after it has spoken; the next one meets the new pair."""
    pki = Pki.make(tmp_path / "pki")
    ours = pki.tls()
    with nodes(config(ours), config(ours)) as made:
        first = presented(made, ours, pki)
        fresh = Path(ours.server.cert).read_text()
        assert first != ssl.PEM_cert_to_DER_cert(fresh)
        assert presented(made, ours, pki) == ssl.PEM_cert_to_DER_cert(fresh)


def presented(made: Nodes, ours: TlsConfig, pki: Pki) -> bytes | None:
    """What the target shows whose pair is replaced before we have answered; we are let in."""
    calling = ssl.create_default_context(cafile=ours.ca)
    calling.check_hostname = False
    calling.load_cert_chain(ours.migration.cert, ours.migration.key)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = calling.wrap_bio(incoming, outgoing)
    port = next(port for port, logical in made.ports.ports.items() if logical)
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        while not shaken(tls):
            if outgoing.pending:
                sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))
        replace_server(ours, pki)
        tls.write(b"well")
        sock.sendall(outgoing.read())
        with made.programs[49152].accept() as program:
            assert program.recv(4) == b"well"
    return tls.getpeercert(binary_form=True)


def shaken(tls: ssl.SSLObject) -> bool:
    """Whether our part is done; in TLS 1.3 the target has yet to hear our last word."""
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def replace_server(ours: TlsConfig, pki: Pki) -> None:
    """A new pair in the old one's files."""
    fresh = pki.authority.server(SERVER_CNS[0])
    Path(ours.server.cert).write_bytes(fresh.cert.read_bytes())
    Path(ours.server.key).write_bytes(fresh.key.read_bytes())
