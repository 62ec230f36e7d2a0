"""The API server as a process part: listen, serve on threads, stop, start again.

`ApiServer` keeps its objects over `stop` and `start` (a restart on the same port); with `data`
they are on disk too. Without tokens and without a client CA everybody is anonymous, and unless
`authorization` says otherwise, everybody may do everything. Dependents without owners are
collected while it runs.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lab.apiserver.api import Api
from lab.apiserver.auth import Tokens, User
from lab.apiserver.errors import Attributes, forbidden
from lab.apiserver.faults import Faults
from lab.apiserver.gc import PATIENCE_S, Collector
from lab.apiserver.handler import Handler
from lab.apiserver.journal import Journal
from lab.apiserver.rbac import Mode, authorizer
from lab.apiserver.rbac_defaults import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from lab.apiserver.routes import Target

_HANDSHAKE = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Tls:
    """The server's certificate and key, and the CA whose client certificates it believes."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """The server side's TLS context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A generation of watch streams; a new one ends those of the old."""

    mid_line: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """One audited request."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str


class Listener(ThreadingHTTPServer):
    """The listening socket and its connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: ApiServer) -> None:
        self.owner = owner
        self.tls = owner.tls.context() if owner.tls else None
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        self._broken = False
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        """As the base class, without its reverse look-up of the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def finish_request(self, request: Any, client_address: Any) -> None:
        """On the connection's own thread: handshake, then requests until it ends."""
        with self._open_lock:
            if self._broken:
                return
            self._open.add(request)
        try:
            connection = request
            if self.tls is not None:
                request.settimeout(_HANDSHAKE)
                connection = self.tls.wrap_socket(request, server_side=True)
                with self._open_lock:
                    self._open.add(connection)
            Handler(connection, client_address, self)
        except (OSError, ssl.SSLError):
            pass  # the peer went away or failed the handshake: its own affair
        finally:
            with self._open_lock:
                self._open.discard(request)
                self._open.discard(connection)
            if connection is not request:
                connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An unexpected exception in a handler is a bug: keep it for the test to see."""
        self.owner.record_crash()

    def drop_connections(self) -> None:
        """Break every open connection."""
        with self._open_lock:
            self._broken = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ApiServer:
    """A Kubernetes API server for the lab."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tokens: Mapping[str, str] | None = None,
        token_file: Path | None = None,
        tls: Tls | None = None,
        data: Path | None = None,
        api: Api | None = None,
        authorization: Mode = "AlwaysAllow",
        bookmark_interval: float = 10.0,
        watch_timeout: int = 1800,
        patience: float = PATIENCE_S,
    ) -> None:
        self.host, self.port = host, port
        self.tls = tls
        self.api = api or Api()
        self.tokens = Tokens(tokens, token_file)
        self.authorizer = authorizer(authorization, self.api.store)
        self._with_roles = authorization != "AlwaysAllow"
        self.faults = Faults()
        self.audit: deque[Asked] = deque(maxlen=10_000)
        self.stopping = threading.Event()
        self.cuts = Cut()
        self.bookmark_interval = bookmark_interval
        self.watch_timeout = watch_timeout
        self.patience = patience
        self.crashes: list[str] = []
        self._journal = Journal(data, self.api.store) if data else None
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._collector: Collector | None = None
        self._ready = False

    @property
    def url(self) -> str:
        """Where clients connect."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def start(self) -> ApiServer:
        """Listen and serve. Raises `OSError` when the address is taken."""
        if self._listener is not None:
            raise RuntimeError("already started")
        self.stopping.clear()
        listener = Listener((self.host, self.port), self)
        self.port = listener.server_port
        if not self._ready:
            if self._journal is not None:
                self._journal.open()
            self._bootstrap()
            self._ready = True
        self._collector = Collector(self.api, self.record_crash, patience=self.patience)
        self._collector.start()
        self._listener = listener
        self._thread = threading.Thread(
            target=listener.serve_forever, args=(0.05,), name="apiserver", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Refuse and break all connections. Objects stay; `start` serves them again."""
        listener, thread = self._listener, self._thread
        if listener is None or thread is None:
            return
        self._listener = self._thread = None
        self.stopping.set()
        self.api.store.wake()
        listener.shutdown()
        listener.server_close()
        listener.drop_connections()
        thread.join()
        if self._collector is not None:
            self._collector.stop()
            self._collector = None

    def _bootstrap(self) -> None:
        """What every cluster has from the beginning."""
        self.api.bootstrap()
        if self._with_roles:
            self.api.bootstrap_kind("clusterroles", CLUSTER_ROLES)
            self.api.bootstrap_kind("clusterrolebindings", CLUSTER_ROLE_BINDINGS)

    def close(self) -> None:
        """Stop for good: the last snapshot is written."""
        self.stop()
        if self._journal is not None and self._ready:
            self._journal.close()
            self._ready = False

    def __enter__(self) -> ApiServer:
        return self if self._listener is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut_watches(self, *, mid_line: bool = False) -> None:
        """Break every open watch stream, in the middle of an event if asked."""
        self.cuts = Cut(mid_line)
        self.api.store.wake()

    def compact(self) -> None:
        """Forget history and pages: watches from an earlier version answer 410."""
        self.api.store.compact()
        self.api.forget_pages()

    def authorize(self, user: User, asked: Attributes) -> None:
        """Raise 403 unless the user may do it."""
        decision = self.authorizer.decide(user, asked)
        if not decision.allowed:
            raise forbidden(user.name, asked, decision.reason)

    def audit_request(self, user: str, target: Target) -> None:
        """Remember who asked for what."""
        self.audit.append(Asked(user, target.verb, target.resource, target.namespace, target.name))

    def record_crash(self) -> None:
        """Keep the traceback of a handler's unexpected exception."""
        self.crashes.append(traceback.format_exc())
