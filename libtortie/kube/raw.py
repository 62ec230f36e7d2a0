"""Objects as they are: JSON in, JSON out, for whoever stores whole objects in the API.

The typed client shows views, which are never written back; a store needs every field of an
object. Deadlines, credentials and errors are the client's. Never interprets what it carries.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from libtortie.errors import Compacted, Malformed
from libtortie.kube import prepare, replies
from libtortie.kube.lines import RawEvent
from libtortie.kube.objects import Api
from libtortie.kube.port import PatchType

Json = dict[str, Any]
PAGE = 500


class Carrier(Protocol):
    """What the client does with a prepared request."""

    @property
    def server(self) -> str: ...

    def send(self, request: prepare.Request) -> bytes: ...

    def events(
        self, request: prepare.Request, *, seconds: float, stop: threading.Event | None = None
    ) -> Iterator[RawEvent]: ...


class RawObjects:
    """Whole objects of any kind, by `Api`, namespace and name. Thread-safe, as the client is."""

    def __init__(self, carrier: Carrier, *, page: int = PAGE, watch_seconds: int = 300) -> None:
        """`page` bounds one answer of a list; a watch is asked to end after `watch_seconds`."""
        self._carrier = carrier
        self._page = page
        self._watch_seconds = watch_seconds

    @property
    def server(self) -> str:
        """The server's URL."""
        return self._carrier.server

    def get(self, api: Api, name: str, namespace: str = "") -> Json:
        """One object. Raises `NotFound`."""
        return self._object(prepare.get(api, name, namespace))

    def list(
        self, api: Api, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> tuple[tuple[Json, ...], str]:
        """Objects of one consistent state, and its resourceVersion; read in pages."""
        try:
            return self._pages(api, namespace, label_selector, field_selector, self._page)
        except Compacted:  # the pages' state is gone meanwhile: all at once
            return self._pages(api, namespace, label_selector, field_selector, 0)

    def create(self, api: Api, body: Mapping[str, Any]) -> Json:
        """Create an object. Raises `AlreadyExists`."""
        return self._object(prepare.create(api, body))

    def update(self, api: Api, body: Mapping[str, Any]) -> Json:
        """Replace an object that is at the resourceVersion in `body`. Raises `Conflict`."""
        return self._object(prepare.update(api, body))

    def patch_status(
        self,
        api: Api,
        name: str,
        namespace: str,
        body: Mapping[str, Any],
        patch_type: PatchType = PatchType.STRATEGIC,
    ) -> Json:
        """Patch through the status subresource; metadata in `body` are preconditions."""
        request = prepare.patch(
            api, name, namespace, body, patch_type=patch_type, subresource="status"
        )
        return self._object(request)

    def delete(
        self, api: Api, name: str, namespace: str = "", *, uid: str = "", version: str = ""
    ) -> None:
        """Delete the object with this UID, at this resourceVersion, where given."""
        self._carrier.send(prepare.delete(api, name, namespace, uid=uid, version=version))

    def watch(
        self,
        api: Api,
        namespace: str = "",
        *,
        version: str,
        label_selector: str = "",
        field_selector: str = "",
        stop: threading.Event,
    ) -> Iterator[RawEvent]:
        """One stream of events and bookmarks after `version`, until the server ends it or `stop`
        is set. Raises `Compacted`, and `Unavailable` when the connection breaks."""
        request = prepare.watch(
            api,
            namespace,
            resource_version=version,
            seconds=self._watch_seconds,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        return self._carrier.events(request, seconds=self._watch_seconds, stop=stop)

    def groups(self) -> frozenset[str]:
        """Names of the API groups that are served."""
        request = prepare.raw("GET", "/apis")
        body = replies.parse(self._carrier.send(request), self._context(request))
        found = body.get("groups")
        named = found if isinstance(found, list) else []
        return frozenset(str(one.get("name")) for one in named if isinstance(one, dict))

    def _pages(
        self, api: Api, namespace: str, label_selector: str, field_selector: str, limit: int
    ) -> tuple[tuple[Json, ...], str]:
        found: list[Json] = []
        token, asked = "", set[str]()
        while True:
            request = prepare.list_(
                api,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continuation=token,
            )
            context = self._context(request)
            body = replies.parse(self._carrier.send(request), context)
            items = body.get("items") or []
            if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
                raise Malformed(f"{context}: the list has no items")
            found.extend(items)
            version, token = replies.list_meta(body, context, asked)
            asked.add(token)
            if not token:
                return tuple(found), version

    def _object(self, request: prepare.Request) -> Json:
        return replies.parse(self._carrier.send(request), self._context(request))

    def _context(self, request: prepare.Request) -> str:
        return f"{request.verb} {request.subject or request.path} at {self.server}"


def copy_of(body: Mapping[str, Any]) -> Json:
    """A deep copy of a JSON object."""
    copied: Json = json.loads(json.dumps(body))
    return copied
