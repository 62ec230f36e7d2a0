"""`GET /metrics` for Prometheus, on a port of its own; `GET /healthz` where there is a health.

One request at a time, each under a deadline: a scraper that hangs delays other scrapers, never
the program. Says nothing but the metrics, and takes nothing. A port that is taken is tried again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from time import sleep as pause

from libtortie.metrics import CONTENT_TYPE, Metric, exposition

REQUEST_SECONDS = 5.0
RETRY_SECONDS = 5.0
BREATH_SECONDS = 0.05


class MetricsServer:
    """Serves `metrics` at an address; `host` empty means all of the node's.

    `health` says what is wrong, or nothing: it is asked for each `/healthz`.
    `serving` is told the port once it is listened on, `trouble` at each attempt why it is not.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Sequence[Metric],
        *,
        serving: Callable[[int], None],
        trouble: Callable[[str], None],
        health: Callable[[], str] | None = None,
    ) -> None:
        self._address = host, port
        self._metrics = metrics
        self._health = health
        self._serving = serving
        self._trouble = trouble
        self.complaint = ""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._server: TCPServer | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before."""
        return int(self._server.server_address[1]) if self._server else 0

    def run(self) -> None:
        """A thread's body, until `stop`."""
        while not self._stop.is_set():
            try:
                server = _Listener(self._address, self._handler())
            except OSError as error:
                self.complaint = f"port {self._address[1]}: {error}"
                self._trouble(self.complaint)
                self._stop.wait(RETRY_SECONDS)
                continue
            with server:
                with self._lock:
                    self._server = server
                    if self._stop.is_set():
                        return
                self._serving(self.port)
                server.serve_forever(poll_interval=0.5)

    def stop(self) -> None:
        """Make `run` return."""
        with self._lock:
            self._stop.set()
            server = self._server
        if server is not None:
            server.shutdown()

    def _page(self, path: str) -> tuple[int, str, str]:
        """Status, content type and text of a path."""
        if path == "/metrics":
            return 200, CONTENT_TYPE, exposition(self._metrics)
        if path == "/healthz" and self._health is not None:
            trouble = self._health()
            return (503 if trouble else 200), "text/plain", f"{trouble or 'ok'}\n"
        return 404, "text/plain", "see /metrics\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages = self._page

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_SECONDS  # of one read; the clock is for all of them

            def setup(self) -> None:
                """Start the request's clock."""
                super().setup()
                self._clock = threading.Timer(REQUEST_SECONDS, _hang_up, [self.connection])
                self._clock.daemon = True
                self._clock.start()

            def finish(self) -> None:
                """Stop it."""
                self._clock.cancel()
                super().finish()

            def do_GET(self) -> None:
                """The metrics or the health, each at its one path."""
                status, kind, text = pages(self.path.partition("?")[0])
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are no decisions."""

        return Handler


class _Listener(TCPServer):
    """Both families for an empty address where the kernel has both.

    No `HTTPServer`, which asks DNS for the node's own name before it listens.
    """

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        host, port = address
        both = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept; out of descriptors, wait for others to give some back instead of spinning."""
        try:
            return super().get_request()
        except OSError:
            pause(BREATH_SECONDS)
            raise

    def server_bind(self) -> None:
        """Bind; IPv4 comes to a socket of IPv6, too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
