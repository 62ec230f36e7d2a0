"""An HTTP proxy for one test: it forwards, tunnels (CONNECT), and remembers what it was asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class HttpProxy:
    """A context; `asked` are the methods and targets of requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append(f"CONNECT {self.path}")
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as far:
                    self.send_response(200)
                    self.end_headers()
                    back = threading.Thread(target=_pump, args=(far, self.connection))
                    back.start()
                    _pump(self.connection, far)
                    back.join()
                self.close_connection = True

            def do_GET(self) -> None:
                proxy.asked.append(f"GET {self.path}")
                parts = urlsplit(self.path)
                far = HTTPConnection(parts.hostname or "", parts.port)
                far.request("GET", f"{parts.path}?{parts.query}", headers=dict(self.headers))
                answer = far.getresponse()
                body = answer.read()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                far.close()

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> HttpProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Bytes from one to the other until either ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
