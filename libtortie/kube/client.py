"""The Kubernetes client: `prepare` builds a request, `send` carries it, errors are typed.

Promises: every call ends by its deadline, also against a server that drips bytes; rotated tokens
and certificates are picked up before the next call, and after a 401 or a TLS failure a changed
credential is tried once more; errors name verb, resource, namespace/name and server, and never a
token. Redirects are refused: a token goes to the configured server only. Thread-safe.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import requests
import urllib3.exceptions

from libtortie import errors
from libtortie.kube import prepare, replies
from libtortie.kube.config import KubeConfig
from libtortie.kube.credentials import Credentials, describe, load, signature
from libtortie.kube.exec_plugin import is_current
from libtortie.kube.lines import LineSplitter, RawEvent, decode_line
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import Applied, Bookmark, Gone, Overloaded, PatchType, at_once
from libtortie.kube.transport import (
    ConnectError,
    DeadlineError,
    Limits,
    StoppedError,
    build_session,
    failure_text,
    limited,
)

T = TypeVar("T", bound=KubeObject)
JsonPatch = list[Any]
LOG = logging.getLogger(__name__)
PAGE = 500
MAX_REPLY = 256 << 20
_READ = 1 << 16
_NETWORK = (
    ConnectError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)


@dataclass(frozen=True, slots=True)
class _Live:
    """The credentials in use and the session made with them."""

    credentials: Credentials
    session: requests.Session


class HttpKubeClient:
    """`port.KubeClient` over HTTP.

    `timeout` bounds each call as a whole, in seconds. A watch is asked to end after about
    `watch_seconds`; nothing heard for `idle_seconds` (the server's bookmarks count, about one a
    minute) breaks it.
    """

    def __init__(
        self,
        config: KubeConfig,
        *,
        timeout: float = 5.0,
        watch_seconds: int = 300,
        idle_seconds: float = 90.0,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._timeout = timeout
        self._watch_seconds = watch_seconds
        self._idle_seconds = idle_seconds
        self._rng = rng
        self._lock = threading.Lock()
        credentials = load(config)
        self._live = _Live(credentials, build_session(credentials))

    @property
    def server(self) -> str:
        """The server's URL."""
        return self._live.credentials.config.server

    def close(self) -> None:
        """Close idle connections; open watches end by their stop event."""
        self._live.session.close()

    # --- reading -------------------------------------------------------------------------------

    def get(self, model: type[T], name: str, namespace: str = "") -> T:
        """One object. Raises `NotFound`."""
        return self._object(model, prepare.get(model.api, name, namespace))

    def list(
        self,
        model: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[tuple[T, ...], str]:
        """Objects and the list's resourceVersion, read in pages of one consistent state."""
        try:
            return self._pages(model, namespace, label_selector, field_selector, PAGE)
        except errors.Compacted:  # the pages' state is gone meanwhile: all at once
            return self._pages(model, namespace, label_selector, field_selector, 0)

    def pages(
        self, model: type[T], namespace: str = "", *, before: Callable[[], None] = at_once
    ) -> Iterator[tuple[tuple[T, ...], str]]:
        """As `list`, a page at a time. Raises `Compacted`: begin anew."""
        return self._read_pages(model, namespace, "", "", limit=PAGE, before=before)

    def watch(
        self,
        model: type[T],
        namespace: str = "",
        *,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        stop: threading.Event | None = None,
    ) -> Iterator[Applied[T] | Gone[T] | Bookmark]:
        """See the port. The stream's connection closes with the iterator."""
        seconds = max(1, int(self._watch_seconds * (0.8 + 0.4 * self._rng())))
        request = prepare.watch(
            model.api,
            namespace,
            resource_version=resource_version,
            seconds=seconds,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        context = self._context(request)
        for event in self.events(request, seconds=seconds, stop=stop):
            if event.type == "BOOKMARK":
                yield Bookmark(event.resource_version)
            elif event.type == "DELETED":
                yield Gone(replies.decode(model, event.object, context))
            else:
                yield Applied(replies.decode(model, event.object, context))

    # --- writing -------------------------------------------------------------------------------

    def create(self, model: type[T], body: Mapping[str, Any]) -> T:
        """Create an object. Raises `AlreadyExists`."""
        return self._object(model, prepare.create(model.api, body))

    def update(self, model: type[T], body: Mapping[str, Any], *, subresource: str = "") -> T:
        """Replace an object whole. Raises `Conflict` when it changed since it was read."""
        return self._object(model, prepare.update(model.api, body, subresource))

    def patch(
        self,
        model: type[T],
        name: str,
        namespace: str,
        body: Mapping[str, Any] | JsonPatch,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
    ) -> T:
        """Patch an object (or its subresource) and return the result."""
        request = prepare.patch(
            model.api, name, namespace, body, patch_type=patch_type, subresource=subresource
        )
        return self._object(model, request)

    def delete(
        self,
        model: type[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object (only the one with `uid`). Raises `NotFound`, `Conflict`."""
        self.send(prepare.delete(model.api, name, namespace, uid=uid, grace_seconds=grace_seconds))

    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = prepare.JSON,
    ) -> Any:
        """Any request; the JSON of the answer, or its text when it is not JSON."""
        reply = self.send(prepare.raw(method, path, body, query, content_type))
        try:
            return json.loads(reply)
        except (ValueError, RecursionError):
            return reply.decode("utf-8", "replace")

    # --- carrying ------------------------------------------------------------------------------

    def send(self, request: prepare.Request, seconds: float = 0.0) -> bytes:
        """The body of a 2xx answer; anything else raises a typed error. `seconds` instead of the
        client's own bound, where they are given."""
        limits = Limits(seconds or self._timeout)
        with self._answer(request, limits) as response:
            return _read_all(response, self._context(request))

    def events(
        self, request: prepare.Request, *, seconds: float, stop: threading.Event | None = None
    ) -> Iterator[RawEvent]:
        """The events of a watch request that the server ends after `seconds`."""
        context = self._context(request)
        limits = Limits(self._timeout, stop)
        splitter = LineSplitter()
        try:
            with self._answer(request, limits) as response:
                limits.stream(seconds + self._timeout, self._idle_seconds)
                while data := response.raw.read1(_READ, decode_content=False):
                    for line in splitter.feed(data):
                        yield decode_line(line, context)
        except StoppedError:
            return
        if splitter.pending:
            raise errors.Unavailable(f"{context}: the stream was cut in the middle of an event")

    @contextmanager
    def _answer(self, request: prepare.Request, limits: Limits) -> Iterator[requests.Response]:
        """A 2xx answer, open; foreign errors inside the block become ours."""
        with self._translated(request):
            response = self._exchange(request, limits)
            try:
                yield response
            finally:
                response.close()

    def _exchange(self, request: prepare.Request, limits: Limits) -> requests.Response:
        """Send, and once more when the first failure may be cured by it."""
        live = self._current()
        fresh = False
        while True:
            try:
                response = self._once(live, request, limits)
            except requests.exceptions.SSLError:
                renewed = self._renew(live, fresh=True)
                if renewed is live:
                    raise
            except requests.exceptions.ConnectionError as error:
                # A kept-alive connection that the server closed as we wrote: reads may repeat.
                if fresh or request.method != "GET" or not _was_cut(error):
                    raise
                fresh, renewed = True, live
            else:
                if 200 <= response.status_code < 300:
                    return response
                with response:
                    body = _read_all(response, self._context(request))
                refused = response.status_code == 401
                renewed = self._renew(live, fresh=True) if refused else live
                if renewed is live:
                    raise self._failure(request, response, body, live)
            live = renewed

    @staticmethod
    def _once(live: _Live, request: prepare.Request, limits: Limits) -> requests.Response:
        headers = {"Accept": prepare.JSON, "Accept-Encoding": "identity", "User-Agent": "tortie"}
        if request.content_type:
            headers["Content-Type"] = request.content_type
        if live.credentials.token:
            headers["Authorization"] = f"Bearer {live.credentials.token}"
        with limited(limits):
            return live.session.request(
                request.method,
                request.url(live.credentials.config.server),
                data=request.body,
                headers=headers,
                timeout=limits.left(),
                stream=True,
                allow_redirects=False,
            )

    def _failure(
        self, request: prepare.Request, response: requests.Response, body: bytes, live: _Live
    ) -> errors.TortieError:
        context = self._context(request)
        code = response.status_code
        if 300 <= code < 400:
            return errors.Unavailable(f"{context}: HTTP {code}: redirects are not followed")
        if code == 401:
            context += f" with {describe(live.credentials)}"
        if live.credentials.token:  # a server may quote what it was sent
            body = body.replace(live.credentials.token.encode(), b"<token>")
        return replies.failure(
            code,
            body,
            creating=request.verb == "create",
            retry_after=response.headers.get("Retry-After", ""),
            context=context,
        )

    @contextmanager
    def _translated(self, request: prepare.Request) -> Iterator[None]:
        """Network failures as `Unavailable`, or `Overloaded` when the server was there."""
        context = self._context(request)
        try:
            yield
        except DeadlineError as error:
            kind = Overloaded if error.answering else errors.Unavailable
            raise kind(f"{context}: {error}") from error
        except _NETWORK as error:
            raise errors.Unavailable(f"{context}: {failure_text(error)}") from error

    def _context(self, request: prepare.Request) -> str:
        what = f"{request.verb} {request.subject or request.path}"
        return f"{what} at {self.server}"

    # --- credentials ---------------------------------------------------------------------------

    def _current(self) -> _Live:
        """The live session, renewed first if a file behind it changed."""
        live = self._live
        unchanged = signature(live.credentials.config) == live.credentials.signature
        if unchanged and is_current(live.credentials.expires):
            return live
        return self._renew(live)

    def _renew(self, seen: _Live, *, fresh: bool = False) -> _Live:
        """Read the credentials again. Returns `seen` when there is nothing new to try."""
        with self._lock:
            live = self._live
            if live is not seen:
                return live
            try:
                credentials = load(live.credentials.config, fresh=fresh)
            except errors.InvalidInput as error:
                LOG.warning("keeping the last good credentials: %s", error)
                return live
            if credentials.same_transport(live.credentials):
                self._live = _Live(credentials, live.session)
            else:
                self._live = _Live(credentials, build_session(credentials))
                live.session.close()  # idle connections only; calls in flight finish
            changed = not credentials.same_secrets(live.credentials)
            return self._live if changed else live

    # --- shapes --------------------------------------------------------------------------------

    def _object(self, model: type[T], request: prepare.Request) -> T:
        context = self._context(request)
        return replies.decode(model, replies.parse(self.send(request), context), context)

    def _pages(
        self, model: type[T], namespace: str, label_selector: str, field_selector: str, limit: int
    ) -> tuple[tuple[T, ...], str]:
        found: list[T] = []
        version = ""
        pages = self._read_pages(model, namespace, label_selector, field_selector, limit=limit)
        for page in pages:
            found += page[0]
            version = page[1]
        return tuple(found), version

    def _read_pages(
        self,
        model: type[T],
        namespace: str,
        label_selector: str,
        field_selector: str,
        *,
        limit: int,
        before: Callable[[], None] = at_once,
    ) -> Iterator[tuple[tuple[T, ...], str]]:
        token, asked = "", set[str]()
        while True:
            before()
            request = prepare.list_(
                model.api,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continuation=token,
            )
            context = self._context(request)
            body = replies.parse(self.send(request), context)
            objects = replies.items(model, body, context)
            version, token = replies.list_meta(body, context, asked)
            asked.add(token)
            yield objects, version
            if not token:
                return


def _read_all(response: requests.Response, context: str) -> bytes:
    """The body, bounded in size; its deadline is the connection's."""
    parts: list[bytes] = []
    size = 0
    while data := response.raw.read(_READ, decode_content=False):
        size += len(data)
        if size > MAX_REPLY:
            raise errors.Unavailable(f"{context}: the answer is larger than {MAX_REPLY} bytes")
        parts.append(data)
    return b"".join(parts)


def _was_cut(error: requests.exceptions.ConnectionError) -> bool:
    """Whether an open connection ended before an answer, as opposed to none being made."""
    inner = error.args[0] if error.args else None
    return isinstance(inner, urllib3.exceptions.ProtocolError) and any(
        isinstance(arg, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError)
        for arg in inner.args
    )
