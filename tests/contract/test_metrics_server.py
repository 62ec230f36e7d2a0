"""The metrics page of a program that has no descriptors left."""

from __future__ import annotations

import errno
import os
import threading
import urllib.request
from socketserver import TCPServer
from typing import Any

import pytest

from libtortie import metrics_server
from libtortie.metrics_server import MetricsServer
from tests.fakes.migration_proxies import until


def test_a_scraper_that_cannot_be_accepted_is_waited_for_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, failing = TCPServer.get_request, [1, 2, 3]
    paused: list[float] = []

    def get_request(server: TCPServer) -> Any:
        if failing:
            failing.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(server)

    monkeypatch.setattr(TCPServer, "get_request", get_request)
    monkeypatch.setattr(metrics_server, "pause", paused.append)
    page = MetricsServer("127.0.0.1", 0, [], serving=lambda _: None, trouble=lambda _: None)
    thread = threading.Thread(target=page.run, daemon=True)
    thread.start()
    until(lambda: page.port > 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=120) as answer:
        assert answer.status == 200
    assert paused == [metrics_server.BREATH_SECONDS] * 3
    page.stop()
    thread.join(120)
