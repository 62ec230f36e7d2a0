"""Readiness gates over real HTTP: what counts as ready."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cni_plugin import readiness
from cni_plugin.readiness import answers_well
from tests.fakes.patience import PATIENCE


class Statuses(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]  # the fixture's
        self.send_response(int(self.path.strip("/").partition("?")[0] or 200))
        self.send_header("Location", "/500")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Statuses)
    made.paths = []  # type: ignore[attr-defined]  # what was asked
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_statuses(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_ANSWER_SECONDS", PATIENCE)
    url = f"http://127.0.0.1:{server.server_port}"
    found = {
        code: answers_well(f"{url}/{code}?x=1") for code in (200, 204, 302, 399, 400, 404, 503)
    }
    assert found == {200: 1, 204: 1, 302: 1, 399: 1, 400: 0, 404: 0, 503: 0}
    assert answers_well(url)
    assert server.paths[0] == "/200?x=1"  # type: ignore[attr-defined]  # the fixture's
    assert server.paths[-1] == "/"  # type: ignore[attr-defined]  # the fixture's


def test_what_does_not_answer() -> None:
    with socket.socket() as deaf:  # it has the port, and does not listen
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        for url in (
            f"http://127.0.0.1:{port}/",
            f"https://127.0.0.1:{port}/",
            "http://127.0.0.1:70000/",
            "http://127.0.0.1:1/a b",
        ):
            assert not answers_well(url), url
