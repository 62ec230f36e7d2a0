"""One connection: HTTP/1.1 with keep-alive in, JSON out. Decisions are made elsewhere."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast

from lab.apiserver import discovery, errors, openapi, routes
from lab.apiserver.auth import User, authenticate, impersonated, impersonation
from lab.apiserver.errors import ApiError, Attributes, Json
from lab.apiserver.faults import CloseConnection, Delay, Drip, Reject
from lab.apiserver.media import negotiate
from lab.apiserver.perform import Request, number, perform
from lab.apiserver.routes import Target
from lab.apiserver.table import Viewer, include_of
from lab.apiserver.watching import WatchOptions, watch

if TYPE_CHECKING:
    from lab.apiserver.server import ApiServer, Listener

MAX_BODY = 3 << 20
_HEALTH = (("healthz",), ("readyz",), ("livez",))
_OPEN = (*_HEALTH, ("version",))
_IDLE = 120.0  # seconds a kept-alive connection may be silent


class CloseNow(Exception):
    """Close the connection without (more of) an answer."""


class Handler(BaseHTTPRequestHandler):
    """Serves requests for `ApiServer`."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE
    disable_nagle_algorithm = True
    _drip = 0.0

    @property
    def api_server(self) -> ApiServer:
        """The server this connection belongs to."""
        return cast("Listener", self.server).owner

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `ApiServer.audit` holds what was asked."""

    def do_GET(self) -> None:
        """See `_serve`."""
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        """One request, whatever it is; every error becomes a Status."""
        self._drip = 0.0
        try:
            body = self._read_body()
            segments, query = routes.split(self.path)
            if segments in _HEALTH:
                self._send(200, b"ok", "text/plain")
                return
            user = User("") if segments in _OPEN else self._authenticate()
            if not self._served_document(user, segments):
                self._serve_target(user, segments, query, body)
        except ApiError as error:
            self._send_error(error)
        except CloseNow:
            self.close_connection = True
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    def _served_document(self, user: User, segments: tuple[str, ...]) -> bool:
        """Answer what is no resource: discovery, OpenAPI, or an unknown path."""
        resource = segments[0] in ("api", "apis") and len(segments) > 1 if segments else False
        document = None
        if self.command == "GET":
            catalogue = self.api_server.api.catalogue
            document = discovery.document(segments, catalogue)
            document = document or openapi.document(segments, catalogue)
        if resource and document is None:
            return False
        if segments not in _OPEN:
            verb = self.command.lower()
            self.api_server.authorize(user, Attributes(verb, path=self.path.split("?")[0]))
        if document is not None:
            self._send_json(200, document)
        elif (self.command, segments) == ("GET", ("openapi", "v2")):
            self._send(200, openapi.DOCUMENT_V2, openapi.MEDIA_V2)
        else:
            self._send(404, b"404 page not found\n", "text/plain")
        return True

    def _authenticate(self) -> User:
        """Who asks, or whom it may act as."""
        certificate = None
        if isinstance(self.connection, ssl.SSLSocket):
            certificate = self.connection.getpeercert()
        header = self.headers.get("Authorization", "")
        user = authenticate(header, certificate, self.api_server.tokens)
        wanted = self.headers.get("Impersonate-User", "")
        groups = self.headers.get_all("Impersonate-Group", [])
        for asked in impersonation(wanted, groups):
            self.api_server.authorize(user, asked)
        return impersonated(user, wanted, groups)

    def _serve_target(
        self, user: User, segments: tuple[str, ...], query: dict[str, str], body: bytes
    ) -> None:
        server = self.api_server
        target = routes.target(self.command, segments, query, server.api.catalogue)
        server.audit_request(user.name, target)
        self._suffer(user, target)
        server.authorize(user, target.attributes)
        viewer = self._viewer(target)
        if target.verb == "watch":
            self._stream(target, viewer)
            return
        request = Request(target, user, body, self._media())
        answer = perform(server.api, server.authorizer, request)
        shown = answer.body
        if shown.get("kind") in (target.kind.kind, target.kind.list_kind):
            shown = viewer.show(shown, datetime.now(UTC))
        self._send_json(answer.code, shown, warnings=answer.warnings)

    def _viewer(self, target: Target) -> Viewer:
        view = negotiate(self.headers.get("Accept", ""))
        return Viewer(target.kind, view, include_of(target.query))

    def _suffer(self, user: User, target: Target) -> None:
        """Faults that were injected for this request."""
        hits = self.api_server.faults.hit(
            user.name, target.verb, target.resource, target.namespace, target.name
        )
        for action in hits:
            match action:
                case Delay(seconds):
                    if self.api_server.stopping.wait(seconds):
                        raise CloseNow
                case Drip(interval):
                    self._drip = interval
                case CloseConnection():
                    raise CloseNow
                case Reject(403, "", _, _):
                    raise errors.forbidden(user.name, target.attributes)
                case Reject(code, reason, message, retry_after):
                    raise ApiError(code, reason, message, retry_after=retry_after)

    # --- bodies --------------------------------------------------------------------------------

    def _read_body(self) -> bytes:
        """The request's body, so that the next request starts where it ends."""
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise ApiError(411, "BadRequest", "a Content-Length is required")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()):
            self.close_connection = True
            raise errors.bad_request("Content-Length is not a number")
        if int(text) > MAX_BODY:
            self.close_connection = True
            raise ApiError(
                413, "RequestEntityTooLarge", f"limit is {MAX_BODY} bytes for a request body"
            )
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise CloseNow
        return body

    def _media(self) -> str:
        return self.headers.get("Content-Type", "").split(";")[0].strip().lower()

    # --- answers -------------------------------------------------------------------------------

    def _send_error(self, error: ApiError) -> None:
        headers = {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        self._send_json(error.code, error.status(), headers)

    def _send_json(
        self,
        code: int,
        body: Json,
        headers: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        headers = dict(headers or {})
        if warnings:  # RFC 7234: code, agent, quoted text
            headers["Warning"] = ", ".join(f"299 - {json.dumps(text)}" for text in warnings)
        self._send(code, _encode(body), "application/json", headers)

    def _send(
        self, code: int, body: bytes, media: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        head = self._head()
        self._write(head + body)

    def _head(self) -> bytes:
        """The buffered header lines, so that head and body leave in one segment."""
        lines = cast(list[bytes], self.__dict__.pop("_headers_buffer"))
        return b"".join([*lines, b"\r\n"])

    def _write(self, data: bytes) -> None:
        if not self._drip:
            self.wfile.write(data)
            return
        for position in range(len(data)):
            self.wfile.write(data[position : position + 1])
            if self.api_server.stopping.wait(self._drip):
                raise CloseNow

    def _stream(self, target: Target, viewer: Viewer) -> None:
        """A watch: one chunk an event, until its time is over, we stop, or the test cuts it."""
        server, query = self.api_server, target.query
        test = server.api.test(
            target.kind,
            target.namespace,
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
        )
        options = _watch_options(query, server.watch_timeout, server.bookmark_interval)
        cut, kind = server.cuts, target.kind

        def ended() -> bool:
            served = server.api.catalogue.find(kind.group, kind.version, kind.plural)
            return server.stopping.is_set() or server.cuts is not cut or served is None

        events = watch(server.api.store, kind, test, options, ended)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self._write(self._head())
        for event in events:
            self._write_chunk(_encode(viewer.event(event, datetime.now(UTC))) + b"\n")
        if server.cuts is not cut and server.cuts.mid_line:
            self._write_chunk(b'{"type":"ADDED","object":{"metadata":{"name":"cut')
            raise CloseNow
        if server.stopping.is_set() or server.cuts is not cut:
            raise CloseNow
        self._write(b"0\r\n\r\n")

    def _write_chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def handle_one_request(self) -> None:
        """As the base class, with the request line's time-out closing quietly."""
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True


def _encode(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _watch_options(query: Mapping[str, str], longest: int, interval: float) -> WatchOptions:
    """What a watch asks for. Raises 400 and 422."""
    initial = query.get("sendInitialEvents", "") in ("true", "1")
    if initial and query.get("resourceVersionMatch") != "NotOlderThan":
        why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise errors.invalid("", "ListOptions", "", "resourceVersionMatch", why)
    return WatchOptions(
        query.get("resourceVersion", ""),
        number(query, "timeoutSeconds") or longest,
        query.get("allowWatchBookmarks", "") in ("true", "1"),
        interval,
        initial,
    )
