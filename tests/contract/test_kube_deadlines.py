"""The real client on a wire that is silent, drips or refuses: every call ends in its time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from lab.apiserver.faults import Delay, Drip, Fault
from lab.apiserver.server import ApiServer
from libtortie.errors import (
    TortieError,
    Unavailable,
)
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import KubeConfig, direct
from libtortie.kube.objects import Namespace, Pod
from libtortie.kube.port import Overloaded
from tests.fakes.ports import refusing_port
from tests.fakes.wire import SILENCE, silence, talking

BUDGET = 0.4  # seconds: the client's deadline in these tests
SLACK = 0.6  # seconds: what the client may add
TRIES = 8
"""A machine that stands still spoils some of them, a deadline that is not kept all: a step that was
delayed ends too late, or the call says that it got no further than that step."""


def ends_in_time(
    call: Callable[[], object], error: type[TortieError], budget: float = BUDGET
) -> str:
    """The text of the error a call raises when its time is over, neither earlier nor later."""
    seen = []
    for _ in range(TRIES):
        began = time.monotonic()
        with pytest.raises(TortieError) as caught:
            call()
        took = time.monotonic() - began
        assert took >= budget * 0.9
        if took < budget + SLACK and isinstance(caught.value, error):
            return str(caught.value)
        seen.append((took, caught.value))
    raise AssertionError(f"never {error.__name__} within {budget + SLACK:g} s: {seen}")


def drip_headers(connection: socket.socket) -> None:
    connection.recv(65536)
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: 1\r\n" * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def drip_body(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(100000):
        connection.sendall(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize("serve", [drip_headers, drip_body, silence])
def test_no_call_outlives_its_deadline(serve: Callable[[socket.socket], None]) -> None:
    with talking(serve) as url:
        client = HttpKubeClient(direct(url), timeout=BUDGET)
        text = ends_in_time(lambda: client.get(Pod, "web", "shop"), Overloaded)
        assert "get pods shop/web" in text and url in text
        client.close()


def test_a_listener_that_never_accepts_is_slow_not_away() -> None:
    """A stopped server's kernel still completes the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = HttpKubeClient(direct(url), timeout=BUDGET)
        ends_in_time(lambda: client.get(Pod, "web", "shop"), Overloaded)


def test_a_full_backlog_is_bounded_too() -> None:
    """No SYN-ACK at all: the connect itself must end."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        host, port = listener.getsockname()
        full = False
        while not full:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.3)
            try:
                filler.connect((host, port))
            except TimeoutError:
                full = True
        client = HttpKubeClient(direct(f"http://{host}:{port}"), timeout=BUDGET)
        ends_in_time(lambda: client.get(Pod, "web", "shop"), Unavailable)


def test_tls_handshake_with_a_silent_server_is_bounded() -> None:
    with talking(silence) as url:
        config = KubeConfig(url.replace("http:", "https:"), insecure=True)
        client = HttpKubeClient(config, timeout=BUDGET)
        ends_in_time(lambda: client.get(Pod, "web", "shop"), Unavailable)


def test_a_refused_connection_is_unavailable_at_once() -> None:
    with refusing_port() as port:
        client = HttpKubeClient(direct(f"http://127.0.0.1:{port}"))
        text = ends_in_time(lambda: client.get(Pod, "web", "shop"), Unavailable, 0.0)
    assert "refused" in text.lower()


def test_an_unknown_host_is_unavailable() -> None:
    client = HttpKubeClient(direct("http://no-such-host.invalid"), timeout=2)
    with pytest.raises(Unavailable, match=r"no-such-host\.invalid"):
        client.get(Pod, "web", "shop")


def test_a_slow_server_through_the_whole_stack() -> None:
    with ApiServer() as server:
        client = HttpKubeClient(direct(server.url), timeout=BUDGET)
        server.faults.add(Fault(Drip(0.02), verb="list"))
        ends_in_time(lambda: client.list(Namespace), Overloaded)
        server.faults.clear()
        server.faults.add(Fault(Delay(30), verb="list"))
        ends_in_time(lambda: client.list(Namespace), Overloaded)
        server.faults.clear()
        client.close()
        with closing(HttpKubeClient(direct(server.url))) as patient:
            assert len(patient.list(Namespace)[0]) == 3


def test_a_silent_stream_ends_after_the_idle_limit() -> None:
    with ApiServer(bookmark_interval=60) as server:
        client = HttpKubeClient(direct(server.url), idle_seconds=BUDGET)
        version = client.list(Pod)[1]
        text = ends_in_time(lambda: next(client.watch(Pod, resource_version=version)), Unavailable)
        assert "silent" in text
        assert server.audit[-1].verb == "watch"
        client.close()


def test_a_stopped_caller_does_not_wait_for_the_answer() -> None:
    """`stop` also ends a watch whose server has not even answered."""
    with talking(silence) as url:
        client = HttpKubeClient(direct(url), timeout=600, idle_seconds=600)
        stop = threading.Event()
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        assert list(client.watch(Pod, resource_version="1", stop=stop)) == []
        assert time.monotonic() - began < SILENCE / 2
