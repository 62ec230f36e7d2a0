"""The real client on a bad wire: odd answers, cuts, redirects, restarts; nothing left open."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from lab.apiserver.errors import expired
from lab.apiserver.faults import CloseConnection, Fault
from lab.apiserver.pages import Pages
from lab.apiserver.server import ApiServer
from libtortie.errors import (
    Compacted,
    Malformed,
    NotFound,
    TortieError,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.kube.objects import Namespace, Pod
from tests.fakes.wire import SILENCE, answer, talking


def test_redirects_are_refused() -> None:
    """Else a token would go wherever an answer points."""
    reached = threading.Event()

    def elsewhere(connection: socket.socket) -> None:
        reached.set()
        connection.close()

    with talking(elsewhere) as other:
        head = f"HTTP/1.1 302 Found\nLocation: {other}/\nContent-Length: 0"
        with talking(answer(head)) as url:
            client = HttpKubeClient(direct(url, "t0ken"))
            with pytest.raises(Unavailable, match="redirect"):
                client.get(Pod, "web", "shop")
    assert not reached.is_set()


@pytest.mark.parametrize(
    ("head", "body", "error"),
    [
        ("HTTP/1.1 200 OK\nContent-Length: 5", b"[1,2]", Malformed),
        ("HTTP/1.1 200 OK\nContent-Length: 9", b"not json!", Malformed),
        ("HTTP/1.1 200 OK\nContent-Length: 100", b"{}", Unavailable),
        ("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", b"zz\r\n", Unavailable),
        ("HTTP/1.1 502 Bad Gateway\nContent-Length: 6", b"<html>", Unavailable),
        ("garbage", b"", Unavailable),
        ("HTTP/1.1 200 OK\nContent-Length: 25", b'{"metadata":{"name":[1]}}', Malformed),
    ],
)
def test_answers_that_are_none(head: str, body: bytes, error: type[TortieError]) -> None:
    with talking(answer(head, body)) as url:
        client = HttpKubeClient(direct(url), timeout=60)
        with pytest.raises(error, match="get pods shop/web"):
            client.get(Pod, "web", "shop")


def test_a_deeply_nested_answer_is_malformed() -> None:
    body = b"[" * 200_000
    with talking(answer(f"HTTP/1.1 200 OK\nContent-Length: {len(body)}", body)) as url:
        client = HttpKubeClient(direct(url))
        with pytest.raises(Malformed):
            client.get(Pod, "web", "shop")


def test_a_watch_answered_without_chunks_still_streams() -> None:
    line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n'

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + line)
        threading.Event().wait(SILENCE)

    with talking(serve) as url:
        client = HttpKubeClient(direct(url))
        stream = client.watch(Pod, resource_version="1")
        assert getattr(next(stream), "resource_version", "") == "7"
        stream.close()  # type: ignore[attr-defined]  # it is a generator


def test_a_connection_closed_between_requests_is_tried_again() -> None:
    """The server drops idle connections; a read must not fail for it."""
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        client.list(Namespace)
        server.faults.add(Fault(CloseConnection(), verb="list"), times=1)
        assert len(client.list(Namespace)[0]) == 3
        server.faults.add(Fault(CloseConnection(), verb="list"), times=2)
        with pytest.raises(Unavailable):
            client.list(Namespace)
        server.faults.clear()
        server.faults.add(Fault(CloseConnection(), verb="create"), times=1)
        with pytest.raises(Unavailable):  # a write may have happened: the caller decides
            client.create(Namespace, {"metadata": {"name": "shop"}})
        client.close()


def test_a_stream_that_ends_well_in_mid_line_is_broken_all_the_same() -> None:
    """A proxy may close its chunks properly where its own upstream was cut."""
    line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n'
    data = line + line[:30]
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    with talking(answer("HTTP/1.1 200 OK\nTransfer-Encoding: chunked", body)) as url:
        client = HttpKubeClient(direct(url))
        stream = client.watch(Pod, resource_version="1")
        assert getattr(next(stream), "resource_version", "") == "7"
        with pytest.raises(Unavailable, match="middle of an event"):
            next(stream)


def test_one_connection_serves_many_calls() -> None:
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        client.list(Namespace)
        assert server._listener is not None
        first = set(server._listener._open)
        for _ in range(5):
            client.list(Namespace)
            with pytest.raises(NotFound):
                client.get(Pod, "absent", "default")
        assert set(server._listener._open) == first
        assert len(first) == 1
        client.close()


def test_a_restarted_server_is_found_again() -> None:
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        client.list(Namespace)
        server.stop()
        with pytest.raises(Unavailable):
            client.list(Namespace)
        server.start()
        assert len(client.list(Namespace)[0]) == 3
        client.close()


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        assert len(client.list(Namespace)[0]) == 3
        client.close()


def test_lists_come_in_pages_and_survive_their_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libtortie.kube.client.PAGE", 2)
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        found, version = client.list(Namespace)
        assert [n.metadata.name for n in found] == ["default", "kube-public", "kube-system"]
        assert version == str(server.api.store.version)
        assert [a.verb for a in server.audit] == ["list", "list"]
        pages = [*client.pages(Namespace)]
        assert [len(objects) for objects, _ in pages] == [2, 1]
        assert (sum((one for one, _ in pages), ()), {of for _, of in pages}) == (found, {version})
        server.audit.clear()
        server.api._pages = _Forgetful()  # every page expires
        assert len(client.list(Namespace)[0]) == 3
        assert [a.verb for a in server.audit] == ["list", "list", "list"]
        with pytest.raises(Compacted):
            [*client.pages(Namespace)]
        client.close()


class _Forgetful(Pages):
    def resume(self, name: str) -> tuple[tuple[dict[str, object], ...], int]:
        raise expired("The provided continue parameter is too old")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_of_the_client_is_left_open() -> None:
    before = open_files()
    threads = threading.active_count()
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url))
        for _ in range(20):
            stream = client.watch(Pod, resource_version=client.list(Pod)[1])
            server.api.create(
                server.api.kind("", "v1", "pods"),
                "default",
                {"metadata": {"generateName": "web-"}},
            )
            next(stream)
            stream.close()  # type: ignore[attr-defined]  # it is a generator
        client.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if open_files() <= before and threading.active_count() <= threads:
            break
        time.sleep(0.02)
    assert open_files() <= before
    assert threading.active_count() <= threads
