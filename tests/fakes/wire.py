"""TCP servers of one behaviour each: an answer word for word, or none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENCE = 60.0
"""Seconds for which `silence` says nothing."""


@contextmanager
def talking(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A TCP server with one behaviour per connection; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    def guarded(connection: socket.socket) -> None:
        try:
            serve(connection)
        except OSError:
            return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            connection.close()
        thread.join(60)


def answer(head: str, body: bytes = b"") -> Callable[[socket.socket], None]:
    """Read a request, send this, close."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    return serve


def silence(connection: socket.socket) -> None:
    """Read a request, say nothing."""
    connection.recv(65536)
    threading.Event().wait(SILENCE)
