"""Foreign bytes at the proxy: certificates, the control socket's lines, a handshake's beginning."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libtortie.errors import Malformed
from libtortie.jsonlog import NullLog
from libtortie.validity import not_after
from migration_proxy.control import Control
from migration_proxy.handshake import HandshakeFailed, shake
from migration_proxy.manager import ProxyManager
from migration_proxy.tls_files import TlsFiles
from tests.fakes.migration_proxies import NETWORK, Pki, config

PLACE = TemporaryDirectory(prefix="mp-fuzz-")
VERBS = ("start-target", "target-ports", "stop-target", "start-source", "source-files")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@lru_cache
def pki() -> Pki:
    return Pki.make(Path(PLACE.name))


def control() -> Control:
    return Control(ProxyManager(config(pki().tls()), NETWORK, NullLog()))


@lru_cache
def der() -> bytes:
    return ssl.PEM_cert_to_DER_cert(pki().authority.server("n").cert.read_text())


@given(st.binary(max_size=200))
def test_any_line_has_an_answer(line: bytes) -> None:
    answer = control().answer(line)
    assert answer["ok"] is False
    assert answer["error"]


@given(
    st.sampled_from(VERBS),
    st.dictionaries(
        st.sampled_from(["key", "files", "address", "ports", "base_dir", "peer", "rate", "x"]),
        JSON,
    ),
)
def test_any_request_has_an_answer(verb: str, fields: dict[str, Any]) -> None:
    asked = control()
    answer = asked.answer(json.dumps({"do": verb, **fields}).encode())
    assert json.loads(json.dumps(answer))["ok"] in (True, False)
    if answer["ok"]:  # of harmless ones only: nothing was made
        assert verb in ("target-ports", "stop-target", "source-files")


def test_a_deep_request_is_refused() -> None:
    assert control().answer(b"[" * 100_000)["error"] == "the request is not a line of JSON"


@given(st.data())
def test_a_changed_certificate_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(der())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, min(200, len(body) - 1)))] = data.draw(st.integers(0, 255))
    with suppress(Malformed):
        not_after(ssl.DER_cert_to_PEM_cert(bytes(body)))


def unwelcome() -> None:
    """Nobody is let in here."""
    raise AssertionError("it was let in")


@given(st.binary(min_size=1, max_size=400), st.sampled_from([b"", b"\x16\x03\x01", b"\x16\x03"]))
def test_what_begins_no_handshake_fails_as_one(rest: bytes, head: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(head + rest)
        theirs.shutdown(socket.SHUT_WR)
        try:
            shake(
                ours,
                TlsFiles(pki().tls(), server=True),
                server=True,
                expected="",
                seconds=120,
                agreed=unwelcome,
            )
        except HandshakeFailed as error:
            assert str(error)
        else:
            raise AssertionError("it was taken for a peer")
