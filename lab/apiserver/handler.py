"""One connection: HTTP/1.1 with keep-alive in, JSON out. Decisions are made elsewhere."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast

from lab.apiserver import discovery, errors, routes
from lab.apiserver.api import MERGE
from lab.apiserver.auth import User, authenticate
from lab.apiserver.errors import ApiError, Json
from lab.apiserver.faults import CloseConnection, Delay, Drip, Reject
from lab.apiserver.routes import Target
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
            document = None
            if self.command == "GET":
                document = discovery.document(segments, self.api_server.api.catalogue)
            if document is not None:
                self._send_json(200, document)
                return
            if len(segments) < 2 or segments[0] not in ("api", "apis"):
                self._send(404, b"404 page not found\n", "text/plain")
                return
            self._serve_target(user, segments, query, body)
        except ApiError as error:
            self._send_error(error)
        except CloseNow:
            self.close_connection = True
        except (ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    def _authenticate(self) -> User:
        certificate = None
        if isinstance(self.connection, ssl.SSLSocket):
            certificate = self.connection.getpeercert()
        header = self.headers.get("Authorization", "")
        return authenticate(header, certificate, self.api_server.tokens)

    def _serve_target(
        self, user: User, segments: tuple[str, ...], query: dict[str, str], body: bytes
    ) -> None:
        target = routes.target(self.command, segments, query, self.api_server.api.catalogue)
        self.api_server.audit_request(user.name, target)
        self._suffer(user, target)
        if target.verb == "watch":
            self._stream(target)
            return
        code, answer = self._perform(target, body)
        self._send_json(code, answer)

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
                    raise errors.forbidden(
                        user.name, target.verb, target.resource, target.namespace, target.name
                    )
                case Reject(code, reason, message, retry_after):
                    raise ApiError(code, reason, message, retry_after=retry_after)

    def _perform(self, target: Target, raw: bytes) -> tuple[int, Json]:
        """Everything but a watch: HTTP code and answer."""
        api, kind = self.api_server.api, target.kind
        place, query = (kind, target.namespace, target.name), target.query
        sub, dry = target.subresource, target.dry_run
        code = 200
        match target.verb:
            case "get":
                answer = api.get(*place, subresource=sub)
            case "list":
                answer = self._list(target)
            case "create":
                code = 201
                answer = api.create(kind, target.namespace, self._json(raw), dry_run=dry)
            case "update":
                answer = api.update(*place, self._json(raw), subresource=sub, dry_run=dry)
            case "patch":
                media = self._media(MERGE)
                answer = api.patch(
                    *place, _decode(raw), content_type=media, subresource=sub, dry_run=dry
                )
            case "delete":
                answer = api.delete(*place, self._options(raw, query), dry_run=dry)
            case _:
                answer = self._delete_collection(target, raw)
        return code, answer

    def _list(self, target: Target) -> Json:
        query = target.query
        return self.api_server.api.list(
            target.kind,
            target.namespace,
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            limit=_number(query, "limit"),
            continuation=query.get("continue", ""),
        )

    def _delete_collection(self, target: Target, raw: bytes) -> Json:
        api, query = self.api_server.api, target.query
        found = api.list(
            target.kind,
            target.namespace,
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
        )
        options = self._options(raw, query)
        for body in found["items"]:
            try:
                api.delete(
                    target.kind,
                    target.namespace,
                    body["metadata"]["name"],
                    options,
                    dry_run=target.dry_run,
                )
            except ApiError as error:
                if error.code != 404:
                    raise
        return found

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

    def _media(self, default: str) -> str:
        return self.headers.get("Content-Type", default).split(";")[0].strip().lower()

    def _json(self, raw: bytes) -> Any:
        media = self._media("application/json")
        if media != "application/json":
            raise errors.unknown_format(media, ["application/json"])
        return _decode(raw)

    def _options(self, raw: bytes, query: Any) -> Json:
        """DeleteOptions of body and query."""
        options = self._json(raw) if raw else {}
        if not isinstance(options, dict):
            raise errors.bad_request("DeleteOptions is not an object")
        if "gracePeriodSeconds" in query:
            options = {**options, "gracePeriodSeconds": _number(query, "gracePeriodSeconds")}
        return options

    # --- answers -------------------------------------------------------------------------------

    def _send_error(self, error: ApiError) -> None:
        headers = {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
        self._send_json(error.code, error.status(), headers)

    def _send_json(self, code: int, body: Json, headers: dict[str, str] | None = None) -> None:
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

    def _stream(self, target: Target) -> None:
        """A watch: one chunk an event, until its time is over, we stop, or the test cuts it."""
        server, query = self.api_server, target.query
        if query.get("sendInitialEvents"):
            why = "Forbidden: sendInitialEvents is not served"
            raise errors.invalid("", "ListOptions", "", "sendInitialEvents", why)
        test = server.api.test(
            target.kind,
            target.namespace,
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
        )
        if target.name:
            raise errors.bad_request("a watch of one object goes by field selector")
        options = WatchOptions(
            query.get("resourceVersion", ""),
            _number(query, "timeoutSeconds") or server.watch_timeout,
            query.get("allowWatchBookmarks", "") in ("true", "1"),
            server.bookmark_interval,
        )
        cut = server.cuts
        events = watch(
            server.api.store,
            target.kind,
            test,
            options,
            lambda: server.stopping.is_set() or server.cuts is not cut,
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self._write(self._head())
        self._write_events(events)
        if server.cuts is not cut and server.cuts.mid_line:
            self._write_chunk(b'{"type":"ADDED","object":{"metadata":{"name":"cut')
            raise CloseNow
        if server.stopping.is_set() or server.cuts is not cut:
            raise CloseNow
        self._write(b"0\r\n\r\n")

    def _write_events(self, events: Iterator[Json]) -> None:
        for event in events:
            self._write_chunk(_encode(event) + b"\n")

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


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise errors.bad_request("the body is not JSON") from error


def _number(query: Any, key: str) -> int:
    """A non-negative whole number of the query; 0 when absent. Raises 400."""
    text = query.get(key, "") or "0"
    if not (text.isascii() and text.isdigit()):
        raise errors.bad_request(f"{key} is not a number")
    return int(text)
