"""A TCP relay that can lose what the server says, cut its connections, or refuse new ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TcpProxy:
    """Relays one loopback port to another; the listener may be of another namespace."""

    def __init__(self, target: int, listener: socket.socket | None = None) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._closed = False
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.losing_replies = threading.Event()
        self.accepted = 0
        self._run(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close every connection; new ones are taken."""
        with self._lock:
            found, self._open = self._open, []
        for one in found:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Refuse new connections and cut the others."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def passes(self, data: bytes, replies: bool) -> bool:
        """Whether to go on with a connection, by what is next said on it: here, always."""
        return True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                if self._closed:  # between its being taken and now: nobody would cut it any more
                    client.close()
                    server.close()
                    return
                self._open += [client, server]
            self._run(self._pump, client, server, False)
            self._run(self._pump, server, client, True)

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and self.passes(data, replies):
                if not (replies and self.losing_replies.is_set()):
                    sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _run(work: object, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()  # type: ignore[arg-type]  # any callable


@contextmanager
def tcp_proxy(target: int, listener: socket.socket | None = None) -> Iterator[TcpProxy]:
    """A proxy that is closed afterwards."""
    proxy = TcpProxy(target, listener)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def silent_server() -> Iterator[int]:
    """A port whose server accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]
