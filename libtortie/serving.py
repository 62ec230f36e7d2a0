"""Read-only pages by HTTP(S), for Prometheus, for probes and for people, on a port of their own.

A page is a function of what was asked for. Each request has a thread of its own, at most
`MOST_REQUESTS` at once, and a deadline, so that whoever hangs delays nobody; where there is no room
whoever has said nothing for longest makes it, so that no crowd of strangers keeps a probe out. An
answer in pieces (server-sent events) takes as long as its page wants, at most `MOST_STREAMS` at
once. Who is not let in (`serving_access`) learns nothing but whether an `open` page is well. Takes
nothing but GET and HEAD. A port that is taken is tried again; certificates that are replaced are
taken with the next connection.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from time import sleep as pause
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from libtortie.errors import InvalidInput, TortieError, first_line
from libtortie.serving_access import Place, names_by_address, proves, tokens_in
from libtortie.serving_tls import ServerFiles

REQUEST_SECONDS = 5.0
RETRY_SECONDS = 5.0
BREATH_SECONDS = 0.05
STOP_SECONDS = 5.0
MOST_REQUESTS = 64
MOST_STREAMS = 32
TEXT = "text/plain; charset=utf-8"
CHALLENGES = ('Bearer realm="tortie"', 'Basic realm="tortie"')
"""Each in a header of its own: of several in one, Chromium takes the first and asks for nothing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks for; of a name that is given twice, the last value counts.

    `trusted` is False only for an `open` page asked for without proof: say nothing but the status.
    `over` is set when the server stops: an answer in pieces ends then.
    """

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    trusted: bool = True
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Answer:
    """What it gets. `body` as an iterator is sent piece by piece, as each comes."""

    body: str | bytes | Iterator[bytes] = b""
    kind: str = TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Page = Callable[[Asked], Answer]


class Server:
    """Serves `pages` at a place: a path each; one that ends in `/` is for all that is below it too.

    `open` are those paths that need no proof. `serving` is told the port once it is listened on,
    `trouble` why it is not at each attempt (empty: it is), and what a page failed of.
    """

    def __init__(
        self,
        place: Place,
        pages: Mapping[str, Page],
        *,
        serving: Callable[[int], None],
        trouble: Callable[[str], None],
        open: frozenset[str] = frozenset(),
    ) -> None:
        self._place, self._pages, self._open = place, dict(pages), open
        self._serving, self._trouble = serving, trouble
        self._files = ServerFiles(place, trouble) if place.cert_file else None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._listener: _Listener | None = None
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before."""
        return int(self._listener.server_address[1]) if self._listener else 0

    def check(self) -> None:
        """Before the start: raises `InvalidInput` for files that let nobody in or serve nothing."""
        if self._place.token_file:
            tokens_in(self._place.token_file)
        if self._files is not None:
            self._files.context()

    def run(self) -> None:
        """A thread's body, until `stop`."""
        failed = False
        while not self._over.is_set():
            try:
                listener = _Listener(self._place, self)
            except OSError as error:
                failed = True
                self._trouble(f"port {self._place.port}: {error}")
                self._over.wait(RETRY_SECONDS)
                continue
            with listener:
                with self._lock:
                    self._listener = listener
                    if self._over.is_set():
                        return
                if failed:
                    self._trouble("")
                self._serving(self.port)
                listener.serve_forever(poll_interval=0.5)
                listener.hang_up()

    def stop(self) -> None:
        """Make `run` return, and end what is being answered."""
        with self._lock:
            self._over.set()
            listener = self._listener
        if listener is not None:
            listener.shutdown()

    def secured(self, connection: socket.socket) -> socket.socket:
        """The connection as it is spoken over, before any handshake. Raises OSError,
        `InvalidInput`."""
        if self._files is None:
            return connection
        context = self._files.context()
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def answer(self, target: str, headers: Mapping[str, str], *, certified: bool) -> Answer:
        """What a request gets; whatever a page fails of is told and answered by 500."""
        try:
            parts = urlsplit(target)
        except ValueError:
            return Answer("no such place\n", status=400)
        found = self._page(parts.path)
        if not self._place.guarded and not names_by_address(headers.get("host", "")):
            return Answer("ask for it by address\n", status=421)
        trusted = certified or self._let_in(headers.get("authorization", ""))
        if not trusted and (found is None or found[0] not in self._open):
            return Answer("not without a token or a client certificate\n", status=401)
        if found is None:
            return Answer(f"there are {', '.join(sorted(self._pages))}\n", status=404)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            return found[1](Asked(parts.path, query, headers, trusted, self._over))
        except Exception as error:  # one page's fault is not the others', nor the program's
            reason = first_line(error) if isinstance(error, TortieError) else repr(error)
            self._trouble(f"{found[0]}: {reason}")
            return Answer("it failed: see the log\n", status=500)

    def _page(self, path: str) -> tuple[str, Page] | None:
        """The page of a path, with the path it is under; the longest one wins."""
        if path in self._pages:
            return path, self._pages[path]
        above = [one for one in self._pages if one.endswith("/") and path.startswith(one)]
        best = max(above, key=len, default="")
        return (best, self._pages[best]) if best else None

    def _let_in(self, authorization: str) -> bool:
        if not self._place.guarded:
            return True
        if not self._place.token_file:
            return False
        try:
            return proves(authorization, tokens_in(self._place.token_file))
        except InvalidInput as error:
            self._trouble(str(error))
            return False


class _Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    timeout = REQUEST_SECONDS  # of one read or write; the clock is for all until the answer
    server: _Listener

    def setup(self) -> None:
        """Shake hands, which is timed as a whole, and start the request's clock."""
        self._accepted = raw = self.request
        raw.settimeout(REQUEST_SECONDS)
        self.request = self.server.site.secured(raw)
        self.server.follow(raw, self.request)
        if isinstance(self.request, ssl.SSLSocket):
            try:
                self.request.do_handshake()
            except OSError:
                self.request.close()
                raise
        self._clock = threading.Timer(REQUEST_SECONDS, _hang_up, [self.request])
        self._clock.daemon = True
        self._clock.start()
        super().setup()

    def finish(self) -> None:
        """Stop it."""
        self._clock.cancel()
        super().finish()
        if isinstance(self.request, ssl.SSLSocket):
            self.request.close()  # the listener has the other one

    def do_GET(self) -> None:
        """Answer."""
        self.server.heard(self._accepted)
        headers = {name.lower(): value for name, value in self.headers.items()}
        certified = isinstance(self.request, ssl.SSLSocket) and bool(self.request.getpeercert())
        answer = self.server.site.answer(self.path, headers, certified=certified)
        if isinstance(answer.body, str | bytes):
            text = answer.body
            body = text.encode(errors="replace") if isinstance(text, str) else text
            self._begin(answer, str(len(body)))
            self._write(body)
        else:
            self._stream(answer, answer.body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        """No word about the versions that run here."""
        return "tortie"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no decisions."""

    def _begin(self, answer: Answer, length: str = "") -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("X-Content-Type-Options", "nosniff")
        if length and answer.status != 304:  # of which it would be the whole page's
            self.send_header("Content-Length", length)
        for challenge in CHALLENGES if answer.status == 401 else ():
            self.send_header("WWW-Authenticate", challenge)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, answer: Answer, pieces: Iterator[bytes]) -> None:
        if not self.server.site.streams.acquire(blocking=False):
            busy = b"too many are listening\n"
            self._begin(Answer(status=503), str(len(busy)))
            self._write(busy)
            return
        try:
            self._clock.cancel()
            self._begin(answer)
            for piece in pieces if self.command != "HEAD" else ():
                self._write(piece)
        finally:
            self.server.site.streams.release()
            close = getattr(pieces, "close", None)  # a generator's own clean-up is now
            if close is not None:
                close()

    def _write(self, body: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(body)


class _Listener(ThreadingMixIn, TCPServer):
    """All addresses of both families for `::`, where the kernel has both.

    No `HTTPServer`, which asks DNS for the node's own name before it listens.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, place: Place, site: Server) -> None:
        self.site = site
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        self._busy: dict[socket.socket, socket.socket] = {}
        self._silent: dict[socket.socket, None] = {}
        """Those that have not asked yet, in the order in which they came."""
        self._changed = threading.Condition()
        self.address_family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
        super().__init__((place.address, place.port), _Handler)

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

    def verify_request(self, request: Any, client_address: object) -> bool:
        """Whether there is room for one more, or can be made."""
        if self._free.acquire(blocking=False):
            return True
        with self._changed:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
            _hang_up(self._busy[oldest])
        return self._free.acquire(timeout=BREATH_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection."""
        with self._changed:
            self._busy[request] = request
            self._silent[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is to be had
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """That thread's body."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def follow(self, accepted: socket.socket, spoken: socket.socket) -> None:
        """An accepted connection is spoken over by another socket from now on."""
        with self._changed:
            self._busy[accepted] = spoken

    def heard(self, accepted: socket.socket) -> None:
        """What a connection asks for has come whole."""
        with self._changed:
            self._silent.pop(accepted, None)

    def _forget(self, request: socket.socket) -> None:
        self._free.release()
        with self._changed:
            self._busy.pop(request, None)
            self._silent.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away, or speaks no HTTP, is its own trouble."""

    def hang_up(self) -> None:
        """End the connections there are, and wait for their threads, at most `STOP_SECONDS`."""
        with self._changed:
            for connection in self._busy.values():
                _hang_up(connection)
            self._changed.wait_for(lambda: not self._busy, STOP_SECONDS)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS's own would race with a read
