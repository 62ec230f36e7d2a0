"""Certificates for other agents that cannot be used are told of, whatever is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from felix_shim.peer_credentials import Credentials, Files
from libtortie.errors import Unavailable
from tests.fakes.agent_world import RecordingLog


@pytest.mark.parametrize(
    "error", [ssl.SSLError("not enough data"), ssl.SSLError(1, "bad"), OSError(2, "gone")]
)
def test_files_that_cannot_be_used_are_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
    files = Files(*(tmp_path / name for name in ("ca", "cert", "key")))
    for path in (files.ca, files.cert, files.key):
        path.write_text("")
    log = RecordingLog()
    credentials = Credentials(files, "n1", log, lambda: 0.0)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no certificate for other agents"):
            credentials.identity()
    assert len(log.of("peer_certificate_unusable")) == 1
