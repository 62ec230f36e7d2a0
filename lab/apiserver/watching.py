"""One watch: the store's events as this watcher's selectors see them.

An object that begins to match is ADDED, one that stops is DELETED. Without a version (or with
"0") the watch first shows what is there. History that is gone is an ERROR event with a 410 Status
inside a 200 answer, as the real server sends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.apiserver.errors import ApiError, bad_request
from lab.apiserver.kind import Kind
from lab.apiserver.selectors import Test
from lab.apiserver.store import Event, Json, Store

WireEvent = Json


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch request asks for; times in seconds. `initial` wants what is there first, and a
    bookmark that says where it ends."""

    resource_version: str
    timeout: float
    bookmarks: bool
    bookmark_interval: float
    initial: bool = False


def watch(
    store: Store,
    kind: Kind,
    test: Test,
    options: WatchOptions,
    ended: Callable[[], bool],
) -> Iterator[WireEvent]:
    """Events until the time is over or `ended` says so (`Store.wake` makes it look)."""
    until = time.monotonic() + options.timeout
    try:
        version = parse_version(options.resource_version)
        if version == 0 or options.initial:
            found, version = store.list(kind.resource)
            yield from ({"type": "ADDED", "object": body} for body in found if test(body))
        if options.initial:
            yield _bookmark(kind, version, {"k8s.io/initial-events-end": "true"})
        marked_at = time.monotonic()
        while not ended():
            now = time.monotonic()
            if now >= until:
                break
            events, known = store.since(
                kind.resource,
                version,
                min(until, marked_at + options.bookmark_interval) - now,
                ended,
            )
            for event in events:
                seen = _seen(event, test)
                if seen is not None:
                    yield seen
            version = events[-1].version if events else known
            if options.bookmarks and time.monotonic() - marked_at >= options.bookmark_interval:
                marked_at = time.monotonic()
                yield _bookmark(kind, version)
    except ApiError as error:
        yield {"type": "ERROR", "object": error.status()}
        return
    if options.bookmarks:
        yield _bookmark(kind, version)


def parse_version(text: str) -> int:
    """A resourceVersion in a request; empty is 0. Raises 400."""
    if text == "":
        return 0
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f"Invalid value: {text!r}: strconv.ParseUint: invalid syntax")
    return int(text)


def _seen(event: Event, test: Test) -> WireEvent | None:
    before = event.previous is not None and test(event.previous)
    after = event.type != "DELETED" and test(event.body)
    if after:
        return {"type": "MODIFIED" if before else "ADDED", "object": event.body}
    return {"type": "DELETED", "object": event.body} if before else None


def _bookmark(kind: Kind, version: int, annotations: Json | None = None) -> WireEvent:
    meta: Json = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        meta["annotations"] = annotations
    body: Json = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
    return {"type": "BOOKMARK", "object": body}
