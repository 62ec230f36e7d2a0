"""What a server may say in a watch of the Kubernetes datastore, byte by byte.

Whatever ends it, nothing is taken for deleted and nothing that is no object for one: it is
`Compacted` or `Unavailable`, and the next listing says what there is.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from libtortie.datastore.crd_names import Group
from libtortie.datastore.kubernetes import KubernetesDatastore
from libtortie.datastore.port import Put, Removed
from libtortie.errors import Compacted, TortieError, Unavailable
from libtortie.kube.client import HttpKubeClient
from libtortie.kube.config import direct
from libtortie.model.keys import HandleKey, Handles
from tests.fakes.followed import following
from tests.fakes.wire import talking

HEAD = b"HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
API = "crd.projectcalico.org/v1"


def handle_object(name: str, version: int) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "IPAMHandle",
        "metadata": {"name": name, "resourceVersion": str(version)},
        "spec": {"handleID": name, "block": {"10.0.0.0/30": 1}, "deleted": False},
    }


def line(kind: str, found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def status(code: int | None, reason: str = "") -> dict[str, Any]:
    found = {"kind": "Status", "status": "Failure", "reason": reason, "message": "injected"}
    return found if code is None else {**found, "code": code}


FIRST = line("ADDED", handle_object("h1", 7))


@contextmanager
def server(*streams: bytes, items: tuple[dict[str, Any], ...] = ()) -> Iterator[tuple[Any, Any]]:
    """A store whose server lists `items` at version 12 and answers each watch with the next of
    `streams` (the last one for ever); and the versions that watches asked for."""
    asked: list[str] = []
    listing = {"kind": "IPAMHandleList", "metadata": {"resourceVersion": "12"}, "items": items}

    def serve(connection: socket.socket) -> None:
        with connection:
            request = connection.recv(65536).partition(b"\r\n")[0].decode()
            if "watch=" not in request:
                connection.sendall(HEAD % 200 + json.dumps(listing).encode())
                return
            (version,) = re.findall(r"resourceVersion=(\d*)", request)
            asked.append(version)
            connection.sendall(streams[min(len(asked), len(streams)) - 1])

    with talking(serve) as url:
        client = HttpKubeClient(direct(url))
        with closing(KubernetesDatastore(client, group=Group.V1, close=client.close)) as store:
            yield store, asked


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (HEAD % 200 + FIRST + line("ERROR", status(410, "Expired")), Compacted),
        (HEAD % 200 + FIRST + line("ERROR", status(410, "Gone")), Compacted),
        (HEAD % 200 + FIRST + line("ERROR", status(None, "Expired")), Compacted),
        (HEAD % 200 + FIRST + line("ERROR", status(500, "InternalError")), Unavailable),
        (HEAD % 200 + FIRST + line("ERROR", status(429, "TooManyRequests")), Unavailable),
        (HEAD % 200 + FIRST + line("ERROR", status(200)), Unavailable),
        (HEAD % 200 + FIRST + line("ERROR", {}), Unavailable),
        (HEAD % 200 + FIRST + FIRST[:-20], Unavailable),
        (HEAD % 200 + FIRST + b"{}\n", Unavailable),
        (HEAD % 200 + FIRST + b"<html>\n", Unavailable),
        (HEAD % 200 + FIRST + line("REPLACED", handle_object("h1", 8)), Unavailable),
        (HEAD % 200 + FIRST + line("ADDED", {"metadata": {"name": "h2"}}), Unavailable),
        (HEAD % 200 + FIRST + line("ADDED", "h2"), Unavailable),
    ],
    ids=lambda one: one[-70:].decode() if isinstance(one, bytes) else one.__name__,
)
def test_after_an_event_the_stream_goes_wrong(stream: bytes, error: type[TortieError]) -> None:
    with server(stream) as (store, asked), following(store, Handles(), "5") as follow:
        assert isinstance(follow.join(), error)
        (event,) = follow.events
        assert isinstance(event, Put)
        assert event.record.key == HandleKey("h1")
    assert asked == ["5"]


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (410, "Expired", Compacted),
        (410, "", Compacted),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "", Unavailable),
    ],
)
def test_a_watch_that_is_refused(code: int, reason: str, error: type[TortieError]) -> None:
    answer = HEAD % code + json.dumps(status(code, reason)).encode()
    with server(answer) as (store, _), following(store, Handles(), "5") as follow:
        assert isinstance(follow.join(), error)
        assert follow.events == []


def test_a_stream_that_ends_well_goes_on_after_its_last_bookmark() -> None:
    """Bookmarks are no events, and a version that an event had before is not gone back to."""
    ended = HEAD % 200 + FIRST + line("BOOKMARK", {"metadata": {"resourceVersion": "11"}})
    gone = line("DELETED", handle_object("h1", 13)) + line("ERROR", status(410, "Expired"))
    with server(ended, HEAD % 200 + gone) as (store, asked):
        with following(store, Handles(), "5") as follow:
            assert isinstance(follow.join(), Compacted)
        assert [type(event) for event in follow.events] == [Put, Removed]
        assert asked == ["5", "11"]


@pytest.mark.parametrize("versions", [(9, 3, 8), (3, 8, 9), (1,), ()])
def test_a_watch_begins_where_the_list_was_not_where_an_item_was(
    versions: tuple[int, ...],
) -> None:
    """Whatever order items come in: an item's own version may be older than all history."""
    items = tuple(handle_object(f"h{version}", version) for version in versions)
    expired = HEAD % 200 + line("ERROR", status(410, "Expired"))
    with server(expired, items=items) as (store, asked):
        listing = store.list(Handles())
        assert len(listing.records) == len(versions)
        with following(store, Handles(), listing.revision) as follow:
            assert isinstance(follow.join(), Compacted)
        assert asked == ["12"]
